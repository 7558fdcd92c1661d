"""Comparisons of reports as a document: what moved, by how much, and what else differs.

Each column is defined once, for the tables and for CSV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from optcli.report import wording
from optcli.report.changes.model import (
    AccuracyChange,
    BatchChange,
    ReportComparison,
    SpeedChange,
    VariantChange,
)
from optcli.report.html import marks
from optcli.report.html.marks import Area, Scale
from optcli.report.html.tags import Markup
from optcli.results import Estimate
from optcli.results.document import Cell, Chart, Column, Document, Items, Section, Table, of_table

_MEANING = (
    "The runs were not measured side by side: brackets hold 95 % intervals of the change, combined on"
    " log scale from each run's own interval (MOVER)."
)
_ROW = 26.0
# At least this factor to both sides: a change of one per cent shall not fill the picture.
_LEAST_RANGE = 1.2


def document(comparisons: Sequence[ReportComparison]) -> Document:
    """All comparisons, one below the other."""
    before = comparisons[0].before
    return Document(
        title="What changed",
        hint=f"From: {before.recipe}, {before.started.replace('T', ' ')}, {before.machine}",
        sections=[section for each in comparisons for section in _sections(each)],
        footer=[_MEANING],
    )


def _sections(comparison: ReportComparison) -> Iterator[Section]:
    after, variants = comparison.after, comparison.variants
    about = f"{after.recipe}, {after.started.replace('T', ' ')}, {after.machine}"
    title = f"{comparison.before.label} → {after.label}"
    table = Table(of_table(COLUMNS), rows(comparison))
    yield Section(title, [table], about)
    settings = [f"{each.name}: {', '.join(each.settings)}" for each in variants if each.settings]
    yield Section("Not comparable", [Items(comparison.reasons)], tone="reject")
    yield Section("What else changed", [Items([*comparison.changed, *settings])])
    yield Section("Only before", [Items(comparison.only_before)])
    yield Section("Only after", [Items(comparison.only_after)])
    yield Section("Notes", [Items(comparison.notes)])
    lead = "p50 after over before: left of 1 is faster. Whiskers are 95 % intervals."
    yield Section("How much the latency moved", [Chart(lambda: _chart(comparison))], lead)


@dataclass(frozen=True)
class _ChangeRow:
    """One variant at one batch size and region; no `batch` where there is no latency to compare."""

    comparison: ReportComparison
    variant: VariantChange
    batch: BatchChange | None
    is_first: bool


def rows(comparison: ReportComparison) -> list[_ChangeRow]:
    """All rows, in the order of the later report."""
    return [
        _ChangeRow(comparison, variant, batch, place == 0)
        for variant in comparison.variants
        for place, batch in enumerate(variant.latency or (None,))
    ]


_TONES = {"faster": "accept", "slower": "reject", "no clear change": "none", "same artifact": "none"}


def moved(ratio: Estimate | None) -> str:
    """A ratio as people say it: `-8.1 % [-10.2, -6.0]`, from twice on `2.31x [2.10, 2.52]`."""
    if ratio is None:
        return wording.NONE
    if max(ratio.value, 1 / ratio.value) >= 2:
        return wording.with_interval(ratio, "x")
    span = ""
    if ratio.low is not None and ratio.high is not None:
        span = f" [{_percent(ratio.low)}, {_percent(ratio.high)}]"
    return f"{_percent(ratio.value)} %{span}"


def _variant(row: _ChangeRow) -> Cell:
    after, before = row.variant.name, row.variant.name_before
    return Cell((after if after == before else f"{before} → {after}") if row.is_first else "")


def _batch(row: _ChangeRow) -> Cell:
    if row.batch is None:
        return Cell("")
    return Cell(f"{row.batch.batch_size}{' device' if row.batch.region == 'device' else ''}")


def _p50(row: _ChangeRow) -> Cell:
    if row.batch is None:
        return Cell("")
    before, after = row.batch.p50.before, row.batch.p50.after
    return Cell(f"{wording.milliseconds(before)} → {wording.milliseconds(after)}")


def _verdict(row: _ChangeRow) -> Cell:
    if row.batch is None:
        status = f"{row.variant.status_before} → {row.variant.status}"
        return Cell(f"{status}, no latency to compare")
    outcome = row.batch.p50.outcome
    return Cell(outcome, tone=_TONES.get(outcome, "inconclusive"))


def _of_batch(name: str) -> Callable[[_ChangeRow], dict[str, Any]]:
    return lambda row: {name: getattr(row.batch, name, None)}


def _speed(name: str) -> Callable[[_ChangeRow], dict[str, Any]]:
    """A percentile of both sides, for CSV."""

    def cells(row: _ChangeRow) -> dict[str, Any]:
        change = getattr(row.batch, name, None) or SpeedChange()
        return {
            **wording.estimate_cells(f"{name}_before_ms", change.before),
            **wording.estimate_cells(f"{name}_after_ms", change.after),
            **wording.estimate_cells(f"{name}_ratio", change.ratio),
            f"{name}_outcome": change.outcome,
        }

    return cells


def _sizes(row: _ChangeRow) -> dict[str, Any]:
    return row.variant.model_dump(include={"size_bytes_before", "size_bytes"})


def _accuracies(row: _ChangeRow) -> dict[str, Any]:
    accuracy = row.variant.accuracy
    return {
        "metric": accuracy.metric if accuracy else None,
        "accuracy_before": accuracy.before if accuracy else None,
        "accuracy": accuracy.after if accuracy else None,
        **wording.estimate_cells("accuracy_difference", accuracy.difference if accuracy else None),
        "accuracy_outcome": accuracy.outcome if accuracy else None,
    }


def _percent(ratio: float) -> str:
    value = 100 * (ratio - 1)
    return f"{value:+.1f}" if abs(value) < 99.95 else f"{value:+.0f}"


def _short(change: SpeedChange) -> str:
    if change.ratio is None:
        return wording.NONE
    word = f" {change.outcome}" if change.outcome in ("faster", "slower") else ""
    return f"{moved(Estimate(value=change.ratio.value))}{word}"


def _size(variant: VariantChange) -> str:
    before, after = variant.size_bytes_before, variant.size_bytes
    if before is None or after is None:
        return wording.NONE
    if before == after:
        return wording.megabytes(after)
    change = f" ({_percent(after / before)} %)" if before else ""
    return f"{wording.megabytes(before)} → {wording.megabytes(after)}{change}"


def _accuracy(change: AccuracyChange | None) -> str:
    if change is None:
        return wording.NONE
    if change.outcome == "unchanged":
        return f"{wording.percent(change.after)}, unchanged"
    both = f"{wording.percent(change.before)} → {wording.percent(change.after)}"
    difference, span = change.difference, ""
    if difference is None:
        return f"{both} ({change.outcome})"
    if difference.low is not None and difference.high is not None:
        span = f" [{100 * difference.low:+.2f}, {100 * difference.high:+.2f}]"
    points = f"{100 * difference.value:+.2f}{span}"
    word = "" if change.outcome == "not known" else f", {change.outcome}"
    return f"{both} ({points}{word})"


def _plain(name: str, value: Callable[[_ChangeRow], Any]) -> Column[_ChangeRow]:
    """A column of CSV alone."""
    return Column(name, csv=lambda row: {name: value(row)}, in_table=False)


# In the order of CSV and of the tables.
COLUMNS: tuple[Column[_ChangeRow], ...] = (
    _plain("before", lambda row: row.comparison.before.label),
    _plain("after", lambda row: row.comparison.after.label),
    _plain("comparable", lambda row: row.comparison.comparable),
    Column("variant", _variant, lambda row: {"variant": row.variant.name}, "left"),
    _plain("variant_before", lambda row: row.variant.name_before),
    _plain("same_artifact", lambda row: row.variant.same),
    Column("batch", _batch, _of_batch("batch_size")),
    Column("region", csv=_of_batch("region"), in_table=False),
    Column("p50 ms", _p50, _speed("p50")),
    Column("change", lambda row: Cell(moved(row.batch.p50.ratio) if row.batch else "")),
    Column("verdict", _verdict, align="left"),
    Column("p95", lambda row: Cell(_short(row.batch.p95) if row.batch else ""), _speed("p95")),
    Column("p99", csv=_speed("p99"), in_table=False),
    Column("size", lambda row: Cell(_size(row.variant) if row.is_first else ""), _sizes, "left"),
    Column(
        "accuracy",
        lambda row: Cell(_accuracy(row.variant.accuracy) if row.is_first else ""),
        _accuracies,
        "left",
    ),
    _plain("settings", lambda row: "; ".join(row.variant.settings)),
)


def _chart(comparison: ReportComparison) -> Markup:
    """One row per variant and batch size, the ratio with its interval on a log axis around 1.

    Empty where no ratio is known.
    """
    ratios = [
        (index, variant.name, row, row.p50.ratio)
        for index, variant in enumerate(comparison.variants)
        for row in variant.latency
        if row.p50.ratio is not None
    ]
    if not ratios:
        return Markup()
    ends = [end for _, _, _, ratio in ratios for end in marks.ends(ratio)]
    most = max([_LEAST_RANGE, *(max(value, 1 / value) for value in ends)]) * 1.05
    lines = []
    for index, name, row, _ in ratios:
        where = " on the device" if row.region == "device" else ""
        lines.append((index, f"{name}, batch {row.batch_size}{where}", row))

    return marks.figure("Change of p50", lambda width: _draw(width, lines, most))


def _draw(width: int, lines: Sequence[tuple[int, str, BatchChange]], most: float) -> Markup:
    wide = width == marks.WIDE
    height = _ROW if wide else _ROW + 12
    area = Area(200 if wide else 6, width - 14, 6, 6 + height * len(lines))
    x = Scale(1 / most, most, area.left, area.right, log=True)
    shapes = [*marks.level(area, x, "p50 after / before (log scale)", _ticks(most))]
    shapes.append(marks.line(x(1.0), area.top, x(1.0), area.bottom, "one"))
    for place, (index, name, row) in enumerate(lines):
        y = area.top + (place + 1) * height - 10
        if wide:
            shapes.append(marks.text(area.left - 8, y + 4, marks.shortened(name, 190), "end", "name"))
        else:
            shapes.append(marks.text(4, y - 10, marks.shortened(name, width - 10), kind="name"))
        shapes.append(marks.series(index, *_mark(x, y, index, name, row.p50)))
    return marks.picture(width, area.bottom + 40, "Change of p50", *shapes)


def _mark(x: Scale, y: float, index: int, name: str, change: SpeedChange) -> Iterator[Markup]:
    assert change.ratio is not None
    if ends := marks.bounds(change.ratio, x):
        yield marks.line(ends[0], y, ends[1], y, "interval")
    tooltip = f"{name}: {moved(change.ratio)}, {change.outcome}"
    hollow = change.outcome not in ("faster", "slower")
    yield marks.marker(index, x(change.ratio.value), y, tooltip, hollow=hollow)


def _ticks(most: float) -> list[float]:
    """Round ratios to both sides of 1, at most seven."""
    steps = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
    right = [step for step in steps if step <= most]
    right = right[-3:] if len(right) > 3 else right
    return sorted([*(float(f"{1 / step:.2g}") for step in right), 1.0, *right])
