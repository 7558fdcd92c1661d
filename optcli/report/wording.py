"""Figures and verdicts as words, the same in every form of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime

from optcli.results import Accuracy, Estimate, OutputError, VariantReport, Verdict
from optcli.results.outcomes import POLICIES

NONE = "n/a"
# A number with more characters was not typed: it is a quotient, such as 1/255.
_LONG = 10
# What a multiple is one of, where the objective is not the usual call.
_BETTER = {
    "p99": "as fast by p99",
    "cost": "as cheap",
    "size": "as small",
    "memory": "as small in memory",
}
# Smaller numbers are 0 in six places.
_SHOWN = 0.5e-6


def number(value: float, significant: int = 3) -> str:
    """Three significant digits, never in scientific notation: 0.0512, 1.20, 34.5, 1234.

    Nothing is 0, and so is what six places do not show.
    """
    if abs(value) < _SHOWN or not math.isfinite(value):
        return f"{value if abs(value) >= _SHOWN else 0:g}"
    digits = significant - 1 - math.floor(math.log10(abs(value)))
    return f"{value:.{max(0, min(6, digits))}f}"


def setting(value: object) -> str:
    """A setting as people write it: 0.00392156862745098 is `1/255`, a list its items."""
    if isinstance(value, list | tuple):
        return ", ".join(map(setting, value))
    if isinstance(value, float) and len(repr(value)) > _LONG and 1e-6 < abs(value) < 0.5:
        inverse = round(1 / value)
        return f"1/{inverse}" if value == 1 / inverse else repr(value)
    return str(value)


def milliseconds(estimate: Estimate | None) -> str:
    """The value alone."""
    return NONE if estimate is None else number(estimate.value)


def interval(estimate: Estimate | None) -> str:
    """`[low, high]`, or nothing where there is none."""
    if estimate is None or estimate.low is None or estimate.high is None:
        return ""
    return f"[{number(estimate.low)}, {number(estimate.high)}]"


def with_interval(estimate: Estimate, unit: str = " ms") -> str:
    """`2.31 ms [2.10, 2.52]`: the value in a unit, and its interval where there is one."""
    return f"{number(estimate.value)}{unit} {interval(estimate)}".rstrip()


def half_width(estimate: Estimate | None) -> str:
    """` ±11 %`: the wider half of the interval as a share of the value; nothing where there is none."""
    if estimate is None or estimate.low is None or estimate.high is None or not estimate.value:
        return ""
    half = reach(estimate)
    return f" ±{100 * half:.0f} %" if half >= 0.01 else f" ±{100 * half:.1f} %"


def reach(estimate: Estimate | None) -> float:
    """The wider half of the interval as a share of the value; 0 where there is none."""
    if estimate is None or estimate.low is None or estimate.high is None or not estimate.value:
        return 0.0
    return max(estimate.high - estimate.value, estimate.value - estimate.low) / abs(estimate.value)


def times(estimate: Estimate | None) -> str:
    """How many times as fast: `2.31x`."""
    return NONE if estimate is None else f"{number(estimate.value)}x"


def percent(fraction: float | None) -> str:
    """A fraction as percent with two places."""
    return NONE if fraction is None else f"{100 * fraction:.2f} %"


def points(fraction: float) -> str:
    """A signed difference in points of percent; nothing is no loss: `+0.00`."""
    return f"{round(100 * fraction, 2) + 0.0:+.2f}"


def change(accuracy: Accuracy | None) -> str:
    """The change of accuracy in points of percent: `-0.28`."""
    if accuracy is None or accuracy.drop is None:
        return ""
    # A drop is a loss, whichever way the metric counts.
    points = 100 * accuracy.drop.value * (1 if accuracy.better == "lower" else -1)
    return "0.00" if abs(points) < 0.005 else f"{points:+.2f}"


def difference(error: OutputError | None) -> str:
    """The distance of outputs from the baseline's: decibel, or in words where there is no figure."""
    if error is None:
        return NONE
    if not error.finite:
        return "not finite"
    if error.max_abs == 0:
        return "equal"
    return NONE if error.sqnr_db is None else f"{error.sqnr_db:.1f} dB"


