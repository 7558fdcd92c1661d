"""The gate's history: one line per figure in the terminal, one chart per figure in HTML."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from optcli.errors import counted
from optcli.report import wording
from optcli.report.html import marks, scales
from optcli.report.html.document import document, section
from optcli.report.html.marks import Area
from optcli.report.html.tags import Markup, tag
from optcli.report.terminal import plain
from optcli.results.gate import Entry, Trend

_BARS = "▁▂▃▄▅▆▇█"
_MOST_BARS = 40


def text(trends: Sequence[Trend]) -> str:
    """A table for the terminal: the latest value, a spark line, and where it changed."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    if not trends:
        return "the history has no such figure\n"
    grid = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for heading in ("recipe", "figure", "machine", "runs", "latest", "trend", "changed"):
        grid.add_column(heading, justify="right" if heading in ("runs", "latest") else "left")
    for each in trends:
        grid.add_row(
            each.recipe,
            each.name,
            each.machine[:8],
            str(len(each.entries)),
            wording.figure(each.entries[-1].value, each.unit),
            spark([entry.value for entry in each.entries]),
            _changed(each),
        )
    return f"{plain(grid)}\n{_HUMBLE}\n"


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


_HUMBLE = "For information: the runs were measured at different times. Machines are kept apart."


def spark(values: Sequence[float]) -> str:
    """The last 40 values as bars, from the least to the largest of them."""
    shown = values[-_MOST_BARS:]
    low, high = min(shown), max(shown)
    if high <= low:
        return _BARS[0] * len(shown)
    top = len(_BARS) - 1
    return "".join(_BARS[round((value - low) / (high - low) * top)] for value in shown)


def page(trends: Sequence[Trend]) -> str:
    """One self-contained HTML file with a chart per figure."""
    return document(
        "History of the gate",
        tag("header", tag("h1", "History of the gate"), tag("p", _HUMBLE, class_="lead")),
        tag("main", *(_section(each) for each in trends)),
    )


def _section(trend: Trend) -> Markup:
    count = len(trend.entries)
    changed = _changed(trend)
    lead = f"{counted(count, 'run')} on machine {trend.machine[:8]}; changed: {changed}"
    return section(
        f"{trend.recipe}: {trend.name}",
        lead,
        marks.figure(trend.name, lambda width: _chart(trend, width)),
    )


def _chart(trend: Trend, width: int) -> Markup:
    scale, unit = {"bytes": (1e-6, "MB"), "fraction": (100.0, "%")}.get(trend.unit, (1.0, "ms"))
    values = [entry.value * scale for entry in trend.entries]
    height = 220
    area = Area(56, width - 16, 34, height - 40)
    x = scales.spanning(range(1, len(values) + 1), area.left, area.right, log=False)
    y = scales.spanning(values, area.bottom, area.top)
    places = [(x(number), y(value)) for number, value in enumerate(values, 1)]
    drawn = [*marks.axes(area, x, y, "run of the gate", unit)]
    for step in trend.steps:
        at = x(step + 0.5)
        drawn.append(marks.line(at, area.top, at, area.bottom, "budget"))
        growth = f"{100 * trend.growth(step):+.1f} %"
        drawn.append(marks.text(at, area.top - 6, growth, "middle", kind="budget-name"))
    points = [
        marks.marker(0, left, top, _said(entry))
        for (left, top), entry in zip(places, trend.entries, strict=True)
    ]
    drawn.append(tag("g", marks.path(places, "curve"), *points, class_="s0"))
    return marks.picture(width, height, trend.name, drawn)


def _said(entry: Entry) -> str:
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
