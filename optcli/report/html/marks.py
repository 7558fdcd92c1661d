"""What charts are drawn with: axes, whiskers, markers, labels that keep out of each other's way."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from optcli.report.html import scales
from optcli.report.html.scales import Scale
from optcli.report.html.tags import Markup, join, tag
from optcli.results import Estimate

COLOURS = 8
WIDE, NARROW = 760, 346
# The height of a figure over batch sizes; two of them stand beside each other on wide pages.
HEIGHT, PANEL = 300, 372
# Of the page's font at 12 pixels; a little too wide rather than too narrow.
_CHARACTER = 7.8


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


def level(
    area: Area, x: Scale, name: str, ticks: Sequence[float] | None = None, grid: str = "grid"
) -> list[Markup]:
    """The lower axis with its grid."""
    shapes = []
    for value in x.ticks() if ticks is None else ticks:
        at = x(value)
        shapes.append(line(at, area.top, at, area.bottom, grid))
        shapes.append(text(at, area.bottom + 16, scales.label(value), "middle", "tick"))
    shapes.append(line(area.left, area.bottom, area.right, area.bottom, "axis"))
    shapes.append(text((area.left + area.right) / 2, area.bottom + 34, name, "middle", "axis-name"))
    return shapes


def upright(area: Area, y: Scale) -> list[Markup]:
    """The left axis with its grid."""
    shapes = []
    for value in y.ticks(40):
        at = y(value)
        shapes.append(line(area.left, at, area.right, at, "grid"))
        shapes.append(text(area.left - 7, at + 4, scales.label(value), "end", "tick"))
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