def megabytes(size_bytes: int) -> str:
    """Size in units of 1000: `820 kB`, `12.3 MB`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size_bytes >= scale:
            return f"{number(size_bytes / scale)} {unit}"
    return f"{size_bytes} B"


def figure(value: float, unit: str) -> str:
    """A figure in `ms`, `bytes` or as a `fraction`, which is shown as percent."""
    if unit == "bytes":
        return megabytes(round(value))
    return percent(value) if unit == "fraction" else f"{number(value)} ms"


def verdict(variant: VariantReport, is_baseline: bool) -> tuple[str, str]:
    """The verdicts of a variant in two or three words, and their outcome."""
    if variant.flags and not variant.latency:
        return f"not run: {', '.join(flag.text for flag in variant.flags)}", "inconclusive"
    for outcome in ("reject", "inconclusive"):
        names = [each.name for each in variant.verdicts if each.blocking and each.outcome == outcome]
        if names:
            return f"{outcome}: {', '.join(names)}", outcome
    advice = [
        each
        for each in variant.verdicts
        if not each.blocking and each.outcome != "accept" and each.name not in POLICIES
    ]
    for each in sorted(advice, key=lambda each: (each.name != "outputs", each.outcome != "reject")):
        return _advice(each), "inconclusive"
    return ("baseline" if is_baseline else f"accept{_over_parent(variant)}"), "accept"


def _over_parent(variant: VariantReport) -> str:
    """`, 2.43x over onnx`: what was gained over the variant that it goes on from."""
    advice = next((each for each in variant.verdicts if each.over is not None), None)
    if advice is None or advice.actual is None:
        return ""
    return f", {number(advice.actual)}x over {advice.over}"


def _advice(advice: Verdict) -> str:
    over = advice.over
    if advice.name == "outputs":
        return "outputs far off"
    if not advice.is_speedup:
        return f"{advice.outcome}: {advice.name}"
    if advice.outcome == "reject":
        return f"slower than {over}" if over else "does not pay"
    if advice.actual is None:
        return "not compared"
    return f"no clear gain over {over}" if over else "no clear gain"


def better(objective: str) -> str:
    """What a search's score says: so many times `as fast`, or what else its objective is about."""
    return _BETTER.get(objective, "as fast")


def listed(names: Sequence[str]) -> str:
    """`a, b and c`."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def padded(padded_from: Mapping[int, int]) -> str:
    """`batches of 2 to 7 to 8`: what is padded to a batch size, by that and the smallest of them."""
    ranges = [
        f"{first if first == size - 1 else f'{first} to {size - 1}'} to {size}"
        for size, first in sorted(padded_from.items())
    ]
    return f"batches of {listed(ranges)}" if ranges else ""


def age(then: str, now: str) -> str | None:
    """How long before `now` something was; None where it was less than a minute, or is not known."""
    passed = seconds(then, now)
    if passed is None:
        return None
    for unit, length in (("day", 86400), ("hour", 3600), ("minute", 60)):
        count = int(passed // length)
        if count >= 1:
            return f"{count} {unit}{'s' if count > 1 else ''}"
    return None


def seconds(started: str, finished: str) -> float | None:
    """Seconds between two times in ISO 8601; None where one cannot be read."""
    try:
        return (datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds()
    except (ValueError, TypeError):
        return None


def duration(seconds: float) -> str:
    """`0.4 s`, `12 s`, `3 min 20 s`, `1 h 5 min`."""
    if seconds < 59.5:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def estimate_cells(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """The value and its interval for CSV: `p50_ms`, `p50_low_ms`, `p50_high_ms`."""
    stem, unit = (name[:-3], "_ms") if name.endswith("_ms") else (name, "")
    return {
        name: estimate.value if estimate else None,
        f"{stem}_low{unit}": estimate.low if estimate else None,
        f"{stem}_high{unit}": estimate.high if estimate else None,
    }
