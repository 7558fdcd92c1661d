"""What breaks first when traffic grows, and how many instances would keep the promise then."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from optcli.measure.queueing import Batching, Curve
from optcli.measure.queueing.choice import keeps, predict, simulated
from optcli.measure.queueing.demand import Demand, by_load
from optcli.measure.queueing.formulas import load
from optcli.results.plan import Growth

FACTORS = (1.2, 1.5, 2.0)
_MOST_MORE = 64


def breaks_first(curve: Curve, demand: Demand, batching: Batching) -> tuple[Growth, ...]:
    """The configuration at 1.2, 1.5 and 2 times the traffic."""
    return tuple(_grown(curve, demand, batching, factor) for factor in FACTORS)


def _grown(curve: Curve, demand: Demand, batching: Batching, factor: float) -> Growth:
    rate = demand.process.rate_per_s * factor
    ingress = demand.ingress_load * factor
    used = max(ingress, load(rate, curve, batching.batch, batching.workers, demand.occupied_ms))
    prediction = predict(curve, demand, batching, factor=factor, runs=2)
    kept = keeps(prediction, demand.promise, surely=False)
    grows = prediction.grows or used >= 1
    breaks = "capacity" if grows else "latency" if not kept else None
    if kept and breaks is None and used > demand.utilisation:
        breaks = "reserve"
    p95 = None if grows else prediction.p95_ms.value
    needed = None
    if breaks is not None and ingress < 1:
        needed = _instances_for(curve, demand, batching, factor)
    return Growth(
        factor=factor,
        rate_per_s=rate,
        utilisation=used,
        p95_ms=p95,
        kept=kept and not grows,
        breaks=breaks,
        instances=needed,
    )


def _instances_for(curve: Curve, demand: Demand, batching: Batching, factor: float) -> int | None:
    """The fewest instances of this batch and wait that keep the promise below the utilisation cap."""
    grown = demand.process.rate_per_s * factor
    first = max(by_load(curve, demand, batching.batch, rate_per_s=grown), batching.instances)

    def is_enough(instances: int) -> bool:
        run = simulated(curve, demand, replace(batching, instances=instances), factor)
        return demand.promise.kept_by(run)

    return fewest(is_enough, first, first + _MOST_MORE)


def fewest(is_enough: Callable[[int], bool], first: int, most: int) -> int | None:
    """The least number from `first` to below `most` that is enough; None where none is.

    More are taken to be no worse: the search doubles its steps and then halves them.
    """
    step, high = 1, first
    low = first - 1
    while not is_enough(high):
        if high >= most - 1:
            return None
        low, high, step = high, min(high + step, most - 1), 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
