"""Comparisons of reports as a document: what moved, by how much, and what else differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optcli.report.changes import columns
from optcli.report.changes.chart import chart
from optcli.report.changes.model import Comparison
from optcli.results.document import Document, Items, Picture, Section, Table, of_table

_MEANING = (
    "The runs were not measured side by side: brackets hold 95 % intervals of the change, combined on"
    " log scale from each run's own interval (MOVER)."
)


def document(comparisons: Sequence[Comparison]) -> Document:
    """All comparisons, one below the other."""
    before = comparisons[0].before
    return Document(
        title="What changed",
        hint=f"From: {before.recipe}, {before.started.replace('T', ' ')}, {before.machine}",
        sections=[section for each in comparisons for section in _sections(each)],
        footer=[_MEANING],
    )


def _sections(comparison: Comparison) -> Iterator[Section]:
    after, variants = comparison.after, comparison.variants
    about = f"{after.recipe}, {after.started.replace('T', ' ')}, {after.machine}"
    title = f"{comparison.before.label} → {after.label}"
    table = Table(of_table(columns.COLUMNS), columns.rows(comparison))
    yield Section(title, [table], about)
    settings = [f"{each.name}: {', '.join(each.settings)}" for each in variants if each.settings]
    yield Section("Not comparable", [Items(comparison.reasons)], tone="reject")
    yield Section("What else changed", [Items([*comparison.changed, *settings])])
    yield Section("Only before", [Items(comparison.only_before)])
    yield Section("Only after", [Items(comparison.only_after)])
    yield Section("Notes", [Items(comparison.notes)])
    lead = "p50 after over before: left of 1 is faster. Whiskers are 95 % intervals."
    yield Section("How much the latency moved", [Picture(lambda: chart(comparison))], lead)
