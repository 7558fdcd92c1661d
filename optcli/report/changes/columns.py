"""The rows and columns of a comparison, each column defined once for every view."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from optcli.report import wording
from optcli.report.changes.model import (
    AccuracyChange,
    BatchChange,
    Comparison,
    SpeedChange,
    VariantChange,
)
from optcli.results import Estimate
from optcli.results.document import Cell, Column


@dataclass(frozen=True)
class Row:
    """One variant at one batch size and region; no `batch` where there is no latency to compare."""

    comparison: Comparison
    variant: VariantChange
    batch: BatchChange | None
    is_first: bool


def rows(comparison: Comparison) -> list[Row]:
    """All rows, in the order of the later report."""
    return [
        Row(comparison, variant, batch, place == 0)
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


def _variant(row: Row) -> Cell:
    after, before = row.variant.name, row.variant.name_before
    return Cell((after if after == before else f"{before} → {after}") if row.is_first else "")


def _batch(row: Row) -> Cell:
    if row.batch is None:
        return Cell("")
    return Cell(f"{row.batch.batch_size}{' device' if row.batch.region == 'device' else ''}")


def _p50(row: Row) -> Cell:
    if row.batch is None:
        return Cell("")
    before, after = row.batch.p50.before, row.batch.p50.after
    return Cell(f"{wording.milliseconds(before)} → {wording.milliseconds(after)}")


def _verdict(row: Row) -> Cell:
    if row.batch is None:
        status = f"{row.variant.status_before} → {row.variant.status}"
        return Cell(f"{status}, no latency to compare")
    outcome = row.batch.p50.outcome
    return Cell(outcome, tone=_TONES.get(outcome, "inconclusive"))


def _of_batch(name: str) -> Callable[[Row], dict[str, Any]]:
    return lambda row: {name: getattr(row.batch, name, None)}


def _speed(name: str) -> Callable[[Row], dict[str, Any]]:
    """A percentile of both sides, for CSV."""

    def cells(row: Row) -> dict[str, Any]:
        change = getattr(row.batch, name, None) or SpeedChange()
        return {
            **wording.estimate_cells(f"{name}_before_ms", change.before),
            **wording.estimate_cells(f"{name}_after_ms", change.after),
            **wording.estimate_cells(f"{name}_ratio", change.ratio),
            f"{name}_outcome": change.outcome,
        }

    return cells


def _sizes(row: Row) -> dict[str, Any]:
    return row.variant.model_dump(include={"size_bytes_before", "size_bytes"})


def _accuracies(row: Row) -> dict[str, Any]:
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


def _plain(name: str, value: Callable[[Row], Any]) -> Column[Row]:
    """A column of CSV alone."""
    return Column(name, csv=lambda row: {name: value(row)}, in_table=False)


# In the order of CSV and of the tables.
COLUMNS: tuple[Column[Row], ...] = (
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
