"""How much latencies moved, as a picture."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from optcli.report.changes.columns import moved
from optcli.report.changes.model import BatchChange, Comparison, SpeedChange
from optcli.report.html import marks
from optcli.report.html.marks import Area
from optcli.report.html.scales import Scale
from optcli.report.html.tags import Markup

_ROW = 26.0
# At least this factor to both sides: a change of one per cent shall not fill the picture.
_LEAST_RANGE = 1.2


def chart(comparison: Comparison) -> Markup:
    """One row per variant and batch size, the ratio with its interval on a log axis around 1.

    Empty where no ratio is known.
    """
    ratios = [
        (index, variant.name, row, row.p50.ratio)
        for index, variant in enumerate(comparison.variants)
        for row in variant.latency
        if row.p50.ratio is not None
    ]
    if not ratios:
        return Markup()
    ends = [end for _, _, _, ratio in ratios for end in marks.ends(ratio)]
    most = max([_LEAST_RANGE, *(max(value, 1 / value) for value in ends)]) * 1.05
    lines = []
    for index, name, row, _ in ratios:
        where = " on the device" if row.region == "device" else ""
        lines.append((index, f"{name}, batch {row.batch_size}{where}", row))

    return marks.figure("Change of p50", lambda width: _draw(width, lines, most))


def _draw(width: int, lines: Sequence[tuple[int, str, BatchChange]], most: float) -> Markup:
    wide = width == marks.WIDE
    height = _ROW if wide else _ROW + 12
    area = Area(200 if wide else 6, width - 14, 6, 6 + height * len(lines))
    x = Scale(1 / most, most, area.left, area.right, log=True)
    shapes = [*marks.level(area, x, "p50 after / before (log scale)", _ticks(most))]
    shapes.append(marks.line(x(1.0), area.top, x(1.0), area.bottom, "one"))
    for place, (index, name, row) in enumerate(lines):
        y = area.top + (place + 1) * height - 10
        if wide:
            shapes.append(marks.text(area.left - 8, y + 4, marks.shortened(name, 190), "end", "name"))
        else:
            shapes.append(marks.text(4, y - 10, marks.shortened(name, width - 10), kind="name"))
        shapes.append(marks.series(index, *_mark(x, y, index, name, row.p50)))
    return marks.picture(width, area.bottom + 40, "Change of p50", *shapes)


def _mark(x: Scale, y: float, index: int, name: str, change: SpeedChange) -> Iterator[Markup]:
    assert change.ratio is not None
    if ends := marks.bounds(change.ratio, x):
        yield marks.line(ends[0], y, ends[1], y, "interval")
    tooltip = f"{name}: {moved(change.ratio)}, {change.outcome}"
    hollow = change.outcome not in ("faster", "slower")
    yield marks.marker(index, x(change.ratio.value), y, tooltip, hollow=hollow)


def _ticks(most: float) -> list[float]:
    """Round ratios to both sides of 1, at most seven."""
    steps = (1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0, 1000.0)
    right = [step for step in steps if step <= most]
    right = right[-3:] if len(right) > 3 else right
    return sorted([*(float(f"{1 / step:.2g}") for step in right), 1.0, *right])
