"""What a batch sweep measures: which sizes, how many calls of each, and when it has seen enough."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from optcli.settings import SweepSettings, TensorSpec, batch_range
from optcli.statistics import needed

ROUNDS = 2
LEAD_IN = 1
LEAST_CALLS = 2
WARM_CALLS = 5
# With every doubling hardly more images a second for so many times, throughput grows no more.
_STALE = 2
_GROWS = 1.01
# A launch in which the machine was not quiet does not count; one of five may be lost.
_SPARE = 1.25


def ladder(inputs: Sequence[TensorSpec], most: int) -> tuple[int, ...]:
    """The batch sizes of a sweep: doublings from the smallest the model takes, and the largest."""
    allowed = batch_range(inputs)
    top = max(allowed.min, min(allowed.max, most))
    sizes = [allowed.min]
    while sizes[-1] * 2 <= top:
        sizes.append(sizes[-1] * 2)
    return tuple(dict.fromkeys([*sizes, top]))


def allot(
    usual_ns: Mapping[int, float], settings: SweepSettings, limit_ns: float | None
) -> dict[int, int]:
    """Timed calls per round at every batch size, as many as the time cap allows.

    First p99 of the two largest sizes that may keep the limit; then more for all, the small first.
    """
    sizes = sorted(usual_ns)
    decide = [size for size in reversed(sizes) if limit_ns and usual_ns[size] <= limit_ns][:2]
    calls = dict.fromkeys(sizes, LEAST_CALLS)
    enough, plenty = math.ceil(_SPARE * needed(0.99)), 1000
    for samples, chosen in (
        (enough, decide),
        (100, sizes),
        (enough, sizes),
        (plenty, decide),
        (plenty, sizes),
    ):
        per_round = math.ceil(samples / (settings.launches * ROUNDS))
        for size in chosen:
            trial = {**calls, size: max(calls[size], per_round)}
            if cost_s(usual_ns, trial, settings) <= settings.max_seconds:
                calls = trial
    return calls


def cost_s(usual_ns: Mapping[int, float], calls: Mapping[int, int], settings: SweepSettings) -> float:
    """Seconds that all launches spend in calls."""
    totals = {size: WARM_CALLS + ROUNDS * (LEAD_IN + count) for size, count in calls.items()}
    return settings.launches * sum(usual_ns[size] * count for size, count in totals.items()) / 1e9


def grows_no_more(rates: Mapping[int, float]) -> bool:
    """Whether the last batch sizes all give hardly more images a second than the best before them."""
    values = list(rates.values())
    earlier, last = values[:-_STALE], values[-_STALE:]
    return bool(earlier) and max(last) < _GROWS * max(earlier)
