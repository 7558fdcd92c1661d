"""The metric class by class, beside the baseline's, as rows of a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optcli.report import wording
from optcli.results import Accuracy
from optcli.results.outcomes import ClassFigure

HEADS = ("class", "samples", "value", "baseline", "change")


def rows(accuracy: Accuracy) -> list[Sequence[str]]:
    """Cells of each class of one variant, as `HEADS`."""
    return [
        (
            str(each.label),
            str(each.samples),
            wording.percent(each.value),
            wording.percent(each.baseline),
            _change(each),
        )
        for each in accuracy.per_class
    ]


def together(
    judged: Mapping[str, Accuracy], baseline: str, most: int
) -> tuple[list[str], list[Sequence[str]]]:
    """Heads and cells of all variants side by side, a class a row; nothing where there are no classes.

    A variant's cell holds its value and the change from the baseline's. Of more than `most` classes
    those in which a variant lost most.
    """
    figures = {name: {each.label: each for each in one.per_class} for name, one in judged.items()}
    figures = {name: of_class for name, of_class in figures.items() if of_class}
    labels = sorted({label for of_class in figures.values() for label in of_class})

    def worst(label: int) -> float:
        beside = [of_class[label] for of_class in figures.values() if label in of_class]
        return min(each.value - (each.baseline or 0.0) for each in beside)

    shown = sorted(sorted(labels, key=worst)[:most]) if len(labels) > most else labels
    cells: list[Sequence[str]] = []
    for label in shown:
        beside = [of_class.get(label) for of_class in figures.values()]
        samples = next(each.samples for each in beside if each is not None)
        values = [
            ""
            if each is None
            else f"{wording.percent(each.value)} {'' if name == baseline else _change(each)}".strip()
            for name, each in zip(figures, beside, strict=True)
        ]
        cells.append((str(label), str(samples), *values))
    return ["class", "samples", *figures], cells


def _change(figure: ClassFigure) -> str:
    return "" if figure.baseline is None else wording.points(figure.value - figure.baseline)
