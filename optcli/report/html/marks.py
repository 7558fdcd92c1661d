"""What charts are drawn with: scales, axes, whiskers, markers, and labels that do not overlap."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from optcli.report.html.tags import Markup, join, tag
from optcli.results import Estimate

COLOURS = 8
WIDE, NARROW = 760, 346
# The height of a figure over batch sizes; two of them stand beside each other on wide pages.
HEIGHT, PANEL = 300, 372
# Of the page's font at 12 pixels; a little too wide rather than too narrow.
_CHARACTER = 7.8
# Left, upper, right and lower edge, in pixels.
Box = tuple[float, float, float, float]
_LONGEST = 150.0
_LIFTS = (0, -16, 16, -30, 30, -44, 44, -58, 58, -72, 72)
# A percentile far over the promise would flatten everything below it.
_MOST_OVER = 2.5
# From this ratio of largest to smallest on, a logarithmic axis shows more than a linear one.
_LARGE_RANGE = 8.0
_ROUND = (1.0, 2.0, 5.0)


@dataclass(frozen=True)
class Area:
    """Where data are drawn, in pixels from the upper left corner of the figure."""

    left: float
    right: float
    top: float
    bottom: float


def figure(name: str, draw: Callable[[int], Markup]) -> Markup:
    """A drawing twice, for wide pages and for phones: text in a picture that shrinks is unreadable."""
    return tag(
        "figure",
        tag("div", draw(WIDE), class_="wide"),
        tag("div", draw(NARROW), class_="narrow"),
        aria_label=name,
    )


def picture(width: float, height: float, name: str, *children: object) -> Markup:
    """An SVG of fixed size, with a name for those who cannot see it."""
    return tag(
        "svg",
        tag("title", name),
        join(children),  # type: ignore[arg-type]
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        width=width,
        height=height,
        role="img",
    )


def text(x: float, y: float, content: str, anchor: str = "start", kind: str = "") -> Markup:
    """One line of text; `anchor` is start, middle or end."""
    return tag("text", content, x=x, y=y, text_anchor=anchor, class_=kind or None)


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    """A straight line of a CSS class."""
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def path(points: Iterable[tuple[float, float]], kind: str, *, closed: bool = False) -> Markup:
    """Straight lines through points."""
    steps = " L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return tag("path", d=f"M{steps}{'Z' if closed else ''}", class_=kind)


def axes(area: Area, x: Scale, y: Scale, x_name: str, y_name: str) -> list[Markup]:
    """Grid, ticks and names of both axes; the name of the upright one lies above it."""
    return [
        *upright(area, y),
        *level(area, x, x_name),
        text(0, area.top - 12, y_name, kind="axis-name"),
    ]


def over_sizes(area: Area, x: Scale, y: Scale, sizes: Sequence[int], y_name: str) -> list[Markup]:
    """The same of a figure over batch sizes; not every size has room for its tick."""
    step = max(1, -(-len(sizes) // 8))
    log = " (log scale)" if y.log else ""
    return [
        *upright(area, y),
        *level(area, x, "batch size", [float(size) for size in sizes[::step]], "grid faint"),
        text(0, 14, f"{y_name}{log}", kind="axis-name"),
    ]


def bound(area: Area, y: Scale, limit: float, name: str) -> list[Markup]:
    """A line that values should stay below, with its name and its sign above the figure."""
    at, left = y(limit), area.right - 1.15 * width_of(name) - 26
    return [
        line(area.left, at, area.right, at, "budget"),
        text(area.right, 14, name, "end", "budget-name"),
        line(left, 10, left + 18, 10, "budget"),
    ]


def up_to_promise(area: Area, values: Sequence[float], limit: float | None) -> Scale:
    """An upright scale from zero to the largest value, but not far beyond a promise.

    Markers of larger values stop at the edge.
    """
    top = max(values, default=1.0)
    if limit is not None:
        top = max(limit, min(top, _MOST_OVER * limit))
    return from_zero([top], area.bottom, area.top)


def promise(area: Area, y: Scale, limit: float | None) -> list[Markup]:
    """The line of a promised latency; nothing where none is promised."""
    return [] if limit is None else bound(area, y, limit, f"promised {limit:g} ms")


def level(
    area: Area, x: Scale, name: str, ticks: Sequence[float] | None = None, grid: str = "grid"
) -> list[Markup]:
    """The lower axis with its grid."""
    shapes = []
    for value in x.ticks() if ticks is None else ticks:
        at = x(value)
        shapes.append(line(at, area.top, at, area.bottom, grid))
        shapes.append(text(at, area.bottom + 16, label(value), "middle", "tick"))
    shapes.append(line(area.left, area.bottom, area.right, area.bottom, "axis"))
    shapes.append(text((area.left + area.right) / 2, area.bottom + 34, name, "middle", "axis-name"))
    return shapes


def upright(area: Area, y: Scale) -> list[Markup]:
    """The left axis with its grid."""
    shapes = []
    for value in y.ticks(40):
        at = y(value)
        shapes.append(line(area.left, at, area.right, at, "grid"))
        shapes.append(text(area.left - 7, at + 4, label(value), "end", "tick"))
    return shapes


def whisker(at: float, ends: tuple[float, float], *, level: bool) -> Markup:
    """A 95 % interval through `at`, the pixel on the other axis."""
    low, high = ends
    if level:
        return path([(low, at), (high, at)], "whisker")
    caps = [path([(at - 3, end), (at + 3, end)], "whisker") for end in ends]
    return join([path([(at, low), (at, high)], "whisker"), *caps])


def bounds(estimate: Estimate, scale: Scale) -> tuple[float, float] | None:
    """The pixels of an interval's ends; None where there is no interval."""
    if estimate.low is None or estimate.high is None:
        return None
    return scale(estimate.low), scale(estimate.high)


