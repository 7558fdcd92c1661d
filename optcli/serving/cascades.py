"""A cheap model first, a heavy one for a share of the requests: latency, cost, when it pays."""

from __future__ import annotations

import math
from dataclasses import replace

from optcli.queueing import Batching, Curve, Mixture, Stage, break_even_share, cascade
from optcli.queueing.choice import Demand, choose
from optcli.queueing.formulas import fewest_instances
from optcli.results.plan import CascadePlan
from optcli.serving.settings import PlanSettings

_MORE_INSTANCES = 8
_REQUESTS = 60_000


def cascade_plan(
    settings: PlanSettings, curve: Curve, demand: Demand, cheap: Batching, mean_per_s: float
) -> CascadePlan:
    """The heavy model's configuration behind the planned one, and both together.

    Raises `InputError` for a curve of the heavy model that is none.
    """
    asked = settings.cascade
    assert asked is not None
    heavy_curve = Curve.parse(asked.curve)
    behind = replace(
        demand, process=demand.process.scaled(asked.share), batch=None, wait_ms=None, instances=None
    )
    choice = choose(heavy_curve, behind)
    nearest = choice.best or (choice.tried[0] if choice.tried else None)
    heavy = nearest.batching if nearest else _one_by_one(heavy_curve, behind)
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
        else replace(heavy, instances=_by_load(heavy_curve, demand, heavy))
    )
    cheap_ms = curve.time_ms(cheap.batch) / cheap.batch
    heavy_ms = heavy_curve.time_ms(heavy.batch) / heavy.batch
    work_ms = cheap_ms + asked.share * heavy_ms
    kept = _kept(both, demand)
    return CascadePlan(
        share=asked.share,
        break_even_share=break_even_share(cheap_ms, heavy_ms),
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


def _together(
    curve: Curve, demand: Demand, cheap: Batching, heavy_curve: Curve, heavy: Batching, share: float
) -> Mixture:
    return cascade(
        demand.process,
        Stage(curve, cheap, demand.overhead),
        Stage(heavy_curve, heavy),
        share,
        requests=_REQUESTS,
        seed=demand.seed,
    )


def _kept(both: Mixture, demand: Demand) -> bool:
    reached = {0.5: both.p50_ms, 0.95: both.p95_ms, 0.99: both.p99_ms}
    return all(reached[q] <= limit for q, limit in demand.promise.limits_ms.items())


def _one_by_one(curve: Curve, demand: Demand) -> Batching:
    batch = curve.sizes[0] if curve.sizes else 1
    offer = Batching(batch=batch, concurrency=demand.concurrency, semantics=demand.semantics)
    return replace(offer, instances=_by_load(curve, demand, offer))


def _by_load(curve: Curve, demand: Demand, batching: Batching) -> int:
    return fewest_instances(
        demand.process.rate_per_s,
        curve,
        batching.batch,
        utilisation=demand.utilisation,
        headroom=demand.headroom,
        concurrency=demand.concurrency,
        occupied_ms=demand.occupied_ms,
    )


def _cost(settings: PlanSettings, instances: int, mean_per_s: float) -> float | None:
    if settings.price_per_hour is None:
        return None
    machines = math.ceil(instances / settings.on_one_machine)
    return settings.price_per_hour * machines / (3.6 * mean_per_s)
