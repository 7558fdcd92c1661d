"""The section of a further device on the page of a build."""

from __future__ import annotations

from collections.abc import Iterator

from optcli.report.html import tables
from optcli.report.html.distributions import Quantiles, distributions
from optcli.report.html.document import folded, section
from optcli.report.html.tags import Markup, tag
from optcli.report.notes import Notes
from optcli.report.rows import batch_sizes
from optcli.results import Report


def section_of(report: Report, its_notes: Notes, quantiles: Quantiles, number: int) -> Markup:
    """What one device gave: its tables, notes and machine. `number` counts devices from 1."""
    return section(
        f"Results on {report.device}",
        its_notes.recommendation or None,
        *_tables(report, quantiles),
        *_said(its_notes),
        folded("How it was measured", tag("ul", *(tag("li", line) for line in its_notes.footer))),
        folded("Environment", tables.environment(report.environment)),
        id_=f"device-{number}",
    )


def _tables(report: Report, quantiles: Quantiles) -> Iterator[Markup]:
    for size in batch_sizes(report):
        if size is not None:
            yield tag("h3", f"Batch size {size}")
        yield tables.results(report, size)
        if size is not None:
            shown = distributions(report, size, quantiles)
            yield folded(f"Latency of each artifact at batch size {size}", shown)
    more = tables.details(report)
    if more is not None:
        yield folded("More figures: processor time, loading, memory, flags", more)


def _said(its_notes: Notes) -> Iterator[Markup]:
    for name, lines in its_notes.sections:
        yield tag("h3", name)
        yield tag("ul", *(tag("li", line) for line in lines))
