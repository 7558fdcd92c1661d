"""What is asked of a server, which rate keeps a promise, and what is worth a simulation."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from optcli.errors import InputError
from optcli.measure.queueing import formulas, number
from optcli.measure.queueing.arrivals import Bursts, Constant, Poisson, Process
from optcli.measure.queueing.batching import Batching, Overhead, Semantics, Simulation
from optcli.measure.queueing.curve import Curve
from optcli.measure.queueing.formulas import capacity_per_s
from optcli.measure.queueing.simulation import NO_OVERHEAD, seeds_of, simulate

PLACE = "slo"
# Rates that are tried first, each as a share of the one before, down to a share of the capacity.
_STEP = 0.85
_LOWEST = 0.02
# Each rate by the medians of so many simulations; the search ends at this share of the rate.
_SEEDS = 3
_PRECISION = 0.005
_LARGEST_BATCH = 64
_WAITS_MS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)
# Waits of sealed batching that are tried, as multiples of the least one.
_SEALED_WAITS = (1.1, 1.25, 1.5, 2.0, 3.0)
# Of one simulation; it has so many bursts at least, where that is not too long.
_REQUESTS = 30_000
_MOST_REQUESTS = 120_000
_BURSTS = 60
# In a queue near saturation latency rises for so many requests.
_OF_A_REPLICA = 2000


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
    requests: int = 80_000,
    seed: int = 0,
) -> float:
    """Requests a second, as the mean of the process; 0 where no rate keeps the promise.

    The process is scaled; medians over three seeds decide. The rate is exact to 0.5 %. Low rates can
    break a promise that higher ones keep, where batches fill sooner: the search comes from the capacity
    downwards. It ends at 2 % of the capacity.
    """
    seeds = seeds_of(seed, _SEEDS)

    def keeps(rate: float) -> bool:
        scaled = process.scaled(rate / process.rate_per_s)
        simulations = [
            simulate(scaled.draw(requests, each), curve, batching, overhead, seed=each)
            for each in seeds
        ]
        return promise.kept_by_all(simulations)

    ingress_ms, sizes = overhead.apart_ms, range(1, batching.batch + 1)
    capacity = max(
        capacity_per_s(curve, size, batching.workers, ingress_ms=ingress_ms) for size in sizes
    )
    breaks, carried = capacity, capacity * _STEP
    while not keeps(carried):
        breaks, carried = carried, carried * _STEP
        if carried < _LOWEST * capacity:
            return 0.0
    while breaks - carried > _PRECISION * carried:
        middle = (breaks + carried) / 2
        if keeps(middle):
            carried = middle
        else:
            breaks = middle
    return carried


@dataclass(frozen=True)
class Demand:
    """What is asked of a server, and what of the answer is fixed already.

    `process` is what comes at the rate that is planned for. `headroom` is the share that is kept free
    above it, `utilisation` the largest load with full batches. `batch`, `waits_ms` (one, or several to
    choose from) and `instances` fix a part of the configuration; with a fixed number of instances,
    headroom and utilisation prune nothing. `requests` is how many a simulation has.
    """

    process: Process
    promise: Promise
    overhead: Overhead = NO_OVERHEAD
    headroom: float = 0.2
    utilisation: float = 0.7
    semantics: Semantics = "oldest-age"
    concurrency: int = 1
    batch: int | None = None
    waits_ms: tuple[float, ...] = ()
    instances: int | None = None
    largest_batch: int = _LARGEST_BATCH
    requests: int = _REQUESTS
    seed: int = 0

    @property
    def ingress_ms(self) -> float:
        """The time between two requests that all processes of the ingress pass at most."""
        return self.overhead.apart_ms

    @property
    def ingress_load(self) -> float:
        """The share of time for which the requests keep the ingress busy; above 1 its queue grows."""
        return self.process.rate_per_s * self.ingress_ms / 1000

    @property
    def tightest_ms(self) -> float:
        """The smallest limit of the promise, in milliseconds."""
        return min(self.promise.limits_ms.values())


def requests_of(demand: Demand) -> int:
    """How many requests one simulation has: more where bursts are rare."""
    process = demand.process
    if not isinstance(process, Bursts):
        return demand.requests
    per_burst = process.rate_per_s * (process.base_ms + process.burst_ms) / 1000
    return int(min(_MOST_REQUESTS, max(demand.requests, _BURSTS * per_burst)))


def requests_for(demand: Demand, batching: Batching) -> int:
    """How many a simulation near saturation has: more where each of many replicas has its own queue."""
    count = requests_of(demand)
    if batching.semantics != "sealed":
        return count
    return max(count, min(_MOST_REQUESTS, _OF_A_REPLICA * batching.instances))


def by_load(curve: Curve, demand: Demand, batch: int, headroom: float = 0.0) -> int:
    """The instances that a load of `utilisation` asks for at the planned rate."""
    return formulas.fewest_instances(
        demand.process.rate_per_s,
        curve,
        batch,
        utilisation=demand.utilisation,
        headroom=headroom,
        concurrency=demand.concurrency,
    )


def offered_batches(curve: Curve, demand: Demand) -> list[int]:
    """The batch sizes that are worth a try: known ones, two calls of which fit into the promise.

    One that is padded is none of them where the size it is padded to is: a larger batch in the same
    time. A request that just missed a batch waits for it and for its own. Where the number of instances
    is fixed, and for the smallest batch size, one call is enough: the simulation decides.
    """
    if demand.batch is not None:
        return [demand.batch]
    largest = demand.largest_batch
    doubled = [1 << power for power in range(largest.bit_length()) if 1 << power <= largest]
    sizes = sorted({*doubled, *curve.sizes})
    sizes = [size for size in sizes if size <= largest and not curve.is_extrapolated(size)]
    sizes = [size for size in sizes if (curve.padded_to(size) or largest + 1) > largest]
    room = demand.tightest_ms - demand.overhead.alone_ms
    calls = 1 if demand.instances is not None else 2
    fitting = [size for size in sizes if calls * curve.time_ms(size) <= room]
    return fitting or [size for size in sizes[:1] if curve.time_ms(size) <= room]


def offer(curve: Curve, demand: Demand, batch: int) -> Batching:
    """The configuration with a batch size, with the instances that the load alone asks for."""
    instances = demand.instances or by_load(curve, demand, batch, demand.headroom)
    return Batching(
        batch=batch,
        wait_ms=demand.waits_ms[0] if demand.waits_ms else 0.0,
        instances=instances,
        concurrency=demand.concurrency,
        semantics=demand.semantics,
    )


def waits_ms(curve: Curve, demand: Demand, offer: Batching) -> list[float]:
    """The waits that are tried: of sealed batching from the least one, else up to the delay budget."""
    if demand.waits_ms:
        return list(demand.waits_ms)
    rate = demand.process.rate_per_s
    slo, batch = demand.tightest_ms, offer.batch
    if demand.semantics == "sealed":
        least = sealed_least_ms(curve, demand, offer)
        waits = [wait for wait in _WAITS_MS if wait >= least and wait <= slo]
        waits += [least * factor for factor in _SEALED_WAITS if least * factor <= slo]
        # Where no wait is long enough the queue grows: any wait shows it.
        return sorted({round(wait, 1) for wait in waits}) or [least if math.isfinite(least) else slo]
    if batch == 1:
        return [0.0]
    budget = formulas.longest_wait_ms(slo, curve, batch, rate, demand.overhead.alone_ms)
    return sorted({*(wait for wait in _WAITS_MS if wait <= budget), float(int(budget))})


def sealed_least_ms(curve: Curve, demand: Demand, offer: Batching) -> float:
    """The wait below which the queue of a sealed batcher grows without bound, in milliseconds.

    Infinite where its largest batch is too small for the rate.
    """
    if offer.batch == 1 or demand.semantics != "sealed":
        return 0.0
    least = formulas.fewest_wait_sealed_ms(
        demand.process.rate_per_s,
        curve,
        offer.instances,
        utilisation=1.0,
        batch=offer.batch,
        concurrency=offer.concurrency,
    )
    return round(least, 6)


def waits_too_little(curve: Curve, demand: Demand, batching: Batching) -> bool:
    """Whether a sealed batcher's wait is below the least one, for requests without bursts.

    So near to the least wait a queue grows more slowly than a simulation of this length can tell.
    Bursts fill batches that independent requests would not: of them the simulation decides.
    """
    return isinstance(demand.process, Poisson | Constant) and batching.wait_ms < sealed_least_ms(
        curve, demand, batching
    )
