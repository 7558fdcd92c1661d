"""What is found after a build, put into its report: trials of a repair, layers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optcli.errors import StoreError
from optcli.files import regular_files
from optcli.measure.latency.summary import quantiles_of
from optcli.observer import Observer
from optcli.pipeline import view
from optcli.pipeline.plan import DEVICES_FOLDER
from optcli.report import build, html, markdown_text
from optcli.report.html.distributions import Quantiles
from optcli.results import Report
from optcli.results.document import Document
from optcli.results.pictures import FOLDER as PICTURES

_SAMPLES = "samples.npz"


@dataclass(frozen=True)
class Curves:
    """What charts are drawn from: of the report's own device, and of the others by name."""

    first: Quantiles
    further: Mapping[str, Quantiles] = field(default_factory=dict)


def curves_of(folder: Path, report: Report) -> Curves:
    """From the raw samples that lie beside a report in its folder, as far as they are there."""
    below = folder / DEVICES_FOLDER
    return Curves(
        quantiles_of(folder / _SAMPLES),
        {
            name: quantiles_of(below / name / _SAMPLES)
            for name in report.devices
            if Path(name).name == name  # a report from elsewhere may name any file
        },
    )


def document_of(folder: Path, report: Report) -> Document:
    """A report with the charts and pictures of what lies beside it in its folder."""
    curves = curves_of(folder, report)
    return build.document(report, curves.first, curves.further, images_of(folder, report))


def write(folder: Path, report: Report, curves: Curves) -> None:
    """Write a report in its three forms. Raises `StoreError`."""
    view.write(folder / "report.json", report.to_json() + "\n")
    document = build.document(report, curves.first, curves.further, images_of(folder, report))
    view.write(folder / "report.md", markdown_text.markdown(document))
    view.write(folder / "report.html", html.html(document))


def with_fields(report: Report, fields: Mapping[str, Mapping[str, Any]]) -> Report:
    """The report with these fields of its variants."""
    variants = {
        name: variant.model_copy(update=dict(fields.get(name, {})))
        for name, variant in report.variants.items()
    }
    return report.model_copy(update={"variants": variants})


def images_of(folder: Path, report: Report) -> dict[str, bytes]:
    """The JPEGs of a report's pictures that lie beside it, as far as they are there, by file."""
    files = {
        file
        for variant in report.variants.values()
        for each in variant.pictures
        for file in (each.file, each.baseline_file)
        # A report from elsewhere may name any file.
        if re.fullmatch(rf"{PICTURES}/[0-9a-f]+\.jpg", file)
    }
    images: dict[str, bytes] = {}
    for file in sorted(files):
        with suppress(OSError):
            images[file] = regular_files.read(folder / file)
    return {file: content for file, content in images.items() if content.startswith(b"\xff\xd8\xff")}


def add(folder: Path, fields: Mapping[str, Mapping[str, Any]], observer: Observer) -> None:
    """Put fields of variants into the report of the last build, where it is there and knows them.

    Where nothing can be written there the observer is warned: the verb prints the fields anyway.
    """
    if not fields or not (folder / "report.json").is_file():
        return
    try:
        with view.alone(folder, observer):
            before = Report.load(folder / "report.json")
            after = with_fields(before, fields)
            if after != before:
                write(folder, after, curves_of(folder, after))
    except StoreError as error:
        observer.warned("report", error.message)
