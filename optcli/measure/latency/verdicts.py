"""Verdicts on latency: whether a variant pays (advice), and the limits of the service level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optcli.measure.latency.launches import is_surely_over
from optcli.results import Estimate, Latency, Outcome, Verdict
from optcli.results.outcomes import SERVICE_LEVEL, SPEEDUP
from optcli.results.statistics import needed
from optcli.settings.latency import LatencySettings
from optcli.settings.slo import SloSettings

_SHARES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
_AGAIN = "measure again when the machine is quiet"
_TOO_FEW = "launches that were quiet for both do not agree, or are too few"


def verdicts(
    latencies: Sequence[Latency],
    settings: LatencySettings,
    slo: SloSettings | None,
    baseline: str,
    *,
    is_baseline: bool = False,
    others: Sequence[Latency] = (),
    parent: str | None = None,
    beside_parent: Sequence[Latency] = (),
    size_bytes: int | None = None,
) -> tuple[Verdict, ...]:
    """All verdicts on one variant's latency, from the bounds of its intervals.

    The speed-up is judged at the first batch size. It is advice ("does not pay") and blocks only
    where `min_speedup` is set; the speed-up over the row's own parent is advice too: INT8 that is
    slower than its own FP32. The service level blocks, but for the baseline. Whole calls are judged,
    not the device's part of them. `others` are the baseline's rows, `parent` is the variant that this
    one goes on from and `beside_parent` are its rows. Where a row is not fit, or for a speed-up the
    other's is not, the answer is inconclusive. `size_bytes` is the artifact's size. Of what was not
    measured, only the bounds on load time, memory and size have a verdict.
    """
    latencies = [row for row in latencies if row.region == "host"]
    if not latencies:
        return tuple(resources((), slo, size_bytes, blocking=not is_baseline))
    first = latencies[0]
    base = next((row for row in others if _same_place(row, first)), None)
    answers = [] if is_baseline else [_pays(first, base, settings.min_speedup, baseline)]
    other = next((row for row in beside_parent if _same_place(row, first)), None)
    if parent is not None and parent != baseline and other is not None:
        answers.append(_over_parent(first, parent, other))
    promised = _service_level(latencies, slo, blocking=not is_baseline)
    return (*answers, *promised, *resources(latencies, slo, size_bytes, blocking=not is_baseline))


def _same_place(one: Latency, other: Latency) -> bool:
    return (one.batch_size, one.region) == (other.batch_size, other.region)


def _pays(latency: Latency, base: Latency | None, least: float | None, baseline: str) -> Verdict:
    blocking = least is not None
    unfit = not latency.fit or (base is not None and not base.fit)
    if latency.speedup is not None and not unfit:
        return _over(latency.speedup, least or 1.0, baseline, blocking=blocking)
    why = f"it could not be measured beside {baseline}"
    if base is not None:
        why = f"the measurement cannot tell: {_TOO_FEW}; {_AGAIN}"
    if unfit:
        who = "of this variant" if not latency.fit else f"of {baseline}"
        who = "of both" if base is not None and not base.fit and not latency.fit else who
        why = f"the measurement cannot tell: other work disturbed the times {who}; {_AGAIN}"
    return Verdict(
        name=SPEEDUP, outcome="inconclusive", blocking=blocking, limit=least or 1.0, reason=why
    )


def _over_parent(latency: Latency, parent: str, beside: Latency) -> Verdict:
    """Advice: a variant that is slower than what it was made from is no gain."""
    is_fit = latency.fit and beside.fit
    if latency.over_parent is not None and is_fit:
        return _over(latency.over_parent.speedup, 1.0, parent, blocking=False, parent=True)
    why = f"{_TOO_FEW if is_fit else 'other work disturbed the times'}; {_AGAIN}"
    return Verdict(
        name=f"{SPEEDUP} over {parent}",
        over=parent,
        outcome="inconclusive",
        blocking=False,
        limit=1.0,
        reason=f"the measurement cannot tell: {why}",
    )


def _over(
    speedup: Estimate, least: float, other: str, *, blocking: bool, parent: bool = False
) -> Verdict:
    """Accept where the whole interval lies above `least`, reject where it lies below."""
    low, high = speedup.low, speedup.high
    outcome: Outcome = "inconclusive"
    if low is not None and high is not None:
        outcome = "accept" if low > least else "reject" if high <= least else "inconclusive"
    figures = f"{_times(speedup)} as fast as {other}"
    if outcome == "accept":
        reason = figures
    elif outcome == "reject":
        wanted = f", wanted {least:g} times" if blocking else ""
        reason = f"does not pay: {figures}{wanted}"
    elif low is None:
        reason = f"{figures}, from too few rounds for an interval"
    else:
        bar = f"{least:g} times" if blocking else f"faster than {other}"
        reason = f"{figures}: the interval does not tell whether it is {bar}"
    return Verdict(
        name=f"{SPEEDUP} over {other}" if parent else SPEEDUP,
        over=other if parent else None,
        outcome=outcome,
        blocking=blocking,
        limit=least,
        actual=speedup.value,
        interval=None if low is None or high is None else (low, high),
        reason=reason,
    )


def _service_level(
    latencies: Sequence[Latency], slo: SloSettings | None, *, blocking: bool
) -> list[Verdict]:
    if slo is None:
        return []
    row = min(latencies, key=lambda each: each.batch_size)
    return [
        _within(row, name.removesuffix("_ms"), limit_ms, blocking)
        for name, limit_ms in slo.percentiles_ms.items()
    ]


def resources(
    latencies: Sequence[Latency], slo: SloSettings | None, size_bytes: int | None, *, blocking: bool
) -> list[Verdict]:
    """The verdicts on load time, memory and size, as far as they are bounded.

    What was not measured is inconclusive, and its reason says so.
    """
    bounds = {} if slo is None else slo.bounds
    if not bounds.keys() & set(SloSettings.RESOURCES):
        return []
    row = min(latencies, key=lambda each: each.batch_size, default=None)
    known = [each for each in latencies if each.peak_memory_bytes is not None]
    most = max(known, key=lambda each: each.peak_memory_bytes or 0, default=None)
    load = _Resource("load time", "was not measured")
    if row is not None and row.load_ms is not None:
        doubt = "" if row.fit else f"cannot be judged now: other work disturbed it; {_AGAIN}"
        load = _Resource("load time", doubt, row.load_ms, row.load_interval_ms)
    memory = _Resource("peak memory", "was not measured")
    if most is not None:
        figure, span = most.peak_memory_bytes, most.memory_interval_bytes
        memory = _Resource("peak memory", "", figure, span, f" at batch size {most.batch_size}")
    size = _Resource("size", "is not known")
    if size_bytes is not None:
        size = _Resource("size", "", size_bytes, (size_bytes, size_bytes))
    figures = {"load_ms": load, "memory_bytes": memory, "size_bytes": size}
    return [
        _bound_verdict(name, figure, bounds[name], blocking=blocking)
        for name, figure in figures.items()
        if name in bounds
    ]


@dataclass(frozen=True)
class _Resource:
    """A figure with its interval and where it was taken; `doubt` says why it decides nothing."""

    title: str
    doubt: str
    value: float | None = None
    span: tuple[float, float] | None = None
    at: str = ""


def _bound_verdict(name: str, figure: _Resource, limit: float, *, blocking: bool) -> Verdict:
    """Accept where the whole interval keeps the bound, reject where it breaks it as a whole."""
    show = _megabytes if name.endswith("_bytes") else _milliseconds
    outcome: Outcome = "inconclusive"
    span = None if figure.doubt else figure.span
    if span is not None:
        outcome = "accept" if span[1] <= limit else "reject" if span[0] > limit else "inconclusive"
    reason = figure.title
    if figure.value is not None:
        reason += f" {show(figure.value)}"
        wide = span is not None and span[0] < span[1]
        reason += f" [{show(span[0])}, {show(span[1])}]" if span is not None and wide else ""
    words = {"accept": "within", "reject": "over", "inconclusive": "not clearly within"}
    answer = f" {figure.doubt}" if figure.doubt else f"{figure.at}, {words[outcome]} {show(limit)}"
    return Verdict(
        name=f"{SERVICE_LEVEL}{name}",
        outcome=outcome,
        blocking=blocking,
        limit=limit,
        actual=figure.value,
        interval=span,
        reason=f"{reason}{answer}",
    )


def _milliseconds(value: float) -> str:
    return f"{value:.3g} ms" if value < 1000 else f"{value:.0f} ms"


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.3g} MB" if count < 1e9 else f"{count / 1e6:.0f} MB"


def _within(row: Latency, percentile: str, limit_ms: float, blocking: bool) -> Verdict:
    """Accept where the upper bound keeps the limit, reject where the lower one already breaks it.

    Inconclusive where the row is not fit: neither bound then says what a quiet machine would do.
    """
    measured: Estimate | None = getattr(row, f"{percentile}_ms")
    at = f"at batch size {row.batch_size}"
    outcome: Outcome = "inconclusive"
    interval = None
    if measured is None:
        fewest = needed(_SHARES[percentile])
        reason = f"{percentile} {at} is not known: it needs {fewest} calls, {row.samples} count"
    elif not row.fit:
        reason = (
            f"{percentile} {measured.value:.3g} ms {at} cannot be judged by {limit_ms:g} ms now:"
            f" other work disturbed it; {_AGAIN}"
        )
    else:
        low, high = measured.low, measured.high
        span, doubt = "", ""
        if low is not None and high is not None:
            outcome = "accept" if high <= limit_ms else "reject" if low > limit_ms else "inconclusive"
            interval, span = (low, high), f" [{low:.3g}, {high:.3g}]"
        words = {"accept": "within", "reject": "over", "inconclusive": "not clearly within"}
        word, lost = words[outcome], row.waited or 0.0
        last = _SHARES[percentile]
        up_to = {q: getattr(row, f"{each}_ms") for each, q in _SHARES.items() if q <= last}
        if outcome == "reject" and not is_surely_over(up_to, limit_ms, lost):
            outcome = "inconclusive"
            doubt = f", but other work had the processors for {100 * lost:.1f} % of the time; {_AGAIN}"
        reason = f"{percentile} {measured.value:.3g} ms{span} {at}, {word} {limit_ms:g} ms{doubt}"
    return Verdict(
        name=f"{SERVICE_LEVEL}{percentile}_ms",
        outcome=outcome,
        blocking=blocking,
        limit=limit_ms,
        actual=None if measured is None else measured.value,
        interval=interval,
        reason=reason,
    )


def _times(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.2f} times"
    return f"{estimate.value:.2f} times [{estimate.low:.2f}, {estimate.high:.2f}]"
