"""A configuration in full: what is asked of the queue, and what is served with at which cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from optcli.errors import UsageError
from optcli.measure.queueing import formulas
from optcli.measure.queueing.arrivals import Bursts, Gamma, Poisson, Process, parse
from optcli.measure.queueing.batching import Batching, Overhead, Prediction, Simulation
from optcli.measure.queueing.choice import choose, most_carried, simulated
from optcli.measure.queueing.curve import Curve
from optcli.measure.queueing.demand import Demand, Promise, offered_batches, sealed_least_ms
from optcli.results import Estimate
from optcli.results.plan import Configuration, Interval, PriorityLatency
from optcli.serving.planning.files import PlanSettings


def part_of(process: Process, share: float) -> Process:
    """The requests of a process that a share of them is, each by chance.

    A random part of independent requests, or of bursts, is of the same kind. Other gaps are taken as
    gamma distributed with the mean and the variance that they have.
    """
    if share == 1 or isinstance(process, Poisson | Bursts):
        return process.scaled(share)
    cv2 = process.cv2 if isinstance(process, Gamma) else 0.0
    return Gamma(process.rate_per_s * share, share * cv2 + 1 - share)


@dataclass(frozen=True)
class Traffic:
    """Requests as they come, and those that the model sees at the rate that is planned for.

    `mean_per_s` is what comes on average. `planned` has no requests that a cache answers.
    """

    mean_per_s: float
    planned: Process


def traffic_of(settings: PlanSettings, rate_per_s: float | None = None) -> Traffic:
    """The traffic of a plan file; `rate_per_s` stands in where it names none.

    Raises `UsageError` where neither does, `InputError` for a form that cannot be read.
    """
    known = settings.rate_per_s or rate_per_s
    if known is None:
        raise UsageError(
            "the plan has no rate",
            place="--rate",
            hint="say how many requests come a second, such as --rate 600; with --instances it may"
            " be left out: the answer is then the rate that these carry",
        )
    came = parse(settings.arrivals, known)
    return Traffic(came.rate_per_s, part_of(came, 1 - settings.cache_hit_rate))


def demand_of(settings: PlanSettings, traffic: Traffic) -> Demand:
    """What is asked of the queue; the ingress has as many processes as the rate takes, or as are given.

    Requests that a cache answers pass the ingress as well: their work counts as that of the others.
    """
    assert settings.slo is not None
    overhead = settings.overhead_here
    ingress_ms = overhead.ingress_ms / (1 - settings.cache_hit_rate)
    busy = traffic.planned.rate_per_s * (1 + settings.headroom) * ingress_ms / 1000
    needed = max(1, math.ceil(busy / settings.utilisation - 1e-9)) if settings.server.scales else 1
    return Demand(
        process=traffic.planned,
        promise=Promise(settings.slo.limits_ms),
        overhead=Overhead(
            overhead.before_ms,
            overhead.after_ms,
            ingress_ms,
            overhead.ingress_cv2,
            overhead.ingresses or needed,
        ),
        headroom=settings.headroom,
        utilisation=settings.utilisation,
        semantics=settings.semantics,
        concurrency=settings.concurrency,
        batch=settings.batch if settings.server.batches else 1,
        waits_ms=settings.waits_ms,
        instances=settings.instances,
        largest_batch=settings.largest_batch,
        seed=settings.seed,
    )


def carried_per_s(settings: PlanSettings, curve: Curve) -> float | None:
    """The rate at the model that fixed instances carry at the utilisation cap; None: one is named."""
    if settings.rate_per_s is not None or settings.instances is None:
        return None
    demand = demand_of(settings, Traffic(1.0, Poisson(1.0)))
    # An ingress that can have more processes gets them.
    fixed = settings.overhead.ingresses is not None or not settings.server.scales
    batches = offered_batches(curve, demand) or [(curve.sizes or (1,))[0]]
    workers = settings.instances * settings.concurrency
    return settings.utilisation * max(
        formulas.capacity_per_s(curve, batch, workers, ingress_ms=demand.ingress_ms if fixed else 0.0)
        for batch in batches
    )


def asked_for_per_s(settings: PlanSettings, at_the_model: float | None) -> float | None:
    """The rate that brings one to the model, without what a cache answers."""
    if at_the_model is None:
        return None
    return at_the_model / (1 - settings.cache_hit_rate)


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
    limit = demand.tightest_ms
    overhead, ingress = demand.overhead.alone_ms, demand.ingress_ms
    rate = demand.process.rate_per_s
    capacity = formulas.capacity_per_s(curve, batch, workers, ingress_ms=ingress)
    # Each machine has one process that takes requests.
    machines = max(
        math.ceil(batching.instances / settings.instances_per_machine), demand.overhead.ingresses
    )
    assert settings.slo is not None
    run = simulated(curve, demand, batching)
    bounds = _bounds(curve, demand, batching, run, settings.slo.error_budget)
    longest_ms = _exceeded_by(_waited_ms(run), settings.slo.error_budget)
    sealed = demand.semantics == "sealed"
    return Configuration(
        batch=batch,
        wait_ms=batching.wait_ms,
        instances=batching.instances,
        concurrency=batching.concurrency,
        machines=machines,
        instances_per_machine=settings.instances_per_machine,
        ingresses=demand.overhead.ingresses,
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
        max_rate_per_s=most_carried(curve, demand, batching),
        capacity_per_s=capacity,
        rate_at_utilisation_per_s=demand.utilisation * capacity,
        sum_ms=batching.wait_ms + curve.time_ms(batch) + overhead,
        queue_cap=bounds.waiting,
        timeout_ms=max(formulas.timeout_ms(limit, curve, batch, overhead), longest_ms),
        max_in_flight=bounds.in_flight,
        all_in_time=bounds.in_time,
        least_wait_ms=sealed_least_ms(curve, demand, batching) if sealed else None,
        longest_wait_ms=formulas.delay_budget_ms(limit, curve, batch, overhead),
        cost_per_1000=_cost(settings, machines, mean_per_s),
    )


@dataclass(frozen=True)
class _Bounds:
    """The most requests in the server, how many of them wait, and of how many all are in time."""

    in_flight: int
    waiting: int
    in_time: int


def _bounds(
    curve: Curve, demand: Demand, batching: Batching, run: Simulation, budget: float
) -> _Bounds:
    """What all but the error budget find at the planned rate, or more if all of it would be in time.

    A promise of p95 lets 5 of 100 requests be late. A server that has room for one more than what all
    but the budget find refuses no more: with what it refuses they would find fewer.
    """
    batch, computed = batching.batch, batching.workers * batching.batch
    limit, overhead = demand.tightest_ms, demand.overhead.alone_ms
    in_time = computed + formulas.queue_cap(
        limit, curve, batch, batching.workers, overhead, ingress_ms=demand.ingress_ms
    )
    # In a shorter queue no batch could fill.
    most = max(in_time, computed + batch)
    if demand.ingress_ms:
        passed = formulas.ingress_cap(limit, curve, batch, demand.ingress_ms, overhead)
        in_time = min(in_time, passed)
        most = max(batch, min(most, passed))
    came = run.finished_ms - run.latencies_ms
    if demand.semantics == "sealed":
        # All that the server has let in count.
        most = max(most, 1 + _first_within(came, run.finished_ms, run.skipped, budget))
        return _Bounds(most, max(0, most - computed), in_time)
    waiting = max(batch, most - computed, 1 + _first_within(came, run.started_ms, run.skipped, budget))
    return _Bounds(waiting + computed, waiting, in_time)


def _first_within(came: np.ndarray, gone: np.ndarray, skipped: int, budget: float) -> int:
    """How many requests that have come and are not gone all find at most, but for the budget."""
    left = np.searchsorted(np.sort(gone), came, side="right")
    return int(_exceeded_by((np.arange(came.size) - left)[skipped:], budget))


def _waited_ms(run: Simulation) -> np.ndarray:
    """For how long each request waited until a worker took it [requests], without the warm-up."""
    waited: np.ndarray = (run.started_ms - (run.finished_ms - run.latencies_ms))[run.skipped :]
    return waited


def _exceeded_by(values: np.ndarray, share: float) -> float:
    """What at most a share of some values lies above."""
    return float(np.quantile(values, 1 - share, method="inverted_cdf"))


def _interval(estimate: Estimate) -> Interval | None:
    if estimate.low is None or estimate.high is None:
        return None
    return (estimate.low, estimate.high)


def _cost(settings: PlanSettings, machines: int, mean_per_s: float) -> float | None:
    """Of 1,000 inferences: machines run all the time, whatever comes."""
    if settings.price_per_hour is None:
        return None
    return settings.price_per_hour * machines / (3.6 * mean_per_s)


def by_priority(settings: PlanSettings, curve: Curve, traffic: Traffic) -> Iterator[PriorityLatency]:
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
