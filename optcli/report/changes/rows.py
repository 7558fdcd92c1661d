"""The rows of a comparison, and what stands above and below them."""

from __future__ import annotations

from dataclasses import dataclass

from optcli.report.changes.model import BatchChange, Comparison, VariantChange


@dataclass(frozen=True)
class Row:
    """One variant at one batch size and region; no `batch` where there is no latency to compare."""

    comparison: Comparison
    variant: VariantChange
    batch: BatchChange | None
    is_first: bool


def title(comparison: Comparison) -> str:
    """From what to what."""
    return f"{comparison.before.label} → {comparison.after.label}"


def rows(comparison: Comparison) -> list[Row]:
    """All rows, in the order of the later report."""
    return [
        Row(comparison, variant, batch, place == 0)
        for variant in comparison.variants
        for place, batch in enumerate(variant.latency or (None,))
    ]
