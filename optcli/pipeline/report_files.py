"""What is found after a build, put into its report: trials of a repair, layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optcli.errors import StoreError
from optcli.latency.quantiles import quantiles_of
from optcli.observer import Observer
from optcli.pipeline import view
from optcli.report import html, markdown
from optcli.results import Report


def write(folder: Path, report: Report, curves: html.Quantiles) -> None:
    """Write a report in its three forms. Raises `StoreError`."""
    view.write(folder / "report.json", report.to_json() + "\n")
    view.write(folder / "report.md", markdown(report))
    view.write(folder / "report.html", html.page(report, curves))


def add(folder: Path, fields: Mapping[str, Mapping[str, Any]], observer: Observer) -> None:
    """Put fields of variants into the report of the last build, where it is there and knows them.

    Where nothing can be written there the observer is warned: the verb prints the fields anyway.
    """
    if not fields or not (folder / "report.json").is_file():
        return
    try:
        with view.alone(folder, observer):
            before = Report.load(folder / "report.json")
            variants = {
                name: variant.model_copy(update=dict(fields.get(name, {})))
                for name, variant in before.variants.items()
            }
            after = before.model_copy(update={"variants": variants})
            if after != before:
                write(folder, after, quantiles_of(folder / "samples.npz"))
    except StoreError as error:
        observer.warned("report", error.message)
