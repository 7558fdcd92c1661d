"""The rows of a comparison as text, before any layout."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from optcli.report import wording
from optcli.report.changes.model import AccuracyChange, Comparison, SpeedChange, VariantChange
from optcli.results import Estimate

HEADS = ("variant", "batch", "p50 ms", "change", "", "p95", "size", "accuracy")


@dataclass(frozen=True)
class Row:
    """One variant at one batch size; size and accuracy stand in its first row only."""

    variant: str
    batch: str
    p50: str
    change: str
    outcome: str
    p95: str
    size: str
    accuracy: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The texts in the order of `HEADS`."""
        return (
            self.variant,
            self.batch,
            self.p50,
            self.change,
            self.outcome,
            self.p95,
            self.size,
            self.accuracy,
        )


def title(comparison: Comparison) -> str:
    """From what to what."""
    return f"{comparison.before.label} → {comparison.after.label}"


def rows(comparison: Comparison) -> list[Row]:
    """All rows, in the order of the later report."""
    return [row for variant in comparison.variants for row in _rows(variant)]


def _rows(variant: VariantChange) -> Iterator[Row]:
    name = (
        variant.name
        if variant.name == variant.name_before
        else f"{variant.name_before} → {variant.name}"
    )
    size, accuracy = _size(variant), _accuracy(variant.accuracy)
    if not variant.latency:
        status = f"{variant.status_before} → {variant.status}, no latency to compare"
        yield Row(name, "", "", "", status, "", size, accuracy)
    for index, row in enumerate(variant.latency):
        first = index == 0
        yield Row(
            variant=name if first else "",
            batch=f"{row.batch_size}{' device' if row.region == 'device' else ''}",
            p50=f"{wording.milliseconds(row.p50.before)} → {wording.milliseconds(row.p50.after)}",
            change=moved(row.p50.ratio),
            outcome=row.p50.outcome,
            p95=_short(row.p95),
            size=size if first else "",
            accuracy=accuracy if first else "",
        )


def moved(ratio: Estimate | None) -> str:
    """A ratio as people say it: `-8.1 % [-10.2, -6.0]`, from twice on `2.31x [2.10, 2.52]`."""
    if ratio is None:
        return wording.NONE
    if max(ratio.value, 1 / ratio.value) >= 2:
        return f"{wording.number(ratio.value)}x {wording.interval(ratio)}".strip()
    span = ""
    if ratio.low is not None and ratio.high is not None:
        span = f" [{_percent(ratio.low)}, {_percent(ratio.high)}]"
    return f"{_percent(ratio.value)} %{span}"


def remarks(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """What stands below the table, by heading; nothing where there is nothing to say."""
    variants = comparison.variants
    settings = [f"{each.name}: {', '.join(each.settings)}" for each in variants if each.settings]
    found = [
        ("Not comparable", list(comparison.reasons)),
        ("What else changed", [*comparison.changed, *settings]),
        ("Only before", list(comparison.only_before)),
        ("Only after", list(comparison.only_after)),
        ("Notes", list(comparison.notes)),
    ]
    return [(name, lines) for name, lines in found if lines]


MEANING = (
    "The runs were not measured side by side: brackets hold 95 % intervals of the change, combined on"
    " log scale from each run's own interval (MOVER)."
)


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
