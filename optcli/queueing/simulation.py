"""Batching queues, simulated: one run, or several with other seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from optcli.queueing import event_loop, recursion
from optcli.queueing.arrivals import PLACE, Arrivals, Process
from optcli.queueing.batching import (
    Batches,
    Batching,
    Overhead,
    Prediction,
    Simulation,
    Stages,
    percentiles_ms,
)
from optcli.queueing.curve import Curve
from optcli.queueing.durations import Durations
from optcli.queueing.quantities import share, whole
from optcli.results import Estimate
from optcli.statistics import t_interval

if TYPE_CHECKING:
    import numpy as np

NO_OVERHEAD = Overhead()
# The queue grows where workers were taken for so much of the time and the last quarter's latency is so
# many times the first's.
_ALWAYS_BUSY = 0.99
_RISE = 1.5


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
    import numpy as np

    share(warm_up, "the warm-up", PLACE)
    times = _past_ingress(arrivals, overhead, seed)
    draw = Durations.of(curve, batching.batch, overhead.occupied_ms, seed)
    passed = replace(arrivals, times_ms=times)
    batches = _sent(passed, batching, overhead, draw)
    outside_ms = 0.0 if overhead.occupies else overhead.total_ms
    started = np.repeat(batches.started_ms, batches.sizes)
    finished = np.full(times.size, np.nan)
    finished[batches.members] = started + np.repeat(batches.took_ms, batches.sizes) + outside_ms
    skipped = min(int(warm_up * times.size), times.size - 1)
    return _summary(arrivals, times, batching, overhead, batches, finished, skipped)


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
    import numpy as np

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

    stages = np.mean([list(vars(each.stages).values()) for each in simulations], axis=0)
    return Prediction(
        p50_ms=over_runs("p50_ms"),
        p95_ms=over_runs("p95_ms"),
        p99_ms=over_runs("p99_ms"),
        mean_ms=over_runs("mean_ms"),
        mean_batch=over_runs("mean_batch"),
        busy=over_runs("busy"),
        drop_share=over_runs("drop_share"),
        stages=Stages(*(float(each) for each in stages)),
        grows=any(each.grows for each in simulations),
        requests=requests,
    )


def seeds_of(seed: int, runs: int) -> list[int]:
    """Seeds of single runs; those of two different `seed` have nothing in common."""
    import numpy as np

    whole(seed, "the seed", PLACE, least=0)
    return [int(each) for each in np.random.SeedSequence(seed).generate_state(runs)]


def _past_ingress(arrivals: Arrivals, overhead: Overhead, seed: int) -> np.ndarray:
    """When each request has passed the ingress [requests], in milliseconds; others pass it as well."""
    import numpy as np

    own, beside = arrivals.times_ms, arrivals.beside_ms
    every = own
    is_own: np.ndarray | slice = slice(None)
    if overhead.ingress_ms and beside is not None and beside.size:
        every = np.concatenate([own, beside])
        order = np.argsort(every, kind="stable")
        every, is_own = every[order], order < own.size
    at_ingress_ms = _at_ingress(overhead, every.size, seed)
    # Each is taken up at max(arrival, previous one's end): a running maximum without the work before.
    done = np.cumsum(at_ingress_ms)
    times = np.maximum.accumulate(every - (done - at_ingress_ms)) + done
    passed: np.ndarray = np.maximum.accumulate(times)[is_own]  # rounding may let them fall by a hair
    return passed


def _at_ingress(overhead: Overhead, count: int, seed: int) -> np.ndarray:
    """How long the ingress works for each request [count], in milliseconds."""
    import numpy as np

    mean, cv2 = overhead.ingress_ms, overhead.ingress_cv2
    if not mean or not cv2:
        return np.full(count, mean)
    return np.random.default_rng([seed, 6]).gamma(1 / cv2, mean * cv2, count)


def _sent(arrivals: Arrivals, batching: Batching, overhead: Overhead, draw: Durations) -> Batches:
    times, most = arrivals.times_ms, batching.most_sent
    ready = (*batching.ready_ms, *[0.0] * batching.workers)[: batching.workers]
    if batching.semantics == "oldest-age":
        if batching.drops or arrivals.priority is not None:
            return event_loop.run(arrivals, batching, ready, draw)
        return recursion.run(times, batching, ready, draw)
    replica_of = _replica_of(times, batching, ready, draw)
    batches = _sealed(times, batching, ready, draw, replica_of)
    if most is None or _never_holds(batches, times, most):
        return batches
    return event_loop.run(arrivals, batching, ready, draw, replica_of.tolist(), overhead.call_ms)


def _sealed(
    times: np.ndarray,
    batching: Batching,
    ready: Sequence[float],
    draw: Durations,
    replica_of: np.ndarray,
) -> Batches:
    """Each replica batches what is sent to it; its workers are `concurrency` in number."""
    import numpy as np

    parts = []
    for number in range(batching.instances):
        mine = np.flatnonzero(replica_of == number)
        own = ready[number * batching.concurrency : (number + 1) * batching.concurrency]
        one = replace(draw, seed=draw.seed + number)
        if mine.size:
            parts.append(replace(recursion.run(times[mine], batching, own, one), members=mine))
    names = Batches.__dataclass_fields__
    return Batches(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def _never_holds(batches: Batches, times: np.ndarray, most: int) -> bool:
    """Whether at most `most` requests are ever at the replicas, each from its time in `times` on."""
    import numpy as np

    finished = np.sort(np.repeat(batches.started_ms + batches.took_ms, batches.sizes))
    there = np.arange(1, times.size + 1) - np.searchsorted(finished, times, side="right")
    return bool(there.max(initial=0) <= most)


def _replica_of(
    times: np.ndarray, batching: Batching, ready: Sequence[float], draw: Durations
) -> np.ndarray:
    """Where sealed batching sends each request [requests]; nothing to a replica that still starts."""
    import numpy as np

    replicas, random = batching.instances, np.random.default_rng([draw.seed, 5])
    if replicas == 1:
        return np.zeros(times.size, dtype=np.int64)
    if not any(ready):
        return random.integers(replicas, size=times.size)
    first_ms = np.array(ready).reshape(replicas, batching.concurrency).min(axis=1)
    order = np.argsort(first_ms, kind="stable")
    there = np.maximum(1, np.searchsorted(first_ms[order], times, side="right"))
    spread: np.ndarray = order[(random.random(times.size) * there).astype(int)]
    return spread


def _summary(
    arrivals: Arrivals,
    passed: np.ndarray,
    batching: Batching,
    overhead: Overhead,
    batches: Batches,
    finished: np.ndarray,
    skipped: int,
) -> Simulation:
    import numpy as np

    times = arrivals.times_ms
    latencies = finished - times
    counted = latencies[skipped:]
    served = ~np.isnan(counted)
    begin, end = float(times[skipped]), float(times[-1])
    window_s = (end - begin) / 1000
    inside = np.minimum(batches.started_ms + batches.took_ms, end) - np.maximum(
        batches.started_ms, begin
    )
    busy_ms = float(np.maximum(inside, 0).sum())
    busy = busy_ms / (batching.workers * window_s * 1000) if window_s else 0.0
    # A batch counts where its first request does.
    firsts = np.cumsum(batches.sizes) - batches.sizes
    sizes = batches.sizes[batches.members[firsts] >= skipped] if batches.sizes.size else batches.sizes
    p50, p95, p99 = percentiles_ms(counted, [0.5, 0.95, 0.99])
    return Simulation(
        p50_ms=p50,
        p95_ms=p95,
        p99_ms=p99,
        mean_ms=float(counted[served].mean()) if served.any() else float("nan"),
        mean_batch=float(sizes.mean()) if sizes.size else float("nan"),
        busy=busy,
        stages=_stages(times, passed, overhead, batches, skipped),
        grows=_grows(counted, max(busy, _ingress_busy(arrivals, overhead, skipped)))
        if window_s
        else False,
        skipped=skipped,
        latencies_ms=latencies,
        finished_ms=finished,
        priority=arrivals.priority,
    )


def _ingress_busy(arrivals: Arrivals, overhead: Overhead, skipped: int) -> float:
    """The work that comes to the ingress from request `skipped` on, as a share of the time."""
    import numpy as np

    begin, end = float(arrivals.times_ms[skipped]), float(arrivals.times_ms[-1])
    came = arrivals.times_ms.size - skipped - 1
    if arrivals.beside_ms is not None:
        beside = arrivals.beside_ms
        came += int(np.count_nonzero((beside > begin) & (beside <= end)))
    return overhead.ingress_ms * came / (end - begin)


def _stages(
    times: np.ndarray, passed: np.ndarray, overhead: Overhead, batches: Batches, skipped: int
) -> Stages:
    """Means over the answered requests that count; `passed` [all] is when they left the ingress."""
    import numpy as np

    counted = batches.members >= skipped
    if not counted.any():
        return Stages(0.0, 0.0, 0.0, 0.0)
    arrived = passed[batches.members]
    at_ingress = arrived - times[batches.members]
    free, closed, started, took = (
        np.repeat(each, batches.sizes)
        for each in (batches.free_ms, batches.closed_ms, batches.started_ms, batches.took_ms)
    )
    queue = started - closed + np.clip(free - arrived, 0, closed - arrived)
    wait = started - arrived - queue
    compute = took - overhead.occupied_ms
    return Stages(
        wait_ms=float(wait[counted].mean()),
        queue_ms=float(queue[counted].mean()),
        compute_ms=float(compute[counted].mean()),
        overhead_ms=overhead.total_ms + float(at_ingress[counted].mean()),
    )


def _grows(latencies: np.ndarray, busy: float) -> bool:
    import numpy as np

    quarter = latencies.size // 4
    if busy < _ALWAYS_BUSY or not quarter:
        return False
    first, last = latencies[:quarter], latencies[-quarter:]
    if np.isnan(first).all() or np.isnan(last).all():
        return False
    return bool(np.nanmean(last) > _RISE * np.nanmean(first))
