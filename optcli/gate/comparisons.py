"""From figures to comparisons: each with its outcome and one sentence that a reviewer understands."""

from __future__ import annotations

import math

from optcli.gate.rule import Decision, Rule
from optcli.results import Estimate, Outcome, Verdict
from optcli.results.gate import Comparison, Metric, Unit
from optcli.settings.gate import GateBar

_UNITS: dict[Metric, Unit] = {
    "accuracy": "fraction",
    "outputs": "fraction",
    "size": "bytes",
    "memory": "bytes",
}
_OUTCOMES: dict[str, Outcome] = {"pass": "accept", "fail": "reject", "inconclusive": "inconclusive"}


def latency(
    metric: Metric,
    batch_size: int,
    baseline_ms: float,
    candidate_ms: float,
    decision: Decision,
    rule: Rule,
    bar: GateBar,
) -> Comparison:
    """A percentile, decided by the sequential rule. `continue` (cut short) counts as inconclusive."""
    outcome = _OUTCOMES.get(decision.answer, "inconclusive")
    return Comparison(
        metric=metric,
        name=metric,
        batch_size=batch_size,
        unit="ms",
        baseline=baseline_ms,
        candidate=candidate_ms,
        change=decision.change,
        limit=bar.limit,
        outcome=outcome,
        blocking=outcome != "inconclusive" or bar.undecided == "blocks",
        improved=decision.improved,
        seems_worse=outcome == "reject" or decision.change.value > bar.limit,
        pairs=decision.pairs,
        pair_changes=decision.growths,
        reason=_sentence(decision, rule, outcome),
    )


def _sentence(decision: Decision, rule: Rule, outcome: Outcome) -> str:
    figures = f"{_growth(decision.change.value, 'slower', 'faster')}{_span(decision.change)}"
    pairs = f"in {decision.pairs} launch pairs"
    if outcome == "reject":
        bar = f"the limit of {_percent(rule.limit)}"
        if decision.change.value < rule.limit:
            bar = f"the {_percent(rule.margin)} that building again explains"
        return f"{figures} {pairs}: more than {bar}"
    if decision.improved:
        return f"improved: {figures} {pairs}"
    if outcome == "accept":
        return f"{figures} {pairs}: within the limit of {_percent(rule.limit)}"
    return f"cannot tell {pairs}: {figures}; {_sure(decision)}; {_bars(rule)}; {_CALMER}"


_CALMER = "a quieter machine or more looks would decide"


def _sure(decision: Decision) -> str:
    """What the bounds that decide leave open; a bound that is not known is not written."""
    least = _growth(decision.low, "slower", "faster") if decision.low > -1 else ""
    most = _growth(decision.high, "slower", "faster") if math.isfinite(decision.high) else ""
    if least and most:
        return f"it is surely between {least} and {most}"
    if most:
        return f"it is surely at most {most}"
    if least:
        return f"it is surely at least {least}"
    return "these are too few pairs for any bound"


def _bars(rule: Rule) -> str:
    return (
        f"it passes once it is surely less than {_percent(rule.limit)} slower, and fails once it is"
        f" surely more than {_percent(rule.margin)} slower"
    )


def reported(metric: Metric, batch_size: int, baseline_ms: float, candidate_ms: float) -> Comparison:
    """A percentile for information."""
    growth = candidate_ms / baseline_ms - 1
    return Comparison(
        metric=metric,
        name=metric,
        batch_size=batch_size,
        unit="ms",
        baseline=baseline_ms,
        candidate=candidate_ms,
        change=Estimate(value=growth),
        outcome="accept",
        blocking=False,
        reason=f"{_growth(growth, 'slower', 'faster')}; reported, not judged",
    )


def not_compared(
    metric: Metric, why: str, batch_size: int | None = None, *, blocks: bool = True
) -> Comparison:
    """A figure that cannot be compared, here and now; inconclusive where it had to be (`blocks`)."""
    return Comparison(
        metric=metric,
        name=metric,
        batch_size=batch_size,
        unit=_UNITS.get(metric, "ms"),
        outcome="inconclusive" if blocks else "accept",
        blocking=blocks,
        compared=False,
        reason=f"not compared: {why}" if blocks else f"n/a: {why}",
    )


def unfit(comparison: Comparison, why: str, *, blocks: bool) -> Comparison:
    """The comparison made inconclusive: the machine was not quiet enough."""
    reason = f"the machine was not fit to tell ({why}); measured: {comparison.reason}"
    update = {"outcome": "inconclusive", "improved": False, "reason": reason, "blocking": blocks}
    return comparison.model_copy(update=update)


def plain(
    metric: Metric,
    name: str,
    unit: Unit,
    baseline: float,
    candidate: float,
    limit: float,
    slack: float = 0.0,
) -> Comparison:
    """A figure without noise worth speaking of, such as a size: growth over `limit` blocks.

    Growth by `slack` at most, in the figure's unit, never does.
    """
    growth = candidate / baseline - 1 if baseline > 0 else (0.0 if candidate <= 0 else float("inf"))
    over = growth > limit + 1e-12 and candidate - baseline > slack
    outcome: Outcome = "reject" if over else "accept"
    words = _growth(growth, "larger", "smaller")
    judged = "over" if over else "within"
    if growth > limit and not over:
        judged = "too little to count against"
    return Comparison(
        metric=metric,
        name=name,
        unit=unit,
        baseline=baseline,
        candidate=candidate,
        change=Estimate(value=growth),
        limit=limit,
        slack=slack,
        outcome=outcome,
        improved=growth < -limit,
        reason=f"{words}, {judged} the limit of {_percent(limit)}",
    )


def judged(
    metric: Metric,
    unit: Unit,
    verdict: Verdict,
    baseline: float | None = None,
    candidate: float | None = None,
) -> Comparison:
    """A verdict on accuracy, on outputs or on the service level, as a comparison."""
    low, high = verdict.interval or (None, None)
    change = None
    if metric == "accuracy" and verdict.actual is not None:
        change = Estimate(value=verdict.actual, low=low, high=high)
    return Comparison(
        metric=metric,
        name=verdict.name,
        unit=unit,
        baseline=baseline,
        candidate=verdict.actual if candidate is None else candidate,
        change=change,
        limit=verdict.limit,
        outcome=verdict.outcome,
        blocking=verdict.blocking,
        reason=verdict.reason,
    )


def _growth(fraction: float, more: str, less: str) -> str:
    if abs(fraction) < 0.0005:
        return "unchanged"
    return f"{_percent(abs(fraction))} {more if fraction > 0 else less}"


def _span(change: Estimate) -> str:
    if change.low is None or change.high is None:
        return ""
    return f" [{100 * change.low:+.1f}, {100 * change.high:+.1f}]"


def _percent(fraction: float) -> str:
    """At most one decimal: `5 %`, `2.4 %`, `120 %`."""
    value = 100 * fraction
    return f"{value:.0f} %" if value >= 100 or abs(value - round(value)) < 0.05 else f"{value:.1f} %"
