"""The metric class by class, beside the baseline's, as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence

from optcli.report import wording
from optcli.results import Accuracy

HEADS = ("class", "samples", "value", "baseline", "change")


def rows(accuracy: Accuracy, most: int | None = None) -> list[Sequence[str]]:
    """Cells of each class, as `HEADS`; of more than `most` those that changed most for the worse."""
    chosen = list(accuracy.per_class)
    if most is not None and len(chosen) > most:
        chosen.sort(key=lambda each: each.value - (each.baseline or 0.0))
        chosen = sorted(chosen[:most], key=lambda each: each.label)
    return [
        (
            str(each.label),
            str(each.samples),
            wording.percent(each.value),
            wording.percent(each.baseline),
            "" if each.baseline is None else wording.points(each.value - each.baseline),
        )
        for each in chosen
    ]
