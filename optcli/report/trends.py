"""The gate's history: a row for each figure, and in HTML a chart."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from optcli.report import wording
from optcli.report.html import marks
from optcli.report.html.marks import Area, Dot
from optcli.report.html.tags import Markup
from optcli.results.document import Cell, Chart, Column, Document, Section, Table
from optcli.results.gate import HistoryEntry, Trend

_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 40


def document(trends: Sequence[Trend]) -> Document:
    """The latest value of each figure, a spark line or a chart, and where it changed."""
    columns = [
        Column[Trend]("recipe", lambda each: Cell(each.recipe), align="left"),
        Column[Trend]("figure", lambda each: Cell(each.name), align="left"),
        Column[Trend]("machine", lambda each: Cell(each.machine[:8]), align="left"),
        Column[Trend]("runs", lambda each: Cell(str(len(each.entries)))),
        Column[Trend]("latest", lambda each: Cell(wording.figure(each.entries[-1].value, each.unit))),
        Column[Trend](
            "trend", lambda each: Cell(spark([entry.value for entry in each.entries])), align="left"
        ),
        Column[Trend]("changed", lambda each: Cell(_changed(each)), align="wrapped"),
    ]
    charts = [
        Section(f"{each.recipe}: {each.name}", [_picture(each)], f"On machine {each.machine[:8]}.")
        for each in trends
    ]
    return Document(
        title="History of the gate",
        sections=[Section("", [Table(columns, trends)]), *charts],
        answer="" if trends else "the history has no such figure",
        footer=[_INFORMS] if trends else [],
    )


def _picture(trend: Trend) -> Chart:
    return Chart(lambda: marks.figure(trend.name, lambda width: _chart(trend, width)))


def _changed(trend: Trend) -> str:
    """Where the figure changed and stayed so; a trend that cannot be told yet is not called "no"."""
    if not trend.enough:
        runs = f"{len(trend.entries)} of {trend.fewest} runs"
        change = "" if trend.change is None else f": {100 * trend.change:+.1f} % since the first"
        return f"cannot tell yet, {runs}{change}"
    steps = "; ".join(_step(trend, step) for step in trend.steps)
    if trend.latest is None and trend.earliest is not None:
        return f"cannot tell: the first run is {100 * trend.earliest:+.1f} % off the later ones"
    if trend.latest is None:
        return steps or "no"
    last = f"cannot tell yet: the last run {100 * trend.latest:+.1f} %"
    return f"{steps}; {last}" if steps else last


_INFORMS = "For information: the runs were measured at different times. Machines are kept apart."


def spark(values: Sequence[float]) -> str:
    """The last 40 values as bars, from the least to the largest of them."""
    shown = values[-_MOST_BARS:]
    low, high = min(shown), max(shown)
    if high <= low:
        return _BARS[0] * len(shown)
    top = len(_BARS) - 1
    return "".join(_BARS[round((value - low) / (high - low) * top)] for value in shown)


def _chart(trend: Trend, width: int) -> Markup:
    scale, unit = {"bytes": (1e-6, "MB"), "fraction": (100.0, "%")}.get(trend.unit, (1.0, "ms"))
    values = [entry.value * scale for entry in trend.entries]
    height = 220
    area = Area(56, width - 16, 34, height - 40)
    x = marks.spanning(range(1, len(values) + 1), area.left, area.right, log=False)
    y = marks.spanning(values, area.bottom, area.top)
    drawn = [*marks.axes(area, x, y, "run of the gate", unit)]
    for step in trend.steps:
        at = x(step + 0.5)
        drawn.append(marks.line(at, area.top, at, area.bottom, "budget"))
        growth = f"{100 * trend.growth(step):+.1f} %"
        drawn.append(marks.text(at, area.top - 6, growth, "middle", kind="budget-name"))
    points = [
        Dot(number, value, _entry_text(entry))
        for number, (value, entry) in enumerate(zip(values, trend.entries, strict=True), 1)
    ]
    drawn.append(marks.dots(0, x, y, points))
    return marks.picture(width, height, trend.name, *drawn)


def _entry_text(entry: HistoryEntry) -> str:
    commit = f", commit {entry.commit[:10]}" if entry.commit else ""
    return f"{entry.at[:16]}: {wording.figure(entry.value, entry.unit)}{commit}"


def _step(trend: Trend, step: int) -> str:
    entry = trend.entries[step]
    commit = f" at {entry.commit[:8]}" if entry.commit else ""
    return f"{100 * trend.growth(step):+.1f} % since {_day(entry.at)}{commit}"


def _day(at: str) -> str:
    try:
        return datetime.fromisoformat(at).date().isoformat()
    except ValueError:
        return at