def ends(estimate: Estimate) -> list[float]:
    """The value and the ends of its interval, as far as they are known and above zero."""
    return [end for end in (estimate.value, estimate.low, estimate.high) if end is not None and end > 0]


def marker(index: int, x: float, y: float, name: str, *, hollow: bool = False) -> Markup:
    """The sign of the series `index`: a shape beside its colour, with a tooltip."""
    kind = "hollow" if hollow else "solid"
    corners = (None, 4, 3, -3, -4)[index % 5]
    if corners is None:
        return tag("circle", tag("title", name), cx=x, cy=y, r=4.5, class_=kind)
    size = {4: 5.8, 3: 5.8, -3: 5.8, -4: 6.0}[corners]
    # A square stands on its side, a diamond on its corner; a triangle up, or down.
    turn = {4: 45.0, 3: -90.0, -3: 90.0, -4: 0.0}[corners]
    count = abs(corners)
    points = " ".join(
        f"{x + size * math.cos(math.radians(turn + 360 * k / count)):.1f},"
        f"{y + size * math.sin(math.radians(turn + 360 * k / count)):.1f}"
        for k in range(count)
    )
    return tag("polygon", tag("title", name), points=points, class_=kind)


@dataclass(frozen=True)
class Dot:
    """One point of a series, with its tooltip; its sign is `hollow` or filled."""

    x: float
    y: float
    name: str
    hollow: bool = False
    interval: Estimate | None = None


def dots(
    index: int, x: Scale, y: Scale, points: Sequence[Dot], *, aside: float = 0.0, joined: bool = True
) -> Markup:
    """A series of points with their intervals, joined by a line, so many pixels `aside`."""
    places = [(x(each.x) + aside, y(each.y)) for each in points]
    shapes = [path(places, "curve")] if joined and len(places) > 1 else []
    for each, (at, height) in zip(points, places, strict=True):
        if each.interval is not None and (span := bounds(each.interval, y)):
            shapes.append(whisker(at, span, level=False))
        shapes.append(marker(index, at, height, each.name, hollow=each.hollow))
    return series(index, *shapes)


def series(index: int, *children: Markup) -> Markup:
    """A group in the colour of a series."""
    return tag("g", *children, class_=f"s{index % COLOURS}")


def legend(names: Sequence[tuple[int, str]]) -> Markup:
    """Which sign stands for which variant."""
    return signs([(series(index, marker(index, 7, 7, name)), name) for index, name in names], 14)


def signs(named: Iterable[tuple[Markup, str]], width: int, kind: str = "legend") -> Markup:
    """A legend: what each sign stands for; signs are drawn in so many pixels by 14."""
    entries = []
    for sign, name in named:
        box = f"0 0 {width} 14"
        drawn = tag("svg", sign, viewBox=box, width=width, height=14, aria_hidden="true")
        entries.append(tag("li", drawn, " ", name))
    return tag("ul", *entries, class_=kind)


def width_of(content: str) -> float:
    """About how wide a text is, in pixels."""
    return _CHARACTER * len(content)


def shortened(content: str, room: float) -> str:
    """A text that fits into so many pixels, its middle left out."""
    most = max(4, int(room / _CHARACTER))
    if len(content) <= most:
        return content
    head = (most - 1) // 2
    return f"{content[: most - 1 - head]}…{content[len(content) - head :]}"


