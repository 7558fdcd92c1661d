"""The choice of a configuration: formulas prune, the simulation decides.

Of the configurations that keep a promise, the choice takes the fewest instances. Of those, it takes the
smallest batch size that carries twice the traffic, or comes within 5 % of the batch size that carries
most. A wait is worth a try up to a tenth of the promise, and beyond where it adds less than 5 % to the
latency; of these the choice takes the one that keeps workers least busy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from optcli.measure.queueing import formulas
from optcli.measure.queueing.batching import Batching, Prediction, Simulation
from optcli.measure.queueing.curve import Curve
from optcli.measure.queueing.demand import (
    Demand,
    Promise,
    highest_rate,
    offer,
    offered_batches,
    requests_for,
    requests_of,
    waits_ms,
    waits_too_little,
)
from optcli.measure.queueing.simulation import replicate, simulate

# Share of the best that counts as equal: of the traffic that a batch size carries, of latency.
_EQUAL = 0.05
# The same of busy time: the shorter of two waits is taken.
_EQUALLY_BUSY = 0.02
# More growth than this decides nothing.
MOST_GROWTH = 2.0
_SHARE_OF_PROMISE = 0.1
# As many times the instances that one run asks for are tried with other seeds.
_MOST_MORE = 4
# More are no longer one queue: such traffic is split before it gets here.
MOST_INSTANCES = 1000
_BISECTIONS = 5
# What is predicted again with more where the intervals do not tell.
_MORE_RUNS, _MORE_REQUESTS = 8, 4

Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Tried:
    """One configuration that was simulated.

    `load` is that of the instances; an ingress has its own. `growth` is the factor by which the traffic
    may grow (at most `MOST_GROWTH`) before the promise is broken; 0 where it is broken already.
    `with_headroom` says whether it is kept with the headroom.
    """

    batching: Batching
    load: float
    run: Simulation
    kept: bool
    with_headroom: bool
    growth: float = 0.0


@dataclass(frozen=True)
class ConfigurationChoice:
    """The best configuration and what it is predicted to do; None of both where none keeps the promise.

    `tried` has one configuration for each batch size, the nearest to the promise first where none
    keeps it.
    """

    best: Tried | None
    prediction: Prediction | None
    tried: tuple[Tried, ...]


def choose(
    curve: Curve, demand: Demand, progress: Progress = lambda share, text: None
) -> ConfigurationChoice:
    """The configuration for a demand. The same arguments give the same choice. Raises `InputError`."""
    offers = [offer(curve, demand, batch) for batch in offered_batches(curve, demand)]
    offers.sort(key=lambda each: (each.instances, each.batch))
    tried: list[Tried] = []
    fewest = demand.instances or MOST_INSTANCES
    for place, first in enumerate(offers):
        if first.instances > fewest:
            continue
        progress(place / len(offers), f"batch {first.batch}")
        one = _enough_instances(curve, demand, first, fewest)
        tried.append(one)
        if one.kept and one.with_headroom:
            fewest = min(fewest, one.batching.instances)
    return _best_of(curve, demand, tried, progress)


def predict(
    curve: Curve,
    demand: Demand,
    batching: Batching,
    *,
    factor: float = 1.0,
    runs: int = 4,
    requests: int | None = None,
) -> Prediction:
    """Several simulations of one configuration, with their own seeds, at `factor` times the traffic."""
    return replicate(
        demand.process.scaled(factor),
        curve,
        batching,
        demand.overhead,
        runs=runs,
        requests=requests or 2 * requests_of(demand),
        seed=demand.seed + 1,
    )


def _sure(curve: Curve, demand: Demand, batching: Batching) -> Prediction:
    """A prediction; with more requests where the means keep the promise and the intervals do not."""
    prediction = predict(curve, demand, batching)
    if keeps(prediction, demand.promise) or not keeps(prediction, demand.promise, surely=False):
        return prediction
    more = _MORE_REQUESTS * requests_of(demand)
    return predict(curve, demand, batching, runs=_MORE_RUNS, requests=more)


def most_carried(curve: Curve, demand: Demand, batching: Batching) -> float:
    """The highest rate at which a configuration keeps the promise: see `highest_rate`."""
    return highest_rate(
        demand.process,
        curve,
        batching,
        demand.promise,
        demand.overhead,
        requests=requests_for(demand, batching),
        seed=demand.seed,
    )


def simulated(curve: Curve, demand: Demand, batching: Batching, factor: float = 1.0) -> Simulation:
    """One simulation at `factor` times the traffic; the same requests for every configuration."""
    process = demand.process.scaled(factor)
    arrivals = process.draw(requests_of(demand), demand.seed)
    return simulate(arrivals, curve, batching, demand.overhead, seed=demand.seed)


def keeps(prediction: Prediction, promise: Promise, *, surely: bool = True) -> bool:
    """Whether a promise is kept: `surely` by the upper ends of all intervals, else by the means."""
    by_quantile = {0.5: prediction.p50_ms, 0.95: prediction.p95_ms, 0.99: prediction.p99_ms}
    reached = {q: by_quantile[q] for q in promise.limits_ms}
    return not prediction.grows and all(
        (each.high if surely and each.high is not None else each.value) <= promise.limits_ms[q]
        for q, each in reached.items()
    )


def _enough_instances(curve: Curve, demand: Demand, first: Batching, most: int) -> Tried:
    """The offer with its wait, and with as many more instances as the promise needs, up to `most`."""
    tried = _with_wait(curve, demand, first)
    # More instances do not help an ingress that is too slow.
    if demand.instances is not None or demand.ingress_load * (1 + demand.headroom) >= 1:
        return tried
    top = min(most, max(4 * first.instances, first.instances + 8))
    instances = first.instances
    while not (tried.kept and tried.with_headroom) and instances < top:
        instances += max(1, instances // 8)
        tried = _with_wait(curve, demand, replace(first, instances=min(instances, top)))
    return tried


def _with_wait(curve: Curve, demand: Demand, first: Batching) -> Tried:
    """The best wait for a batch size and a number of instances."""
    offers = [replace(first, wait_ms=wait) for wait in waits_ms(curve, demand, first)]
    runs = [_tried(curve, demand, each) for each in offers]
    good = [each for each in runs if each.kept and each.with_headroom]
    good = good or [each for each in runs if each.kept]
    if not good:
        return min(runs, key=lambda each: (each.run.grows, _excess(each.run, demand.promise)))
    if demand.semantics == "sealed":
        return min(good, key=lambda each: _excess(each.run, demand.promise))
    quickest = min(_excess(each.run, demand.promise) for each in good)
    cheap = [
        each
        for each in good
        if each.batching.wait_ms <= _SHARE_OF_PROMISE * demand.tightest_ms
        or _excess(each.run, demand.promise) <= quickest * (1 + _EQUAL)
    ]
    least = min(each.run.busy for each in cheap or good)
    return next(each for each in cheap or good if each.run.busy <= least * (1 + _EQUALLY_BUSY))


def _tried(curve: Curve, demand: Demand, batching: Batching) -> Tried:
    run = simulated(curve, demand, batching)
    kept = demand.promise.kept_by(run) and not waits_too_little(curve, demand, batching)
    reserve = kept and demand.headroom > 0
    with_headroom = kept and (
        not reserve or demand.promise.kept_by(simulated(curve, demand, batching, 1 + demand.headroom))
    )
    load = formulas.load(demand.process.rate_per_s, curve, batching.batch, batching.workers)
    return Tried(batching, load, run, kept, with_headroom)


def _excess(run: Simulation, promise: Promise) -> float:
    """The largest percentile as a share of its limit."""
    return max(run.percentile_ms(q) / limit for q, limit in promise.limits_ms.items())


def _best_of(
    curve: Curve, demand: Demand, tried: Sequence[Tried], progress: Progress
) -> ConfigurationChoice:
    good = [each for each in tried if each.kept and (each.with_headroom or demand.instances)]
    if any(each.with_headroom for each in good):
        good = [each for each in good if each.with_headroom]
    fewest = min((each.batching.instances for each in good), default=0)
    alike = [each for each in good if each.batching.instances == fewest]
    grown = [replace(each, growth=_growth(curve, demand, each.batching)) for each in alike]
    others = [each for each in tried if each not in alike]
    while grown:
        progress(0.9, "the best again, with other seeds")
        most = max(each.growth for each in grown)
        equal = [each for each in grown if each.growth >= most * (1 - _EQUAL)]
        best = min(equal, key=lambda each: each.batching.batch)
        grown.remove(best)
        best, prediction = _made_sure(curve, demand, best)
        if keeps(prediction, demand.promise):
            every = sorted([best, *grown, *others], key=lambda each: each.batching.batch)
            return ConfigurationChoice(best, prediction, tuple(every))
        others.append(replace(best, kept=False, with_headroom=False, growth=0.0))
    return ConfigurationChoice(None, None, tuple(_nearest(others, demand)))


def _made_sure(curve: Curve, demand: Demand, best: Tried) -> tuple[Tried, Prediction]:
    """The best with a prediction by other seeds; with more instances where those have worse moments.

    One run may have none of the bursts that are rare.
    """
    prediction = _sure(curve, demand, best.batching)
    most = _MOST_MORE * best.batching.instances
    while demand.instances is None and not keeps(prediction, demand.promise):
        instances = best.batching.instances + max(1, best.batching.instances // 4)
        if instances > most:
            break
        batching = replace(best.batching, instances=instances)
        best = replace(_tried(curve, demand, batching), growth=best.growth)
        prediction = _sure(curve, demand, batching)
    return best, prediction


def _nearest(tried: Sequence[Tried], demand: Demand) -> list[Tried]:
    """Those that keep the promise first, by instances; then by how far they are from it."""
    return sorted(
        tried,
        key=lambda each: (
            not each.kept,
            each.batching.instances if each.kept else 0,
            each.run.grows,
            _excess(each.run, demand.promise),
        ),
    )


def _growth(curve: Curve, demand: Demand, batching: Batching) -> float:
    """The factor of the traffic at which the promise is just kept, at most `MOST_GROWTH`."""
    low, high = 1.0, MOST_GROWTH
    if demand.promise.kept_by(simulated(curve, demand, batching, high)):
        return high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if demand.promise.kept_by(simulated(curve, demand, batching, middle)):
            low = middle
        else:
            high = middle
    return low
