"""The report as Markdown: for a pull request, a wiki, a README."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.report import columns
from optcli.report.by_device import views
from optcli.report.markdown_text import escaped, items, table_of
from optcli.report.notes import Notes
from optcli.report.rows import batch_sizes, rows
from optcli.report.sweep_text import sweep_markdown
from optcli.results import Report


def markdown(report: Report) -> str:
    """A GitHub-flavoured Markdown document: one table per device and batch size, then the notes."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: Report) -> Iterator[str]:
    yield f"## {escaped(report.recipe.name)}"
    for alone, its_notes in views(report):
        yield from _device(alone, its_notes)


def _device(report: Report, report_notes: Notes) -> Iterator[str]:
    """What one device gave; all of it, where there is no other."""
    named = "" if report.device is None else f" on {escaped(report.device)}"
    for size in batch_sizes(report):
        measured = rows(report, size)
        if not measured:
            continue
        yield ""
        if size is not None:
            yield f"### Batch size {size}{named}"
            yield ""
        yield from table_of(columns.of_results(report, measured), measured)
    yield from sweep_markdown(report)
    if report_notes.recommendation:
        yield from ("", f"**{escaped(report_notes.recommendation)}**")
    if report_notes.serving:
        yield from ("", escaped(report_notes.serving))
    for title, lines in report_notes.sections:
        yield from items(title, lines)
    for line in report_notes.footer:
        yield from ("", f"_{escaped(line)}_")
    if report_notes.ending:
        yield from ("", escaped(report_notes.ending))
