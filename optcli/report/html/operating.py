"""The operating curve: latency and throughput against the batch size, the budget drawn in."""

from __future__ import annotations

from collections.abc import Sequence

from optcli.report import wording
from optcli.report.html import marks
from optcli.report.html.curves import Budget, Curve, budget_of, curves_of, largest, sizes_of
from optcli.report.html.marks import HEIGHT, PANEL, Area
from optcli.report.html.scales import Scale, from_zero, spanning
from optcli.report.html.tags import Markup, join, tag
from optcli.report.sweep_text import sentences
from optcli.results import Report, SweepFit


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
            lambda width: _latency(min(width, PANEL), curves, percentile, budget),
        ),
        marks.figure(
            "Throughput against batch size",
            lambda width: _throughput(min(width, PANEL), curves, budget),
        ),
    )
    names = marks.legend([(curve.index, curve.name) for curve in curves])
    return join([tag("div", *panels, class_="pair"), names, _said(report, curves, budget)])


def _latency(width: int, curves: Sequence[Curve], percentile: str, budget: Budget | None) -> Markup:
    area = Area(44, width - 14, 32, HEIGHT - 40)
    sizes = sizes_of(curves)
    x = spanning(sizes, area.left + 8, area.right - 4, log=True)
    values = [value for curve in curves for _, ms in curve.known for value in marks.ends(ms)]
    y = spanning([*values, *([budget.limit_ms] if budget else [])], area.bottom, area.top)
    shapes = marks.over_sizes(area, x, y, sizes, f"{percentile}, milliseconds")
    if budget:
        shapes += marks.bound(area, y, budget.limit_ms, f"budget {budget.limit_ms:g} ms")
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
    return marks.picture(width, HEIGHT, f"{percentile} against batch size", *shapes)


def _throughput(width: int, curves: Sequence[Curve], budget: Budget | None) -> Markup:
    area = Area(44, width - 14, 32, HEIGHT - 40)
    sizes = sizes_of(curves)
    x = spanning(sizes, area.left + 8, area.right - 4, log=True)
    values = [point.throughput_per_s for curve in curves for point in curve.points]
    y = spanning(values, area.bottom, area.top)
    y = y if y.log else from_zero(values, area.bottom, area.top)
    shapes = marks.over_sizes(area, x, y, sizes, "images a second")
    for curve in curves:
        line = [(x(point.batch_size), y(point.throughput_per_s)) for point in curve.points]
        parts = [marks.path(line, "curve")]
        for point, (at, height) in zip(curve.points, line, strict=True):
            rate = wording.number(point.throughput_per_s)
            tooltip = f"{curve.name}, batch {point.batch_size}: {rate} images a second"
            hollow = not point.inside(budget)
            parts.append(marks.marker(curve.index, at, height, tooltip, hollow=hollow))
        shapes.append(marks.series(curve.index, *parts))
    return marks.picture(width, HEIGHT, "Throughput against batch size", *shapes)


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
