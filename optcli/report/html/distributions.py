"""Latency of every artifact at one batch size: all timed calls as a curve, percentiles as marks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from optcli.report import wording
from optcli.report.html import marks
from optcli.report.html.marks import Area, Scale, spanning
from optcli.report.html.tags import Markup, join, tag
from optcli.results import Latency, Report

# Milliseconds at evenly spaced probabilities from 0 to 1, by variant and batch size.
Quantiles = Mapping[str, Mapping[int, Sequence[float]]]
_CURVE = 30.0
_ROW = 50.0
# Pixels between two points of a curve, and the widest kernel, so that two modes stay two.
_STEP = 3.0
_WIDEST = 8.0


def distributions(report: Report, batch_size: int, quantiles: Quantiles) -> Markup:
    """One row per variant that was measured at this batch size, all on one axis of milliseconds.

    Variants without samples show their percentiles alone.
    """
    rows = [
        (index, name, row)
        for index, (name, variant) in enumerate(report.variants.items())
        for row in variant.on_host
        if row.batch_size == batch_size
    ]
    calls = {name: list(quantiles.get(name, {}).get(batch_size, ())) for _, name, _ in rows}
    values = [value for times in calls.values() for value in times if value > 0]
    for _, _, row in rows:
        values += marks.ends(row.p50_ms)
        values += [tail.value for tail in (row.p95_ms, row.p99_ms) if tail and tail.value > 0]
    name = f"Distribution of latency at batch size {batch_size}"

    def draw(width: int) -> Markup:
        wide = width == marks.WIDE
        area = Area(150 if wide else 4, width - 12, 8, 8 + len(rows) * (_ROW if wide else _ROW + 14))
        x = spanning(values, area.left, area.right)
        shapes = [*marks.level(area, x, f"milliseconds a call, {'log scale' if x.log else 'linear'}")]
        for place, (index, variant, row) in enumerate(rows):
            bottom = area.top + (place + 1) * (area.bottom - area.top) / len(rows) - 12
            room = (bottom, area.left - 8 if wide else area.right)
            shapes.append(_row(x, room, index, variant, row, calls[variant], above=not wide))
        return marks.picture(width, area.bottom + 40, name, *shapes)

    return join([marks.figure(name, draw), _legend(any(calls.values()))])


def _row(
    x: Scale,
    room: tuple[float, float],
    index: int,
    name: str,
    row: Latency,
    calls: Sequence[float],
    *,
    above: bool,
) -> Markup:
    """The curve over its line, the marks on it; the name left of it, or above it on a phone."""
    y, width = room
    shown = marks.shortened(name, width)
    label = marks.text(width, y, shown, "end", "name")
    if above:
        label = marks.text(4, y - _CURVE - 4, shown, kind="name")
    parts: list[Markup] = []
    if len(calls) > 1:
        ends = f"{wording.number(calls[0])} to {wording.number(calls[-1])} ms"
        about = tag("title", f"{name}: {row.samples} calls, {ends}")
        parts.append(tag("g", about, _curve(x, y, calls)))
    parts += _marks(x, y, index, name, row)
    return join([label, marks.series(index, *parts)])


def _marks(x: Scale, y: float, index: int, name: str, row: Latency) -> Iterator[Markup]:
    ends = marks.bounds(row.p50_ms, x)
    if ends:
        yield marks.line(ends[0], y, ends[1], y, "interval")
    for label, estimate in (("p50", row.p50_ms), ("p95", row.p95_ms), ("p99", row.p99_ms)):
        if estimate is None:
            continue
        at = x(estimate.value)
        title = tag("title", f"{name}, {label} {wording.with_interval(estimate)}")
        if label == "p50":
            yield tag("circle", title, cx=at, cy=y, r=5, class_="solid")
        elif label == "p95":
            yield tag("circle", title, cx=at, cy=y, r=4, class_="hollow")
        else:
            yield tag("path", title, d=f"M{at:.1f} {y - 6:.1f}V{y + 6:.1f}", class_="p99")


def _curve(x: Scale, y: float, calls: Sequence[float]) -> Markup:
    """The density of the calls along the axis, as high as the row whatever its peak."""
    heights = density([x(value) for value in calls])
    top = max(height for _, height in heights)
    curve = [(at, y - _CURVE * height / top) for at, height in heights]
    return marks.path([(curve[0][0], y), *curve, (curve[-1][0], y)], "area", closed=True)


def density(pixels: Sequence[float]) -> list[tuple[float, float]]:
    """A Gaussian kernel estimate along an axis: positions, a few pixels apart, and heights.

    The kernel's width is Silverman's rule of thumb (Density Estimation, 1986, equation 3.31) with the
    smaller of standard deviation and quartiles' range, between two and eight pixels.
    """
    count, ordered = len(pixels), sorted(pixels)
    mean = sum(pixels) / count
    deviation = math.sqrt(sum((each - mean) ** 2 for each in pixels) / count)
    quartiles = (ordered[(3 * count) // 4] - ordered[count // 4]) / 1.34
    width = 0.9 * min(deviation, quartiles or deviation) * count**-0.2
    width = min(_WIDEST, max(2.0, width))
    reach = 3 * width
    start = ordered[0] - reach
    heights = [0.0] * (int((ordered[-1] + reach - start) / _STEP) + 2)
    for each in ordered:
        first = math.ceil((each - reach - start) / _STEP)
        for index in range(max(0, first), int((each + reach - start) / _STEP) + 1):
            heights[index] += math.exp(-0.5 * ((start + index * _STEP - each) / width) ** 2)
    return [(start + index * _STEP, height) for index, height in enumerate(heights)]


def _legend(with_curves: bool) -> Markup:
    signs = [
        (tag("circle", cx=10, cy=7, r=5, class_="solid"), "p50"),
        (marks.line(0, 7, 20, 7, "interval"), "its 95 % interval"),
        (tag("circle", cx=10, cy=7, r=4, class_="hollow"), "p95"),
        (tag("path", d="M10 1V13", class_="p99"), "p99"),
    ]
    if with_curves:
        shape = marks.path([(0, 12), (6, 11), (10, 2), (14, 11), (20, 12)], "area", closed=True)
        signs.append((shape, "all calls: the higher, the more of them"))
    return marks.signs(signs, 20, "legend plain")
