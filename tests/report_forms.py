"""A build's report in each form that people read."""

from __future__ import annotations

from typing import Any

from optcli.report import html, markdown_text, terminal
from optcli.report.build import document
from optcli.results import Report


def text(report: Report, width: int | None = None) -> str:
    return terminal.text(document(report), width)


def markdown(report: Report) -> str:
    return markdown_text.markdown(document(report))


def page(report: Report, *charts: Any, **pictures: Any) -> str:
    return html.html(document(report, *charts, **pictures))


def results(report: Report, size: int = 1) -> str:
    """The table of a batch size on the page; empty where there is none."""
    return page(report).partition(f"<h2>Batch size {size}</h2>")[2].partition("</section>")[0]


def details(report: Report) -> str:
    """The table of more figures on the page; empty where there is none."""
    begin = "<summary>Processor time, loading, memory, flags</summary>"
    return page(report).partition(begin)[2].partition("</details>")[0]
