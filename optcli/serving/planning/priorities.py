"""Priorities: in one queue of Triton, or each an application of its own in Ray Serve."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from optcli.measure.queueing import Batching, Curve
from optcli.measure.queueing.arrivals import with_priorities
from optcli.measure.queueing.choice import choose
from optcli.measure.queueing.demand import Demand, requests_of
from optcli.measure.queueing.simulation import simulate
from optcli.results.plan import PriorityLatency
from optcli.serving.planning.configuring import configuration
from optcli.serving.planning.demands import demand_of
from optcli.serving.planning.scaling import autoscaling
from optcli.serving.planning.settings import PlanSettings
from optcli.serving.planning.traffic import Traffic, part_of


def in_one_queue(
    settings: PlanSettings, curve: Curve, demand: Demand, batching: Batching
) -> Iterator[PriorityLatency]:
    """Percentiles by priority where the most urgent of all that wait go first."""
    shares = settings.priorities
    arrivals = demand.process.draw(requests_of(demand), demand.seed)
    run = simulate(
        with_priorities(arrivals, list(shares.values()), demand.seed),
        curve,
        batching,
        demand.overhead,
        seed=demand.seed,
    )
    for place, (name, share) in enumerate(shares.items()):
        reached = (run.percentile_ms(q, place) for q in (0.5, 0.95, 0.99))
        p50, p95, p99 = (None if math.isnan(ms) else ms for ms in reached)
        yield PriorityLatency(name=name, share=share, p50_ms=p50, p95_ms=p95, p99_ms=p99)


def apart(
    settings: PlanSettings, curve: Curve, traffic: Traffic, lowest_per_s: float | None
) -> Iterator[PriorityLatency]:
    """A configuration for each priority, which keeps the promise for its part of the traffic.

    Each is simulated by itself: it has an ingress, a queue and instances of its own, and none of the
    others' processors. A fixed number of instances is shared out. `lowest_per_s` is the lowest level of
    all traffic at the model where there is something to scale.
    """
    shares = settings.priorities
    counts = shared_out(settings.instances, list(shares.values()))
    for (name, share), instances in zip(shares.items(), counts, strict=True):
        mean_per_s = share * traffic.mean_per_s
        part = part_of(traffic.planned, share, settings.seed)
        own = demand_of(settings, Traffic(mean_per_s, mean_per_s, part))
        own = replace(own, instances=instances)
        choice = choose(curve, own)
        if choice.best is None or choice.prediction is None:
            yield PriorityLatency(name=name, share=share)
            continue
        batching = choice.best.batching
        one = configuration(settings, curve, own, batching, choice.prediction, mean_per_s)
        scaling = None
        if lowest_per_s is not None:
            mean_ms, cold_start_s = choice.prediction.mean_ms.value, settings.cold_start_s or 0.0
            scaling = autoscaling(curve, own, batching, share * lowest_per_s, mean_ms, cold_start_s)
        yield PriorityLatency(
            name=name,
            share=share,
            p50_ms=one.p50_ms,
            p95_ms=one.p95_ms,
            p99_ms=one.p99_ms,
            configuration=one,
            autoscaling=scaling,
        )


def shared_out(instances: int | None, shares: Sequence[float]) -> list[int | None]:
    """A number of instances by shares of the traffic, at least one each; None: not fixed.

    The next instance goes where the traffic for each is largest. Fewer instances than priorities give
    one each.
    """
    if instances is None:
        return [None] * len(shares)
    counts = [1] * len(shares)
    for _ in range(instances - len(shares)):
        fullest = max(range(len(shares)), key=lambda place: shares[place] / counts[place])
        counts[fullest] += 1
    return list(counts)
