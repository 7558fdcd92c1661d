"""A cheap model first, a heavy one for a share of the requests: latency, cost, when it pays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from optcli.queueing import Arrivals, Batching, Curve, simulate
from optcli.queueing.arrivals import kept_at_random
from optcli.queueing.batching import percentiles_ms
from optcli.queueing.choice import choose, simulated
from optcli.queueing.demand import Demand, by_load
from optcli.queueing.simulation import seeds_of
from optcli.results.plan import CascadePlan
from optcli.serving.planning.files import curve_of_text
from optcli.serving.planning.settings import PlanSettings

_MORE_INSTANCES = 8
_REQUESTS = 60_000
_WARM_UP = 0.05


def cascade_plan(
    settings: PlanSettings, curve: Curve, demand: Demand, cheap: Batching, mean_per_s: float
) -> CascadePlan:
    """The heavy model's configuration behind the planned one, and both together.

    Raises `InputError` for a curve of the heavy model that is none.
    """
    asked = settings.cascade
    assert asked is not None
    heavy_curve = curve_of_text(asked.curve, "cascade")
    behind = replace(
        demand, process=demand.process.scaled(asked.share), batch=None, wait_ms=None, instances=None
    )
    heavy = _heavy(heavy_curve, behind, _first_part(curve, demand, cheap))
    both = _together(curve, demand, cheap, heavy_curve, heavy, asked.share)
    for _ in range(_MORE_INSTANCES):
        if _kept(both, demand):
            break
        heavy = replace(heavy, instances=heavy.instances + 1)
        both = _together(curve, demand, cheap, heavy_curve, heavy, asked.share)
    alone = choose(heavy_curve, replace(behind, process=demand.process))
    alone_batch = (
        alone.best.batching
        if alone.best
        else replace(heavy, instances=by_load(heavy_curve, demand, heavy.batch, demand.headroom))
    )
    cheap_ms = curve.time_ms(cheap.batch) / cheap.batch
    heavy_ms = heavy_curve.time_ms(heavy.batch) / heavy.batch
    work_ms = cheap_ms + asked.share * heavy_ms
    kept = _kept(both, demand)
    return CascadePlan(
        share=asked.share,
        # With a larger share both together take longer than the heavy model alone.
        break_even_share=max(0.0, 1 - cheap_ms / heavy_ms),
        work_ms=work_ms,
        heavy_work_ms=heavy_ms,
        heavy_batch=heavy.batch,
        heavy_wait_ms=heavy.wait_ms,
        heavy_instances=heavy.instances,
        p50_ms=both.p50_ms,
        p95_ms=both.p95_ms,
        p99_ms=both.p99_ms,
        kept=kept,
        cost_per_1000=_cost(settings, cheap.instances + heavy.instances, mean_per_s),
        heavy_cost_per_1000=_cost(settings, alone_batch.instances, mean_per_s),
        pays=kept and work_ms < heavy_ms,
    )


def _first_part(curve: Curve, demand: Demand, cheap: Batching) -> dict[float, float]:
    """Milliseconds that the cheap model takes of the promise, by quantile."""
    run = simulated(curve, demand, cheap)
    return {q: run.percentile_ms(q) for q in demand.promise.limits_ms}


def _heavy(curve: Curve, behind: Demand, spent_ms: Mapping[float, float]) -> Batching:
    """The heavy model's configuration: within what the cheap model leaves of the promise, where it can.

    Else within the whole promise: where few requests go on, those may all be later than the others.
    """
    limits = behind.promise.limits_ms
    left = {q: limit - spent_ms[q] for q, limit in limits.items()}
    tries = [limits]
    if min(left.values()) > 0:
        tries.insert(0, left)
    choice = None
    for limits_ms in tries:
        promise = replace(behind.promise, limits_ms=limits_ms)
        choice = choose(curve, replace(behind, promise=promise))
        if choice.best is not None:
            return choice.best.batching
    nearest = choice.tried[0] if choice is not None and choice.tried else None
    return nearest.batching if nearest else _one_by_one(curve, behind)


@dataclass(frozen=True)
class _Together:
    """Percentiles over all requests, in milliseconds; `grows`: the queue of one of the models does."""

    p50_ms: float
    p95_ms: float
    p99_ms: float
    grows: bool


def _together(
    curve: Curve, demand: Demand, cheap: Batching, heavy_curve: Curve, heavy: Batching, share: float
) -> _Together:
    """Every request goes to the cheap model, and a random share of them on as that one answers."""
    import numpy as np

    drawn, first, second = seeds_of(demand.seed, 3)
    arrivals = demand.process.draw(_REQUESTS, drawn)
    answered = simulate(arrivals, curve, cheap, demand.overhead, seed=first)
    latencies, grows = answered.latencies_ms.copy(), answered.grows
    goes_on = np.flatnonzero(kept_at_random(arrivals.count, share, drawn))
    if goes_on.size:
        goes_on = goes_on[np.argsort(answered.finished_ms[goes_on], kind="stable")]
        reached = Arrivals(answered.finished_ms[goes_on])
        again = simulate(reached, heavy_curve, heavy, seed=second)
        latencies[goes_on] += again.latencies_ms
        grows = grows or again.grows
    counted = latencies[int(_WARM_UP * latencies.size) :]
    p50, p95, p99 = percentiles_ms(counted, [0.5, 0.95, 0.99])
    return _Together(p50, p95, p99, grows)


def _kept(both: _Together, demand: Demand) -> bool:
    reached = {0.5: both.p50_ms, 0.95: both.p95_ms, 0.99: both.p99_ms}
    if both.grows:
        return False
    return all(reached[q] <= limit for q, limit in demand.promise.limits_ms.items())


def _one_by_one(curve: Curve, demand: Demand) -> Batching:
    batch = curve.sizes[0] if curve.sizes else 1
    offer = Batching(batch=batch, concurrency=demand.concurrency, semantics=demand.semantics)
    return replace(offer, instances=by_load(curve, demand, batch, demand.headroom))


def _cost(settings: PlanSettings, instances: int, mean_per_s: float) -> float | None:
    if settings.price_per_hour is None:
        return None
    machines = math.ceil(instances / settings.on_one_machine)
    return settings.price_per_hour * machines / (3.6 * mean_per_s)
