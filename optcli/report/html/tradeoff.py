"""Accuracy against latency, with the Pareto frontier: which artifacts are worth a look at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optcli.report import wording
from optcli.report.html import marks
from optcli.report.html.marks import Area, Box, Scale, name_labels, spanning
from optcli.report.html.tags import Markup, join, tag
from optcli.report.rows import accuracy_label, batch_sizes
from optcli.results import Estimate, Report, VariantReport

_HEIGHT = 380
# Half a point of percent: differences below it shall not look like cliffs.
_SMALLEST_ROOM = 0.5


@dataclass(frozen=True)
class PlottedVariant:
    """One variant: milliseconds, and how right it is: percent, or decibel where there are no labels.

    `score` grows with how right it is, whichever way the metric counts. One that was not measured on a
    quiet machine (`fit`) has no place on the frontier.
    """

    index: int
    name: str
    ms: Estimate
    right: Estimate
    score: float
    refused: bool
    fit: bool = True


def tradeoff(report: Report) -> Markup | None:
    """The chart at the first batch size; None where fewer than two variants have both figures."""
    label = accuracy_label(report)
    choices, left_out = _choices(report)
    if label is None or len(choices) < 2:
        return None
    best = frontier([choice for choice in choices if choice.fit])
    unit = "dB" if label == "SQNR" else "%"
    name = f"{label} against latency at batch size {batch_sizes(report)[0]}"
    bar = None if label == "SQNR" else _bar(report)

    names = wording.listed([choice.name for choice in best])
    better = "Down is better. " if choices[0].score < 0 else "Up is better. "
    text = f"{better}On the frontier, where no other is faster and at least as accurate: {names}."
    disturbed = wording.listed([choice.name for choice in choices if not choice.fit])
    if not best:
        text = f"{better}The machine was not quiet enough to tell the frontier."
    elif disturbed:
        text += f" Disturbed by other work, and not considered for it: {disturbed}."
    hollow = (
        " Hollow: a blocking verdict does not accept it." if any(c.refused for c in choices) else ""
    )
    other = f" Not drawn: {wording.listed(left_out)}." if left_out else ""
    chart = marks.figure(name, lambda width: _draw(width, choices, best, f"{label}, {unit}", bar, name))
    return join([chart, tag("p", text + hollow + other, class_="hint")])


def frontier(choices: Sequence[PlottedVariant]) -> list[PlottedVariant]:
    """Those that no other choice beats or equals in both while beating it in one, fastest first."""
    best: list[PlottedVariant] = []
    for choice in sorted(choices, key=lambda each: (each.ms.value, -each.score)):
        if not best or choice.score > best[-1].score:
            best.append(choice)
    return best


def _choices(report: Report) -> tuple[list[PlottedVariant], list[str]]:
    """Variants with both figures; those that were measured but have no place on the upright axis."""
    first = batch_sizes(report)[0]
    choices, left_out = [], []
    for index, (name, variant) in enumerate(report.variants.items()):
        row = next((row for row in variant.on_host if row.batch_size == first), None)
        right = _right(variant, name == report.baseline)
        if row is not None and right is None:
            error = variant.accuracy.output_error if variant.accuracy else None
            why = "the reference" if name == report.baseline else f"outputs {wording.difference(error)}"
            left_out.append(f"{name} ({why})")
        if row is not None and right is not None:
            refused = any(each.blocking and each.outcome != "accept" for each in variant.verdicts)
            lower = variant.accuracy is not None and variant.accuracy.better == "lower"
            score = -right.value if lower else right.value
            choices.append(PlottedVariant(index, name, row.p50_ms, right, score, refused, row.fit))
    return choices, left_out


def _right(variant: VariantReport, is_baseline: bool) -> Estimate | None:
    """Percent with the interval of the drop around it, or decibel; None where neither is known."""
    accuracy = variant.accuracy
    if accuracy is None:
        return None
    if accuracy.value is not None:
        drop, low, high = accuracy.drop, None, None
        # What others are compared with has no interval.
        if not is_baseline and drop and drop.low is not None and drop.high is not None:
            low = 100 * max(0.0, accuracy.value + drop.value - drop.high)
            high = 100 * min(1.0, accuracy.value + drop.value - drop.low)
        return Estimate(value=100 * accuracy.value, low=low, high=high)
    error = accuracy.output_error
    if error is None or error.sqnr_db is None or not error.finite:
        return None
    return Estimate(value=error.sqnr_db)


def _bar(report: Report) -> float | None:
    """The lowest accuracy that is accepted, in percent."""
    for variant in report.variants.values():
        baseline = variant.accuracy.baseline if variant.accuracy else None
        for verdict in variant.verdicts:
            if verdict.name == "accuracy" and verdict.limit is not None and baseline is not None:
                return 100 * (baseline - verdict.limit)
    return None


def _draw(
    width: int,
    choices: Sequence[PlottedVariant],
    best: Sequence[PlottedVariant],
    y_name: str,
    bar: float | None,
    name: str,
) -> Markup:
    area = Area(48, width - 14, 32, _HEIGHT - 42)
    x = spanning([v for c in choices for v in marks.ends(c.ms)], area.left + 8, area.right - 8)
    y = _upright(choices, bar, area)
    log = " (log scale)" if x.log else ""
    shapes = [*marks.axes(area, x, y, f"p50, milliseconds{log}", y_name)]
    if bar is not None:
        shapes.append(marks.line(area.left, y(bar), area.right, y(bar), "budget"))
        at = y(bar) - 5 if y(bar) > area.bottom - 18 else y(bar) + 15
        shapes.append(marks.text(area.right, at, "accepted from here up", "end", "budget-name"))
    if best:
        shapes.append(marks.path(_steps(best, x, y, area), "frontier"))
    places = [(x(choice.ms.value), y(choice.right.value)) for choice in choices]
    lines = [_drawn(choice, x, y) for choice in choices]
    labels = name_labels(
        places, [choice.name for choice in choices], area, [b for each in lines for b in each]
    )
    for choice, (at, height), label in zip(choices, places, labels, strict=True):
        parts = []
        if ends := marks.bounds(choice.ms, x):
            parts.append(marks.whisker(height, ends, level=True))
        if ends := marks.bounds(choice.right, y):
            parts.append(marks.whisker(at, ends, level=False))
        tooltip = f"{choice.name}: p50 {wording.number(choice.ms.value)} ms, {choice.right.value:.2f}"
        hollow = choice.refused or not choice.fit
        parts.append(marks.marker(choice.index, at, height, tooltip, hollow=hollow))
        shapes += [marks.series(choice.index, *parts), label]
    return marks.picture(width, _HEIGHT, name, *shapes)


def _upright(choices: Sequence[PlottedVariant], bar: float | None, area: Area) -> Scale:
    right = [each.right for each in choices]
    ends = [end for each in right for end in (each.value, each.low, each.high, bar)]
    values = [end for end in ends if end is not None]
    middle = (min(values) + max(values)) / 2
    values += [middle - _SMALLEST_ROOM, middle + _SMALLEST_ROOM]
    return spanning(values, area.bottom, area.top, log=False)


def _steps(best: Sequence[PlottedVariant], x: Scale, y: Scale, area: Area) -> list[tuple[float, float]]:
    """The frontier as steps: right of a choice, nothing better is known until the next."""
    edge = area.top if best[0].score < 0 else area.bottom
    points = [(x(best[0].ms.value), edge)]
    for choice in best:
        points += [(x(choice.ms.value), points[-1][1]), (x(choice.ms.value), y(choice.right.value))]
    return [*points, (area.right, points[-1][1])]


def _drawn(choice: PlottedVariant, x: Scale, y: Scale) -> list[Box]:
    """The room that a choice's whiskers take."""
    at, height = x(choice.ms.value), y(choice.right.value)
    boxes = []
    if ends := marks.bounds(choice.ms, x):
        boxes.append((ends[0], height - 2, ends[1], height + 2))
    if ends := marks.bounds(choice.right, y):
        boxes.append((at - 2, ends[1], at + 2, ends[0]))
    return boxes
