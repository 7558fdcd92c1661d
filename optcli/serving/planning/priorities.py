"""Priorities: each is an application of its own in Ray Serve."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from optcli.measure.queueing import Curve
from optcli.measure.queueing.choice import choose
from optcli.results.plan import PriorityLatency
from optcli.serving.planning.configuring import configuration
from optcli.serving.planning.demands import demand_of
from optcli.serving.planning.settings import PlanSettings
from optcli.serving.planning.traffic import Traffic, part_of


def apart(settings: PlanSettings, curve: Curve, traffic: Traffic) -> Iterator[PriorityLatency]:
    """A configuration for each priority, which keeps the promise for its part of the traffic.

    Each is simulated by itself: it has an ingress, a queue and instances of its own, and none of the
    others' processors. A fixed number of instances is shared out.
    """
    shares = settings.priorities
    counts = shared_out(settings.instances, list(shares.values()))
    for (name, share), instances in zip(shares.items(), counts, strict=True):
        mean_per_s = share * traffic.mean_per_s
        part = part_of(traffic.planned, share)
        own = demand_of(settings, Traffic(mean_per_s, part))
        own = replace(own, instances=instances)
        choice = choose(curve, own)
        if choice.best is None or choice.prediction is None:
            yield PriorityLatency(name=name, share=share)
            continue
        batching = choice.best.batching
        one = configuration(settings, curve, own, batching, choice.prediction, mean_per_s)
        yield PriorityLatency(
            name=name,
            share=share,
            p50_ms=one.p50_ms,
            p95_ms=one.p95_ms,
            p99_ms=one.p99_ms,
            configuration=one,
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
