"""The recommended configuration in full: queue, timeout, machines, cost, energy, its highest rate."""

from __future__ import annotations

import math

from optcli.queueing import Batching, Curve, Prediction, formulas, highest_rate
from optcli.queueing.choice import Demand, requests_of, sealed_least_ms, without_headroom
from optcli.results import Estimate
from optcli.results.plan import Configuration, Interval, Stages
from optcli.serving.settings import PlanSettings


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
    overhead = demand.overhead.total_ms
    rate = demand.process.rate_per_s
    capacity = formulas.capacity_per_s(curve, batch, workers, occupied)
    machines = math.ceil(batching.instances / settings.on_one_machine)
    reject = max(0, formulas.queue_cap_reject_newest(limit, curve, batch, workers, overhead))
    drop = max(0, formulas.queue_cap_drop_oldest(limit, curve, batch, workers, overhead))
    sealed = demand.semantics == "sealed"
    on_full = "reject-newest" if sealed else settings.on_full
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
        drop_share=prediction.drop_share.value,
        max_rate_per_s=highest_rate(
            demand.process,
            curve,
            batching,
            demand.promise,
            demand.overhead,
            requests=requests_of(demand),
            seed=demand.seed,
        ),
        capacity_per_s=capacity,
        rate_at_utilisation_per_s=demand.utilisation * capacity,
        sum_ms=batching.wait_ms + curve.time_ms(batch) + overhead,
        queue_cap=reject if on_full == "reject-newest" else drop,
        on_full=on_full,
        reject_newest_cap=reject,
        timeout_ms=formulas.timeout_ms(limit, curve, batch, overhead),
        max_in_flight=reject + workers * batch,
        least_wait_ms=sealed_least_ms(curve, demand, batching) if sealed else None,
        longest_wait_ms=max(0.0, limit - overhead - 2 * curve.time_ms(batch)),
        cost_per_1000=_cost(settings, machines, mean_per_s),
        energy_wh_per_1000=_energy(settings, machines, prediction.busy.value, mean_per_s),
        stages=Stages(
            wait_ms=prediction.stages.wait_ms,
            queue_ms=prediction.stages.queue_ms,
            compute_ms=prediction.stages.compute_ms,
            overhead_ms=prediction.stages.overhead_ms,
        ),
    )


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
