"""The budget picks the batch: the largest batch size that keeps a service level, in words."""

from __future__ import annotations

from collections.abc import Sequence

from optcli.latency.tails import is_surely_over
from optcli.results import Budget, Estimate, SweepPoint
from optcli.statistics import needed

# A smaller batch that gives so much more is named.
_WORTH_NAMING = 1.02


def budget(points: Sequence[SweepPoint], p99_ms: float, stopped_because: str) -> Budget:
    """The largest measured batch size whose p99 is within `p99_ms`, by its interval's upper bound.

    Points that are not fit decide nothing: they are in doubt whatever their figures say.
    """
    inside = [
        point
        for point in points
        if point.fit and point.p99_ms and point.p99_ms.high and point.p99_ms.high <= p99_ms
    ]
    chosen = inside[-1] if inside else None
    larger = [each for each in points if chosen is None or each.batch_size > chosen.batch_size]
    doubt = next((reason for each in larger if (reason := _doubt(each, p99_ms))), "")
    if chosen is None:
        words = [f"no batch size is known to be within {p99_ms:g} ms at p99"]
        words += [doubt or _too_slow(points)]
        return Budget(p99_ms=p99_ms, sentence="; ".join(filter(None, words)))
    words = [
        f"within {p99_ms:g} ms at p99: batch {chosen.batch_size}, {_rate(chosen)} images/s",
        doubt,
    ]
    if not larger:
        words.append(f"no larger one was measured ({stopped_because})")
    best = max(inside, key=lambda point: point.throughput_per_s)
    if best.throughput_per_s > _WORTH_NAMING * chosen.throughput_per_s:
        words.append(f"batch {best.batch_size} gives more: {_rate(best)} images/s")
    return Budget(
        p99_ms=p99_ms,
        batch_size=chosen.batch_size,
        throughput_per_s=chosen.throughput_per_s,
        sentence="; ".join(filter(None, words)),
    )


def _doubt(point: SweepPoint, limit_ms: float) -> str:
    """Why a batch size that may be inside is not said to be; empty where it clearly is not."""
    if not point.fit:
        return f"batch {point.batch_size} is not decided: other work disturbed it"
    if point.p50_ms.value > limit_ms:
        return ""
    if point.p99_ms is None:
        return (
            f"batch {point.batch_size} is not decided: p99 needs {needed(0.99)} calls,"
            f" {point.samples} fit into the time cap"
        )
    if is_surely_over({0.5: point.p50_ms, 0.99: point.p99_ms}, limit_ms, point.waited or 0.0):
        return ""
    if point.p99_ms.low is not None and point.p99_ms.low > limit_ms:
        return f"batch {point.batch_size} is not decided: other work may have caused its p99"
    return f"batch {point.batch_size} is not clearly within the limit (p99 {_interval(point.p99_ms)})"


def _too_slow(points: Sequence[SweepPoint]) -> str:
    if not points:
        return ""
    first = next((point for point in points if point.fit), points[0])
    name, shown = ("p99", first.p99_ms) if first.p99_ms else ("p50", first.p50_ms)
    return f"batch {first.batch_size} takes {_interval(shown)} at {name}"


def _interval(estimate: Estimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.value:.3g} ms"
    return f"{estimate.value:.3g} ms [{estimate.low:.3g}, {estimate.high:.3g}]"


def _rate(point: SweepPoint) -> str:
    rate = point.throughput_per_s
    return f"{rate:.0f}" if rate >= 100 else f"{rate:.3g}"
