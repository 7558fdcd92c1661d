"""The recommended configuration in full: queue, timeout, machines, cost, its highest rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcli.measure.queueing import Batching, Curve, Prediction, Simulation, formulas
from optcli.measure.queueing.choice import most_carried, simulated
from optcli.measure.queueing.demand import Demand, sealed_least_ms
from optcli.results import Estimate
from optcli.results.plan import Configuration, Interval
from optcli.serving.planning.settings import PlanSettings

if TYPE_CHECKING:
    import numpy as np


def configuration(
    settings: PlanSettings,
    curve: Curve,
    demand: Demand,
    batching: Batching,
    prediction: Prediction,
    mean_per_s: float,
) -> Configuration:
    """What to serve with, and what it is predicted to do; `mean_per_s` is the rate that is paid for."""
    batch, workers = batching.batch, batching.workers
    limit = demand.tightest_ms
    overhead, ingress = demand.overhead.alone_ms, demand.ingress_ms
    rate = demand.process.rate_per_s
    capacity = formulas.capacity_per_s(curve, batch, workers, ingress_ms=ingress)
    # Each machine has one process that takes requests.
    machines = max(
        math.ceil(batching.instances / settings.instances_per_machine), demand.overhead.ingresses
    )
    assert settings.slo is not None
    run = simulated(curve, demand, batching)
    bounds = _bounds(curve, demand, batching, run, settings.slo.error_budget)
    longest_ms = _exceeded_by(_waited_ms(run), settings.slo.error_budget)
    sealed = demand.semantics == "sealed"
    return Configuration(
        batch=batch,
        wait_ms=batching.wait_ms,
        instances=batching.instances,
        concurrency=batching.concurrency,
        machines=machines,
        instances_per_machine=settings.instances_per_machine,
        ingresses=demand.overhead.ingresses,
        semantics=batching.semantics,
        p50_ms=prediction.p50_ms.value,
        p95_ms=prediction.p95_ms.value,
        p99_ms=prediction.p99_ms.value,
        p50_interval_ms=_interval(prediction.p50_ms),
        p95_interval_ms=_interval(prediction.p95_ms),
        p99_interval_ms=_interval(prediction.p99_ms),
        utilisation=rate / capacity,
        utilisation_with_headroom=rate * (1 + demand.headroom) / capacity,
        busy=prediction.busy.value,
        mean_batch=prediction.mean_batch.value,
        max_rate_per_s=most_carried(curve, demand, batching),
        capacity_per_s=capacity,
        rate_at_utilisation_per_s=demand.utilisation * capacity,
        sum_ms=batching.wait_ms + curve.time_ms(batch) + overhead,
        queue_cap=bounds.waiting,
        timeout_ms=max(formulas.timeout_ms(limit, curve, batch, overhead), longest_ms),
        max_in_flight=bounds.in_flight,
        all_in_time=bounds.in_time,
        least_wait_ms=sealed_least_ms(curve, demand, batching) if sealed else None,
        longest_wait_ms=formulas.delay_budget_ms(limit, curve, batch, overhead),
        cost_per_1000=_cost(settings, machines, mean_per_s),
    )


@dataclass(frozen=True)
class _Bounds:
    """The most requests in the server, how many of them wait, and of how many all are in time."""

    in_flight: int
    waiting: int
    in_time: int


def _bounds(
    curve: Curve, demand: Demand, batching: Batching, run: Simulation, budget: float
) -> _Bounds:
    """What all but the error budget find at the planned rate, or more if all of it would be in time.

    A promise of p95 lets 5 of 100 requests be late. A server that has room for one more than what all
    but the budget find refuses no more: with what it refuses they would find fewer.
    """
    batch, computed = batching.batch, batching.workers * batching.batch
    limit, overhead = demand.tightest_ms, demand.overhead.alone_ms
    in_time = computed + formulas.queue_cap(
        limit, curve, batch, batching.workers, overhead, ingress_ms=demand.ingress_ms
    )
    # In a shorter queue no batch could fill.
    most = max(in_time, computed + batch)
    if demand.ingress_ms:
        passed = formulas.ingress_cap(limit, curve, batch, demand.ingress_ms, overhead)
        in_time = min(in_time, passed)
        most = max(batch, min(most, passed))
    came = run.finished_ms - run.latencies_ms
    if demand.semantics == "sealed":
        # All that the server has let in count.
        most = max(most, 1 + _found(came, run.finished_ms, run.skipped, budget))
        return _Bounds(most, max(0, most - computed), in_time)
    waiting = max(batch, most - computed, 1 + _found(came, run.started_ms, run.skipped, budget))
    return _Bounds(waiting + computed, waiting, in_time)


def _found(came: np.ndarray, gone: np.ndarray, skipped: int, budget: float) -> int:
    """How many requests that have come and are not gone all find at most, but for the budget."""
    import numpy as np

    left = np.searchsorted(np.sort(gone), came, side="right")
    return int(_exceeded_by((np.arange(came.size) - left)[skipped:], budget))


def _waited_ms(run: Simulation) -> np.ndarray:
    """For how long each request waited until a worker took it [requests], without the warm-up."""
    waited: np.ndarray = (run.started_ms - (run.finished_ms - run.latencies_ms))[run.skipped :]
    return waited


def _exceeded_by(values: np.ndarray, share: float) -> float:
    """What at most a share of some values lies above."""
    import numpy as np

    return float(np.quantile(values, 1 - share, method="inverted_cdf"))


def _interval(estimate: Estimate) -> Interval | None:
    if estimate.low is None or estimate.high is None:
        return None
    return (estimate.low, estimate.high)


def _cost(settings: PlanSettings, machines: int, mean_per_s: float) -> float | None:
    """Of 1,000 inferences: machines run all the time, whatever comes."""
    if settings.price_per_hour is None:
        return None
    return settings.price_per_hour * machines / (3.6 * mean_per_s)
