"""Autoscaling: a target for each instance, bounds, and how many must be warm while others start."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from optcli.measure.queueing import Arrivals, Batching, Curve, Poisson, simulate
from optcli.measure.queueing.demand import Demand, by_load, requests_of
from optcli.measure.queueing.formulas import capacity_per_s
from optcli.results.plan import Autoscaling
from optcli.serving.planning.growth import fewest

if TYPE_CHECKING:
    import numpy as np

# Seconds at the lowest rate before the step, and after the last instance is ready.
_BEFORE_S = 5.0
_AFTER_S = 5.0
_MOST_REQUESTS = 200_000


def autoscaling(
    curve: Curve,
    demand: Demand,
    batching: Batching,
    lowest_per_s: float,
    mean_ms: float,
    cold_start_s: float,
) -> Autoscaling:
    """Bounds and target for an autoscaler.

    The largest step that the plan knows is from `lowest_per_s` to the planned rate. New instances are
    asked for at the step and answer `cold_start_s` later; until then those that are warm carry it all.
    `mean_ms` is the mean latency that is predicted, for Little's law.
    """
    highest = demand.process.rate_per_s
    low = by_load(curve, demand, batching.batch, demand.headroom, rate_per_s=lowest_per_s)
    high = batching.instances
    low = min(low, high)
    capacity = capacity_per_s(curve, batching.batch, batching.concurrency, demand.occupied_ms)
    step = _Step(curve, demand, batching, lowest_per_s, highest, cold_start_s)
    without = step.percentile_ms(low)
    needed = fewest(step.kept, low, high) or high
    with_min = without if needed == low else step.percentile_ms(needed)
    in_flight = demand.utilisation * capacity * mean_ms / 1e3
    return Autoscaling(
        target_in_flight=in_flight,
        target_utilisation=demand.utilisation,
        min_instances=needed,
        max_instances=high,
        cold_start_s=cold_start_s,
        p95_ms_with_min=with_min,
        p95_ms_without=without,
        instances_without=low,
    )


class _Step:
    """Traffic that steps from one rate to another while new instances start."""

    def __init__(
        self,
        curve: Curve,
        demand: Demand,
        batching: Batching,
        low_per_s: float,
        high_per_s: float,
        cold_start_s: float,
    ) -> None:
        import numpy as np

        self._curve, self._demand, self._batching = curve, demand, batching
        self._ready_ms = 1e3 * (_BEFORE_S + cold_start_s)
        before = max(1, round(low_per_s * _BEFORE_S))
        after = max(1, round(high_per_s * (cold_start_s + _AFTER_S)))
        after = min(after, _MOST_REQUESTS)
        first = Poisson(low_per_s).draw(before, demand.seed).times_ms
        factor = high_per_s / demand.process.rate_per_s
        second = demand.process.scaled(factor).draw(max(after, requests_of(demand) // 10), demand.seed)
        start_ms = 1e3 * _BEFORE_S
        stepped = [first[first < start_ms], start_ms + second.times_ms[:after]]
        self._arrivals = Arrivals(np.concatenate(stepped))
        self._counts: np.ndarray = self._arrivals.times_ms >= start_ms

    def _latencies_ms(self, warm: int) -> np.ndarray:
        import numpy as np

        ready = tuple(
            0.0 if index // self._batching.concurrency < warm else self._ready_ms
            for index in range(self._batching.workers)
        )
        run = simulate(
            self._arrivals,
            self._curve,
            replace(self._batching, ready_ms=ready),
            self._demand.overhead,
            seed=self._demand.seed,
            warm_up=0.0,
        )
        return np.asarray(run.latencies_ms[self._counts])

    def percentile_ms(self, warm: int) -> float:
        """p95 of the requests from the step on."""
        import numpy as np

        return float(np.quantile(self._latencies_ms(warm), 0.95))

    def kept(self, warm: int) -> bool:
        """Whether the requests from the step on keep the promise."""
        import numpy as np

        latencies = self._latencies_ms(warm)
        limits = self._demand.promise.limits_ms
        return all(float(np.quantile(latencies, q)) <= limit for q, limit in limits.items())
