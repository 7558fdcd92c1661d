"""The operating curve: latency and throughput against the batch size, the budget drawn in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optcli.report import wording
from optcli.report.html import marks
from optcli.report.html.curves import Budget, Curve, budget_of, curves_of, largest, sizes_of
from optcli.report.html.marks import Area
from optcli.report.html.scales import Scale, from_zero, spanning
from optcli.report.html.tags import Markup, join, tag
from optcli.report.sweep_text import sentences
from optcli.results import Report, SweepFit

_HEIGHT = 300
# Two of them stand beside each other on wide pages.
_PANEL = 372


def operating(report: Report) -> Markup | None:
    """Both curves of every variant; None where fewer than two batch sizes were measured.

    A variant's sweep is drawn where it has one, else what the table has. With a budget, latency is
    the percentile that the budget bounds, else p50, also where there are too few calls for that one.
    """
    budget = budget_of(report)
    curves = curves_of(report, budget.percentile) if budget else []
    if len({point.batch_size for curve in curves for point, _ in curve.known}) < 2:
        budget, curves = None, curves_of(report, "p50")
    if len(sizes_of(curves)) < 2:
        return None
    percentile = budget.percentile if budget else "p50"

    panels = (
        marks.figure(
            f"{percentile} against batch size",
            lambda width: _latency(min(width, _PANEL), curves, percentile, budget),
        ),
        marks.figure(
            "Throughput against batch size",
            lambda width: _throughput(min(width, _PANEL), curves, budget),
        ),
    )
    names = marks.legend([(curve.index, curve.name) for curve in curves])
    return join([tag("div", *panels, class_="pair"), names, _said(report, curves, budget)])


def _latency(width: int, curves: Sequence[Curve], percentile: str, budget: Budget | None) -> Markup:
    area = Area(44, width - 14, 32, _HEIGHT - 40)
    sizes = sizes_of(curves)
    x = spanning(sizes, area.left + 8, area.right - 4, log=True)
    values = [value for curve in curves for _, ms in curve.known for value in marks.ends(ms)]
    y = spanning([*values, *([budget.limit_ms] if budget else [])], area.bottom, area.top)
    shapes = [*_frame(area, x, y, sizes, f"{percentile}, milliseconds")]
    if budget:
        at = y(budget.limit_ms)
        shapes.append(marks.line(area.left, at, area.right, at, "budget"))
        label = f"budget {budget.limit_ms:g} ms"
        shapes.append(marks.text(area.right, 14, label, "end", "budget-name"))
        left = area.right - 1.15 * marks.width_of(label) - 26
        shapes.append(marks.line(left, 10, left + 18, 10, "budget"))
    for place, curve in enumerate(curves):
        # Curves stand aside by some pixels, so that whiskers of one size do not cover each other.
        aside = (place - (len(curves) - 1) / 2) * min(3.0, 16.0 / len(curves))
        line = [(x(point.batch_size) + aside, y(ms.value)) for point, ms in curve.known]
        parts = [marks.path(line, "curve")] if line else []
        for point, ms in curve.known:
            at = x(point.batch_size) + aside
            if ends := marks.bounds(ms, y):
                parts.append(marks.whisker(at, ends, level=False))
            shown = wording.with_interval(ms)
            tooltip = f"{curve.name}, batch {point.batch_size}: {percentile} {shown}"
            hollow = not point.inside(budget)
            parts.append(marks.marker(curve.index, at, y(ms.value), tooltip, hollow=hollow))
        if curve.line is not None and curve.line.linear:
            parts.append(_fitted(curve.line, x, y, sizes))
        shapes.append(marks.series(curve.index, *parts))
    return marks.picture(width, _HEIGHT, f"{percentile} against batch size", *shapes)


def _throughput(width: int, curves: Sequence[Curve], budget: Budget | None) -> Markup:
    area = Area(44, width - 14, 32, _HEIGHT - 40)
    sizes = sizes_of(curves)
    x = spanning(sizes, area.left + 8, area.right - 4, log=True)
    values = [point.throughput_per_s for curve in curves for point in curve.points]
    y = spanning(values, area.bottom, area.top)
    y = y if y.log else from_zero(values, area.bottom, area.top)
    shapes = [*_frame(area, x, y, sizes, "images a second")]
    for curve in curves:
        line = [(x(point.batch_size), y(point.throughput_per_s)) for point in curve.points]
        parts = [marks.path(line, "curve")]
        for point, (at, height) in zip(curve.points, line, strict=True):
            rate = wording.number(point.throughput_per_s)
            tooltip = f"{curve.name}, batch {point.batch_size}: {rate} images a second"
            hollow = not point.inside(budget)
            parts.append(marks.marker(curve.index, at, height, tooltip, hollow=hollow))
        shapes.append(marks.series(curve.index, *parts))
    return marks.picture(width, _HEIGHT, "Throughput against batch size", *shapes)


def _frame(area: Area, x: Scale, y: Scale, sizes: Sequence[int], name: str) -> Iterator[Markup]:
    yield from marks.upright(area, y)
    step = max(1, -(-len(sizes) // 8))
    yield from marks.level(area, x, "batch size", [float(size) for size in sizes[::step]], "grid faint")
    yield marks.text(0, 14, f"{name}{' (log scale)' if y.log else ''}", kind="axis-name")


def _fitted(line: SweepFit, x: Scale, y: Scale, sizes: Sequence[int]) -> Markup:
    """The fitted line; a curve where the axes are logarithmic."""
    low, high = sizes[0], sizes[-1]
    steps = [low * (high / low) ** (index / 24) for index in range(25)]
    points = [(x(size), y(line.fixed_ms.value + size * line.per_image_ms.value)) for size in steps]
    return marks.path(points, "fitted")


def _said(report: Report, curves: Sequence[Curve], budget: Budget | None) -> Markup:
    """What the budget allows, and what the fits say, in words."""
    lines = []
    drawn = {curve.name: curve for curve in curves}
    for name, variant in report.variants.items():
        sweep = variant.sweep
        if sweep is not None:
            lines += [f"{name}: {sentence}" for sentence in sentences(sweep)]
        elif budget is not None and name in drawn:
            lines.append(f"{name}: {largest(drawn[name], budget)}")
    hint = tag("p", "Hollow: not surely inside the budget.", class_="hint") if budget else None
    if any(curve.line and curve.line.linear for curve in curves):
        hint = tag("p", "Dotted: the line t(B) fitted to a sweep.", class_="hint")
    return join([hint, tag("ul", *(tag("li", line) for line in lines)) if lines else None])
