"""Batching queues, simulated: one run, or several with other seeds."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from heapq import heapreplace

import numpy as np

from optcli.measure.queueing import share, whole
from optcli.measure.queueing.arrivals import PLACE, Arrivals, Process
from optcli.measure.queueing.batching import (
    Batching,
    Overhead,
    Prediction,
    SentBatches,
    Simulation,
    percentiles_ms,
)
from optcli.measure.queueing.curve import Curve
from optcli.results import Estimate
from optcli.results.statistics import t_interval

NO_OVERHEAD = Overhead()
# The queue grows where workers were taken for so much of the time and the last quarter's latency is so
# many times the first's.
_ALWAYS_BUSY = 0.99
_RISE = 1.5


@dataclass(frozen=True, eq=False)
class Durations:
    """For how long a batch keeps its worker.

    `table` [largest batch, levels] in milliseconds: row B - 1 holds equally likely times of a batch.

    One level means that nothing is drawn.
    """

    table: np.ndarray
    seed: int

    @classmethod
    def of(cls, curve: Curve, largest: int, seed: int) -> Durations:
        """Batches of 1 to `largest`."""
        table = curve.quantiles_ms(largest)
        if table is None:
            table = np.array(curve.times_ms(largest))[:, None]
        return cls(table, seed)

    @property
    def is_fixed(self) -> bool:
        """Whether batches of one size all take the same time."""
        return bool(self.table.shape[1] == 1)

    def levels(self, count: int) -> np.ndarray:
        """The level of each of up to `count` batches [count], uniform; the same in every call."""
        if self.is_fixed:
            return np.zeros(count, dtype=np.int64)
        return np.random.default_rng([self.seed, 4]).integers(self.table.shape[1], size=count)


def _of_queue(times: np.ndarray, batching: Batching, workers: int, draw: Durations) -> SentBatches:
    """What one queue sends: that of the server, or of one replica where batches are sealed.

    First come, first served: a batch is a run of requests, and when the next one goes follows from the
    one before.

    `times` [requests] ascending. A batch that begins with request i closes at
    min(a_i + D, a_{i+B-1}); with "oldest-age" no earlier than a worker is free. The first free worker
    takes it.
    """
    count, batch, wait_ms = times.size, batching.batch, batching.wait_ms
    sealed = batching.semantics == "sealed"
    # Nobody arrives after the last: then no batch is full.
    arrivals = times.tolist() + [math.inf] * batch
    levels = draw.levels(count)
    rows, chosen, is_fixed = draw.table.tolist(), levels.tolist(), draw.is_fixed
    fixed = [row[0] for row in rows]
    free = [0.0] * workers
    ends: list[int] = []
    starts: list[float] = []
    first = 0
    while first < count:
        worker, last = free[0], first + batch - 1
        closed, full = arrivals[first] + wait_ms, arrivals[last]
        if full < closed:
            closed = full
        if closed < worker and not sealed:
            closed = worker
        end = last + 1 if full <= closed else bisect_right(arrivals, closed, first + 1, last)
        size = end - first - 1
        took = fixed[size] if is_fixed else rows[size][chosen[len(ends)]]
        started = closed if closed > worker else worker
        heapreplace(free, started + took)
        ends.append(end)
        starts.append(started)
        first = end
    sizes = np.diff(ends, prepend=0)
    return SentBatches(
        members=np.arange(count),
        sizes=sizes,
        started_ms=np.array(starts),
        took_ms=draw.table[sizes - 1, levels[: sizes.size]],
    )


def simulate(
    arrivals: Arrivals,
    curve: Curve,
    batching: Batching,
    overhead: Overhead = NO_OVERHEAD,
    *,
    seed: int = 0,
    warm_up: float = 0.05,
) -> Simulation:
    """Send every request through the server. The same arguments give the same result.

    `seed` decides what is drawn of a measured curve and where sealed batching sends a request. The
    first `warm_up` of the requests, as a share, do not count. Raises `InputError`.
    """
    share(warm_up, "the warm-up", PLACE)
    times = _past_ingress(arrivals, overhead, seed)
    draw = Durations.of(curve, batching.batch, seed)
    batches = _sent(replace(arrivals, times_ms=times), batching, draw)
    started, finished = np.empty(times.size), np.empty(times.size)
    started[batches.members] = np.repeat(batches.started_ms, batches.sizes)
    ended = batches.started_ms + batches.took_ms + overhead.total_ms
    finished[batches.members] = np.repeat(ended, batches.sizes)
    skipped = min(int(warm_up * times.size), times.size - 1)
    return _summary(arrivals, batching, overhead, batches, started, finished, skipped)


def replicate(
    process: Process,
    curve: Curve,
    batching: Batching,
    overhead: Overhead = NO_OVERHEAD,
    *,
    runs: int = 4,
    requests: int = 100_000,
    seed: int = 0,
    warm_up: float = 0.05,
) -> Prediction:
    """`runs` simulations of `requests` each, with seeds that follow from `seed`."""
    whole(runs, "the number of runs", PLACE, least=1)
    seeds = seeds_of(seed, runs)
    simulations = [
        simulate(process.draw(requests, each), curve, batching, overhead, seed=each, warm_up=warm_up)
        for each in seeds
    ]

    def over_runs(name: str) -> Estimate:
        values = [float(getattr(each, name)) for each in simulations]
        if runs == 1 or not np.isfinite(values).all():
            return Estimate(value=float(np.mean(values)))
        value, low, high = t_interval(values)
        return Estimate(value=value, low=max(0.0, low), high=high)

    return Prediction(
        p50_ms=over_runs("p50_ms"),
        p95_ms=over_runs("p95_ms"),
        p99_ms=over_runs("p99_ms"),
        mean_ms=over_runs("mean_ms"),
        mean_batch=over_runs("mean_batch"),
        busy=over_runs("busy"),
        grows=any(each.grows for each in simulations),
        requests=requests,
    )


def seeds_of(seed: int, runs: int) -> list[int]:
    """Seeds of single runs; those of two different `seed` have nothing in common."""
    whole(seed, "the seed", PLACE, least=0)
    return [int(each) for each in np.random.SeedSequence(seed).generate_state(runs)]


def _past_ingress(arrivals: Arrivals, overhead: Overhead, seed: int) -> np.ndarray:
    """When each request has passed the ingress [requests], in milliseconds.

    Several processes take the requests in turn.
    """
    came, processes = arrivals.times_ms, overhead.ingresses
    if not overhead.ingress_ms:
        return came
    at_ingress_ms = _at_ingress(overhead, came.size, seed)
    times = np.empty(came.size)
    for number in range(processes):
        own = slice(number, None, processes)
        # Each is taken up at max(arrival, previous end): a running maximum without the work before.
        done = np.cumsum(at_ingress_ms[own])
        times[own] = np.maximum.accumulate(came[own] - (done - at_ingress_ms[own])) + done
    passed: np.ndarray = np.maximum.accumulate(times)  # in order, also where one process is ahead
    return passed


def _at_ingress(overhead: Overhead, count: int, seed: int) -> np.ndarray:
    """How long the ingress works for each request [count], in milliseconds."""
    mean, cv2 = overhead.ingress_ms, overhead.ingress_cv2
    if not cv2:
        return np.full(count, mean)
    return np.random.default_rng([seed, 6]).gamma(1 / cv2, mean * cv2, count)


def _sent(arrivals: Arrivals, batching: Batching, draw: Durations) -> SentBatches:
    times = arrivals.times_ms
    if batching.semantics == "sealed":
        return _sealed(times, batching, draw)
    return _of_queue(times, batching, batching.workers, draw)


def _sealed(times: np.ndarray, batching: Batching, draw: Durations) -> SentBatches:
    """Each replica batches what chance sends to it; its workers are `concurrency` in number."""
    replicas = batching.instances
    random = np.random.default_rng([draw.seed, 5])
    replica_of = random.integers(replicas, size=times.size) if replicas > 1 else np.zeros(times.size)
    parts = []
    for number in range(replicas):
        own = np.flatnonzero(replica_of == number)
        one = replace(draw, seed=draw.seed + number)
        if own.size:
            sent = _of_queue(times[own], batching, batching.concurrency, one)
            parts.append(replace(sent, members=own))
    names = SentBatches.__dataclass_fields__
    return SentBatches(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    )


def _summary(
    arrivals: Arrivals,
    batching: Batching,
    overhead: Overhead,
    batches: SentBatches,
    started: np.ndarray,
    finished: np.ndarray,
    skipped: int,
) -> Simulation:
    times = arrivals.times_ms
    latencies = finished - times
    counted = latencies[skipped:]
    begin, end = float(times[skipped]), float(times[-1])
    window_s = (end - begin) / 1000
    inside = np.minimum(batches.started_ms + batches.took_ms, end) - np.maximum(
        batches.started_ms, begin
    )
    busy_ms = float(np.maximum(inside, 0).sum())
    busy = busy_ms / (batching.workers * window_s * 1000) if window_s else 0.0
    # A batch counts where its first request does.
    firsts = np.cumsum(batches.sizes) - batches.sizes
    sizes = batches.sizes[batches.members[firsts] >= skipped]
    p50, p95, p99 = percentiles_ms(counted, [0.5, 0.95, 0.99])
    return Simulation(
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        mean_ms=float(counted.mean()),
        mean_batch=float(sizes.mean()) if sizes.size else float("nan"),
        busy=busy,
        grows=_grows(counted, max(busy, _ingress_busy(arrivals, overhead, skipped)))
        if window_s
        else False,
        skipped=skipped,
        latencies_ms=latencies,
        started_ms=started,
        finished_ms=finished,
    )


def _ingress_busy(arrivals: Arrivals, overhead: Overhead, skipped: int) -> float:
    """The work that comes to the ingress from request `skipped` on, as a share of the time."""
    begin, end = float(arrivals.times_ms[skipped]), float(arrivals.times_ms[-1])
    return overhead.apart_ms * (arrivals.count - skipped - 1) / (end - begin)


def _grows(latencies: np.ndarray, busy: float) -> bool:
    quarter = latencies.size // 4
    if busy < _ALWAYS_BUSY or not quarter:
        return False
    return bool(np.mean(latencies[-quarter:]) > _RISE * np.mean(latencies[:quarter]))
