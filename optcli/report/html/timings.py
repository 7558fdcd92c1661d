"""Where a build's time went: a bar for each step and each phase."""

from __future__ import annotations

from dataclasses import dataclass

from optcli.errors import counted
from optcli.report import wording
from optcli.report.html import marks
from optcli.report.html.marks import Area
from optcli.report.html.scales import from_zero
from optcli.report.html.tags import Markup, join, tag
from optcli.results import Report

_MOST_BARS = 16
_PHASES = {
    "data": "reading and preparing data",
    "latency": "measuring latency",
    "sweep": "measuring over batch sizes",
    "accuracy": "judging accuracy",
}


@dataclass(frozen=True)
class Bar:
    """One thing that took time: a step, or a phase of the whole build."""

    name: str
    seconds: float
    failed: bool = False


def timings(report: Report) -> Markup:
    """The chart, and what came from the store; where nothing ran, what each variant once took."""
    bars, reused = _bars(report)
    total = wording.seconds(report.started, report.finished)
    took = "" if total is None else f"The build took {wording.duration(total)}. "
    kept = f"{counted(reused, 'step')} came from the store." if reused else ""
    if not bars:
        bars = [Bar(name, each.build_s) for name, each in report.variants.items() if each.build_s]
        bars.sort(key=lambda bar: -bar.seconds)
        kept += " The bars say what it once took to make each variant." if bars else ""
    hint = tag("p", took + kept, class_="hint") if took or kept else None
    if not bars:
        return join([hint])
    shown = bars[:_MOST_BARS]
    rest = bars[_MOST_BARS:]
    if rest:
        shown.append(Bar(f"{len(rest)} shorter ones", sum(bar.seconds for bar in rest)))

    return join([marks.figure("Where the build's time went", lambda width: _draw(width, shown)), hint])


def _bars(report: Report) -> tuple[list[Bar], int]:
    """Steps that ran, each once, and phases; how many steps were in the store already."""
    steps: dict[str, Bar] = {}
    reused = set()
    for name, variant in report.variants.items():
        for number, step in enumerate(variant.steps):
            if step.seconds is not None:
                # The source comes first, and is that of all variants.
                label = step.name if number == 0 else f"{name} › {step.name}"
                steps.setdefault(step.key, Bar(label, step.seconds, step.status == "failed"))
            elif step.status == "cached":
                reused.add(step.key)
    phases = [
        Bar(_PHASES[name], seconds)
        for name, seconds in report.took_s.items()
        if name in _PHASES and seconds >= 0.1
    ]
    bars = [*steps.values(), *phases]
    return sorted(bars, key=lambda bar: -bar.seconds), len(reused)


def _draw(width: int, bars: list[Bar]) -> Markup:
    wide = width == marks.WIDE
    left = 230.0 if wide else 0.0
    row = 26.0 if wide else 42.0
    area = Area(left, width - 78, 4, 4 + row * len(bars))
    x = from_zero([bar.seconds for bar in bars], area.left, area.right)
    shapes = []
    for place, bar in enumerate(bars):
        top = area.top + place * row
        length = max(2.0, x(bar.seconds) - area.left)
        name = marks.shortened(bar.name, left - 12 if wide else width - 10)
        at = (left - 8, top + 15, "end") if wide else (0, top + 12, "start")
        shapes.append(marks.text(at[0], at[1], name, at[2], "name"))
        y = top + (2 if wide else 18)
        about = tag("title", f"{bar.name}: {wording.duration(bar.seconds)}")
        kind = "bar failed" if bar.failed else "bar"
        shapes.append(tag("rect", about, x=area.left, y=y, width=length, height=18, rx=3, class_=kind))
        took = wording.duration(bar.seconds) + (" (failed)" if bar.failed else "")
        shapes.append(marks.text(area.left + length + 6, y + 13, took, kind="tick"))
    return marks.picture(width, area.bottom + 4, "Where the build's time went", *shapes)