def name_labels(
    places: Sequence[tuple[float, float]], names: Sequence[str], area: Area, occupied: Sequence[Box]
) -> list[Markup]:
    """A name beside each point, where it covers least of what is there; far ones with a leader.

    `places` are pixels, `taken` is room that lines have already; the points' own is added.
    """
    full = [*occupied, *((at - 6, y - 6, at + 6, y + 6) for at, y in places)]
    labels = []
    for (at, y), name in zip(places, names, strict=True):
        shown = shortened(name, _LONGEST)
        offers = list(_offers(at, y, shown))
        inside = [each for each in offers if _fits(each.box, area)] or offers
        best = min(inside, key=lambda each: sum(_overlap(each.box, other) for other in full))
        full.append(best.box)
        distant = abs(best.base - y - 4) > 20
        leader = line(at, y, best.left, best.base - 4, "leader") if distant else None
        labels.append(join([leader, text(best.left, best.base, shown, best.anchor, "name halo")]))
    return labels


@dataclass(frozen=True)
class _Offer:
    """One place for a text: where its anchor stands, and the room it takes there."""

    left: float
    base: float
    anchor: str
    box: Box


def _offers(at: float, y: float, shown: str) -> Iterator[_Offer]:
    wide = width_of(shown)
    for lift in _LIFTS:
        base = y + 4 + lift
        yield _Offer(at + 9, base, "start", (at + 9, base - 11, at + 9 + wide, base + 3))
        yield _Offer(at - 9, base, "end", (at - 9 - wide, base - 11, at - 9, base + 3))


def _fits(box: Box, area: Area) -> bool:
    return (
        box[0] >= area.left
        and box[2] <= area.right
        and box[1] >= area.top - 8
        and box[3] <= area.bottom
    )


def _overlap(one: Box, other: Box) -> float:
    wide = min(one[2], other[2]) - max(one[0], other[0])
    high = min(one[3], other[3]) - max(one[1], other[1])
    return wide * high if wide > 0 and high > 0 else 0.0


@dataclass(frozen=True)
class Scale:
    """Maps `low`..`high` to the pixels `start`..`end`; `end` may lie left of or above `start`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value; what lies outside is put at the edge."""
        low, high, at = self._on_axis(self.low), self._on_axis(self.high), self._on_axis(value)
        share = min(1.0, max(0.0, (at - low) / (high - low)))
        return self.start + share * (self.end - self.start)

    def value(self, share: float) -> float:
        """The value at a share (0..1) of the axis."""
        low, high = self._on_axis(self.low), self._on_axis(self.high)
        at = low + share * (high - low)
        return math.exp(at) if self.log else at

    def ticks(self, apart: float = 64.0) -> list[float]:
        """Round values, on average at least `apart` pixels from each other."""
        most = max(2, int(abs(self.end - self.start) / apart))
        if not self.log:
            return _linear_ticks(self.low, self.high, most)
        return _log_ticks(self.low, self.high, most)

    def _on_axis(self, value: float) -> float:
        return math.log(max(value, 1e-300)) if self.log else value


def spanning(values: Iterable[float], start: float, end: float, *, log: bool | None = None) -> Scale:
    """A scale over all values with a little room at both ends; `log` None decides by their range."""
    finite = [value for value in values if math.isfinite(value)] or [1.0]
    low, high = min(finite), max(finite)
    if log is None:
        log = low > 0 and high / low > _LARGE_RANGE
    if log:
        room = max(1.06, (high / low) ** 0.04)
        return Scale(low / room, high * room, start, end, log=True)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return Scale(low - room, high + room, start, end)


def from_zero(values: Iterable[float], start: float, end: float) -> Scale:
    """A linear scale from zero to a little above the largest value."""
    return Scale(0.0, 1.06 * max([*values, 0.0]) or 1.0, start, end)


def label(value: float) -> str:
    """A tick's text: `0.05`, `1`, `250`, `20k`, `1.5M`."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale * (10 if unit == "k" else 1):
            return f"{value / scale:.3g}{unit}"
    return f"{value:.6g}"


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    size = 10 ** math.floor(math.log10((high - low) / most))
    step = next(size * each for each in (1, 2, 5, 10, 20) if (high - low) / (size * each) <= most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: Sequence[float] = ()
    for factors in (_ROUND, (1.0, 3.0), (1.0,)):
        every = [float(f"{factor}e{decade}") for decade in decades for factor in factors]
        ticks = [value for value in every if low <= value <= high]
        if len(ticks) <= most:
            break
    if len(ticks) < 2:
        return _linear_ticks(low, high, min(most, 4))
    step = -(-len(ticks) // most)
    return list(ticks[::step])
