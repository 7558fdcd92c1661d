"""What is found after a build, put into its report: trials of a repair, layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optcli import report
from optcli.errors import StoreError
from optcli.latency.quantiles import quantiles_of
from optcli.observer import Observer
from optcli.pipeline import view
from optcli.report import html
from optcli.results import Report


def write(folder: Path, found: Report, curves: html.Quantiles) -> None:
    """Write a report in its three forms. Raises `StoreError`."""
    view.write(folder / "report.json", found.to_json() + "\n")
    view.write(folder / "report.md", report.markdown(found))
    view.write(folder / "report.html", html.page(found, curves))


def add(folder: Path, found: Mapping[str, Mapping[str, Any]], observer: Observer) -> None:
    """Put fields of variants into the report of the last build, where it is there and knows them.

    Where nothing can be written there the observer hears of it: what was found is printed anyway.
    """
    if not found or not (folder / "report.json").is_file():
        return
    try:
        with view.alone(folder, observer):
            before = Report.load(folder / "report.json")
            variants = {
                name: variant.model_copy(update=dict(found.get(name, {})))
                for name, variant in before.variants.items()
            }
            after = before.model_copy(update={"variants": variants})
            if after != before:
                write(folder, after, quantiles_of(folder / "samples.npz"))
    except StoreError as error:
        observer.warned("report", error.message)
