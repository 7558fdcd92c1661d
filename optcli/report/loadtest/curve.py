"""The operating curve of a load test: what was predicted, and what was measured."""

from __future__ import annotations

from optcli.report import wording
from optcli.report.html import marks
from optcli.report.html.marks import Area
from optcli.report.html.scales import from_zero
from optcli.report.html.tags import Markup, join
from optcli.results.loadtest import LoadPoint, LoadTest

_HEIGHT = 340
# A percentile far over the promise would flatten everything below it.
_MOST_OVER = 2.5


def curve(test: LoadTest) -> Markup:
    """Lines are predicted, points measured; empty where no load has the percentile."""
    if all(_value(point, test.drawn) is None for point in test.points):
        return Markup()
    name = f"{test.drawn} against the rate"
    names = [(index, f"predicted by the {by}") for index, by in enumerate(test.curve_ms)]
    names.append((len(names), "measured"))
    return join([marks.figure(name, lambda width: _drawn(width, test, name)), marks.legend(names)])


def _drawn(width: int, test: LoadTest, name: str) -> Markup:
    area = Area(52, width - 14, 32, _HEIGHT - 40)
    limit = test.slo_ms.get(test.drawn)
    measured = [point for point in test.points if _value(point, test.drawn) is not None]
    rates = [point.rate_per_s for point in test.points]
    rates += [rate for line in test.curve_ms.values() for rate, _ in line]
    values = [_value(point, test.drawn) or 0.0 for point in measured]
    values += [ms for line in test.curve_ms.values() for _, ms in line if ms is not None]
    top = max(values)
    if limit is not None:
        top = max(limit, min(top, _MOST_OVER * limit))
    x = from_zero(rates, area.left, area.right)
    y = from_zero([top], area.bottom, area.top)
    shapes = marks.axes(area, x, y, "requests a second", f"{test.drawn}, milliseconds")
    if limit is not None:
        shapes += [
            marks.line(area.left, y(limit), area.right, y(limit), "budget"),
            marks.text(area.right, 14, f"promised {limit:g} ms", "end", "budget-name"),
        ]
    for index, line in enumerate(test.curve_ms.values()):
        points = [(x(rate), y(ms)) for rate, ms in line if ms is not None]
        if len(points) > 1:
            shapes.append(marks.series(index, marks.path(points, "curve")))
    own = []
    for point in measured:
        value, at = _value(point, test.drawn) or 0.0, x(point.rate_per_s)
        ends = marks.bounds(getattr(point, f"{test.drawn}_ms"), y)
        if ends is not None:
            own.append(marks.whisker(at, ends, level=False))
        told = (
            f"{wording.number(point.rate_per_s)} a second: {test.drawn} {value:.4g} ms, {point.reason}"
        )
        own.append(
            marks.marker(len(test.curve_ms), at, y(value), told, hollow=point.outcome != "accept")
        )
    shapes.append(marks.series(len(test.curve_ms), *own))
    return marks.picture(width, _HEIGHT, name, *shapes)


def _value(point: LoadPoint, name: str) -> float | None:
    estimate = getattr(point, f"{name}_ms")
    return None if estimate is None else float(estimate.value)
