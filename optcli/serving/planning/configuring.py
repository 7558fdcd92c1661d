"""The recommended configuration in full: queue, timeout, machines, cost, energy, its highest rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from optcli.queueing import Batching, Curve, Prediction, formulas
from optcli.queueing.choice import most_carried, simulated, without_headroom
from optcli.queueing.demand import Demand, sealed_least_ms
from optcli.results import Estimate
from optcli.results.plan import Configuration, Interval, OnFull, Stages
from optcli.serving.planning.settings import PlanSettings

# Times the formulas' queue cap and timeout, until they drop no more than the error budget.
_WIDER = (1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 8.0)


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
    occupied, limit = demand.occupied_ms, demand.tightest_ms
    overhead, ingress = demand.overhead.alone_ms, demand.ingress_ms
    rate = demand.process.rate_per_s
    capacity = formulas.capacity_per_s(curve, batch, workers, occupied, ingress_ms=ingress)
    machines = math.ceil(batching.instances / settings.on_one_machine)
    of_queue = (limit, curve, batch, workers, overhead, occupied)
    reject = formulas.queue_cap_reject_newest(*of_queue, ingress_ms=ingress)
    drop = formulas.queue_cap_drop_oldest(*of_queue, ingress_ms=ingress)
    in_flight, at_ingress = reject + workers * batch, None
    if ingress:
        at_ingress = max(batch, formulas.ingress_cap(limit, curve, batch, ingress, overhead))
        in_flight = min(in_flight, at_ingress)
    sealed = demand.semantics == "sealed"
    on_full = "reject-newest" if sealed else settings.on_full
    timeout = formulas.timeout_ms(limit, curve, batch, overhead)
    found = _found_inside(curve, demand, batching) if sealed or ingress else 0
    if at_ingress is not None:
        at_ingress = max(at_ingress, found + 1)
    if sealed:
        # In a shorter queue no batch could fill.
        rejecting = _Bounds(max(reject, batch, found + 1 - workers * batch), timeout, None)
    else:
        rejecting = _bounds(curve, demand, batching, "reject-newest", reject, timeout)
    cap = reject if on_full == "reject-newest" else drop
    same = sealed or cap == reject
    bounds = rejecting if same else _bounds(curve, demand, batching, on_full, cap, timeout)
    return Configuration(
        batch=batch,
        wait_ms=batching.wait_ms,
        instances=batching.instances,
        instances_without_headroom=without_headroom(curve, demand, batching),
        concurrency=batching.concurrency,
        machines=machines,
        instances_per_machine=settings.on_one_machine,
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
        drop_share=bounds.drop_share,
        max_rate_per_s=most_carried(curve, demand, batching),
        capacity_per_s=capacity,
        rate_at_utilisation_per_s=demand.utilisation * capacity,
        sum_ms=batching.wait_ms + curve.time_ms(batch) + overhead,
        queue_cap=bounds.queue_cap,
        on_full=on_full,
        reject_newest_cap=rejecting.queue_cap,
        timeout_ms=bounds.timeout_ms,
        max_in_flight=in_flight,
        ingress_cap=at_ingress,
        least_wait_ms=sealed_least_ms(curve, demand, batching) if sealed else None,
        longest_wait_ms=formulas.delay_budget_ms(limit, curve, batch, overhead, occupied),
        cost_per_1000=_cost(settings, machines, mean_per_s),
        energy_wh_per_1000=_energy(
            settings,
            machines,
            _mean_busy(settings, curve, demand, batching, prediction, mean_per_s),
            mean_per_s,
        ),
        stages=Stages(
            wait_ms=prediction.stages.wait_ms,
            queue_ms=prediction.stages.queue_ms,
            compute_ms=prediction.stages.compute_ms,
            overhead_ms=prediction.stages.overhead_ms,
        ),
    )


@dataclass(frozen=True)
class _Bounds:
    """What a queue is bounded by, and the share of the requests that this drops; None: not known."""

    queue_cap: int
    timeout_ms: float
    drop_share: float | None


def _bounds(
    curve: Curve, demand: Demand, batching: Batching, on_full: OnFull, cap: int, timeout_ms: float
) -> _Bounds:
    """The cap and the timeout of the formulas; wider where they drop more than the error budget.

    At the planned rate, that is: a promise of p95 lets 5 of 100 requests be late, which the formulas
    would drop. `deadline` is never wider. Not for sealed batches, of which no drops are simulated.
    """
    cap = max(cap, batching.batch)
    offers = []
    for wider in (1.0,) if on_full == "deadline" else _WIDER:
        bounds = _Bounds(math.ceil(wider * cap), wider * timeout_ms, None)
        capped = replace(batching, timeout_ms=max(bounds.timeout_ms, batching.wait_ms))
        if on_full != "deadline":
            capped = replace(capped, queue_cap=bounds.queue_cap, on_full=on_full)
        dropped = simulated(curve, demand, capped).drop_share
        offers.append(replace(bounds, drop_share=dropped))
        if dropped <= demand.promise.error_budget:
            return offers[-1]
    return offers[0]


def _found_inside(curve: Curve, demand: Demand, batching: Batching) -> int:
    """How many requests in the server all find at most, but for the error budget, at the planned rate.

    A server that has room for one more drops no more than the budget: with what it refuses it would
    find fewer. By a simulation without bounds, of all replicas together: that is what a server with one
    ingress counts.
    """
    import numpy as np

    run = simulated(curve, demand, batching)
    came = run.finished_ms - run.latencies_ms
    gone = np.searchsorted(np.sort(run.finished_ms), came, side="right")
    inside = (np.arange(came.size) - gone)[run.skipped :]
    most: float = np.quantile(inside, 1 - demand.promise.error_budget, method="inverted_cdf")
    return int(most)


def _mean_busy(
    settings: PlanSettings,
    curve: Curve,
    demand: Demand,
    batching: Batching,
    prediction: Prediction,
    mean_per_s: float,
) -> float:
    """The share of time in which workers compute at the mean rate, which peaks are above."""
    share = mean_per_s * (1 - settings.cache_hit_rate) / demand.process.rate_per_s
    if math.isclose(share, 1.0):
        return prediction.busy.value
    return simulated(curve, demand, batching, share).busy


def _interval(estimate: Estimate) -> Interval | None:
    if estimate.low is None or estimate.high is None:
        return None
    return (estimate.low, estimate.high)


def _cost(settings: PlanSettings, machines: int, mean_per_s: float) -> float | None:
    """Of 1,000 inferences: machines run all the time, whatever comes."""
    if settings.price_per_hour is None:
        return None
    return settings.price_per_hour * machines / (3.6 * mean_per_s)


def _energy(settings: PlanSettings, machines: int, busy: float, mean_per_s: float) -> float | None:
    """Watt-hours of 1,000 inferences: busy workers take `watts`, waiting ones `idle_watts`."""
    if settings.watts is None:
        return None
    idle = settings.watts if settings.idle_watts is None else settings.idle_watts
    drawn = machines * (idle + (settings.watts - idle) * busy)
    return drawn / (3.6 * mean_per_s)
