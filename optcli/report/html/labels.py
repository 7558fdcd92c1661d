"""Names beside the points of a chart, where they hide neither a mark nor each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from optcli.report.html import marks
from optcli.report.html.marks import Area
from optcli.report.html.tags import Markup, join

# Left, upper, right and lower edge, in pixels.
Box = tuple[float, float, float, float]
_LONGEST = 150.0
_LIFTS = (0, -16, 16, -30, 30, -44, 44, -58, 58, -72, 72)


def beside(
    places: Sequence[tuple[float, float]], names: Sequence[str], area: Area, occupied: Sequence[Box]
) -> list[Markup]:
    """A name beside each point, where it covers least of what is there; far ones with a leader.

    `places` are pixels, `taken` is room that lines have already; the points' own is added.
    """
    full = [*occupied, *((at - 6, y - 6, at + 6, y + 6) for at, y in places)]
    labels = []
    for (at, y), name in zip(places, names, strict=True):
        shown = marks.shortened(name, _LONGEST)
        offers = list(_offers(at, y, shown))
        inside = [each for each in offers if _fits(each.box, area)] or offers
        best = min(inside, key=lambda each: sum(_overlap(each.box, other) for other in full))
        full.append(best.box)
        far = abs(best.base - y - 4) > 20
        leader = marks.line(at, y, best.left, best.base - 4, "leader") if far else None
        labels.append(join([leader, marks.text(best.left, best.base, shown, best.anchor, "name halo")]))
    return labels


@dataclass(frozen=True)
class _Offer:
    """One place for a text: where its anchor stands, and the room it takes there."""

    left: float
    base: float
    anchor: str
    box: Box


def _offers(at: float, y: float, shown: str) -> Iterator[_Offer]:
    wide = marks.width_of(shown)
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
