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


def remarks(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """What stands below the table, by heading; nothing where there is nothing to say."""
    variants = comparison.variants
    settings = [f"{each.name}: {', '.join(each.settings)}" for each in variants if each.settings]
    parts = [
        ("Not comparable", list(comparison.reasons)),
        ("What else changed", [*comparison.changed, *settings]),
        ("Only before", list(comparison.only_before)),
        ("Only after", list(comparison.only_after)),
        ("Notes", list(comparison.notes)),
    ]
    return [(name, lines) for name, lines in parts if lines]


MEANING = (
    "The runs were not measured side by side: brackets hold 95 % intervals of the change, combined on"
    " log scale from each run's own interval (MOVER)."
)
