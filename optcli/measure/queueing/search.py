"""The highest rate at which a configuration keeps its promise, by bisection with simulations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from optcli.errors import InputError
from optcli.measure.queueing.arrivals import Process
from optcli.measure.queueing.batching import Batching, Overhead, Simulation
from optcli.measure.queueing.curve import Curve
from optcli.measure.queueing.formulas import capacity_per_s
from optcli.measure.queueing.quantities import number, whole
from optcli.measure.queueing.simulation import NO_OVERHEAD, seeds_of, simulate

PLACE = "slo"
# Rates that are tried first, each as a share of the one before, down to a share of the capacity.
_STEP = 0.85
_LOWEST = 0.02


@dataclass(frozen=True)
class Promise:
    """A service level: milliseconds by quantile ({0.95: 120.0}).

    Raises `InputError` for an empty promise and for quantiles outside (0, 1).
    """

    limits_ms: Mapping[float, float]

    def __post_init__(self) -> None:
        if not self.limits_ms:
            raise InputError("no latency is promised", place=PLACE, hint="write p95=120ms")
        for q, limit in self.limits_ms.items():
            if not 0 < q < 1:
                raise InputError(
                    f"{q!r} is no quantile", place=PLACE, hint="give a number above 0 and below 1"
                )
            number(limit, f"the limit of p{100 * q:g}", PLACE, least=0, above=True)

    def kept_by(self, simulation: Simulation) -> bool:
        """Whether the percentiles keep it, and the queue does not grow."""
        return self.kept_by_all([simulation])

    def kept_by_all(self, simulations: list[Simulation]) -> bool:
        """The same of the medians over several runs; in no run may the queue grow."""
        if any(each.grows for each in simulations):
            return False
        return all(
            median(each.percentile_ms(q) for each in simulations) <= limit
            for q, limit in self.limits_ms.items()
        )


def highest_rate(
    process: Process,
    curve: Curve,
    batching: Batching,
    promise: Promise,
    overhead: Overhead = NO_OVERHEAD,
    *,
    runs: int = 3,
    requests: int = 80_000,
    seed: int = 0,
    precision: float = 0.005,
) -> float:
    """Requests a second, as the mean of the process; 0 where no rate keeps the promise.

    The process is scaled; medians over `runs` seeds decide. `precision` is a share of the rate. Low
    rates can break a promise that higher ones keep, where batches fill sooner: the search comes from
    the capacity downwards. It ends at 2 % of the capacity.
    """
    whole(runs, "the number of runs", PLACE, least=1)
    number(precision, "the precision", PLACE, least=0, above=True)
    seeds = seeds_of(seed, runs)

    def keeps(rate: float) -> bool:
        scaled = process.scaled(rate / process.rate_per_s)
        simulations = [
            simulate(scaled.draw(requests, each), curve, batching, overhead, seed=each)
            for each in seeds
        ]
        return promise.kept_by_all(simulations)

    capacity = max(
        capacity_per_s(
            curve,
            size,
            batching.workers,
            ingress_ms=overhead.apart_ms,
        )
        for size in range(1, batching.batch + 1)
    )
    breaks, carried = capacity, capacity * _STEP
    while not keeps(carried):
        breaks, carried = carried, carried * _STEP
        if carried < _LOWEST * capacity:
            return 0.0
    while breaks - carried > precision * carried:
        middle = (breaks + carried) / 2
        if keeps(middle):
            carried = middle
        else:
            breaks = middle
    return carried
