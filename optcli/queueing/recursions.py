"""The two batching rules without drops, batch by batch: exact, and fast in plain Python.

A queue without caps and timeouts is first come, first served: a batch is a run of requests, and the
next one follows from when it was sent. Times in milliseconds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from optcli.queueing.durations import Durations


@dataclass(frozen=True, eq=False)
class Batches:
    """What was sent: `members` [served], request numbers batch after batch, and [batches] arrays.

    `closed_ms` is when nothing more could join, `started_ms` when a worker took it, `took_ms` for how
    long. `free_ms` is when a worker became free for it, -inf where a batch closes without one. `sizes`
    are its requests.
    """

    members: np.ndarray
    sizes: np.ndarray
    free_ms: np.ndarray
    closed_ms: np.ndarray
    started_ms: np.ndarray
    took_ms: np.ndarray


def oldest_age(
    times: np.ndarray, wait_ms: Sequence[float], batch: int, ready_ms: Sequence[float], draw: Durations
) -> Batches:
    """A free worker takes the longest-waiting requests once B wait or the oldest waited long enough.

    `times` [requests] ascending, `wait_ms` [requests], `ready_ms` [workers]. With f the earliest free
    worker and a the oldest: t0 = max(f, a_i), sent at max(t0, min(a_i + D, a_{i+B-1})).
    """
    import numpy as np

    arrivals, count = times.tolist(), times.size
    free = list(ready_ms)
    heapify(free)
    rows, levels = draw.rows, draw.levels(count)
    ends, frees, sent, took = [], [], [], []
    first = 0
    while first < count:
        worker = free[0]
        arrived = arrivals[first]
        due = arrived + wait_ms[first]
        last = first + batch - 1
        if last < count and arrivals[last] < due:
            due = arrivals[last]
        if due < worker:
            due = worker
        if last < count and arrivals[last] <= due:
            end = last + 1
        else:
            end = bisect_right(arrivals, due, first + 1, min(last, count))
        time = rows[end - first - 1][next(levels)]
        heapreplace(free, due + time)
        ends.append(end)
        frees.append(worker)
        sent.append(due)
        took.append(time)
        first = end
    started = np.array(sent)
    sizes = np.diff(np.array(ends), prepend=0)
    return Batches(np.arange(count), sizes, np.array(frees), started, started, np.array(took))


def sealed(
    times: np.ndarray, wait_ms: float, batch: int, ready_ms: Sequence[float], draw: Durations
) -> Batches:
    """One replica closes batch after batch; a worker takes each closed one when it is free.

    With t1 = max(previous seal, a_i): sealed at max(t1, min(t1 + D, a_{i+B-1})), started at
    max(seal, worker free). `times` [requests] of this replica, `ready_ms` [its workers].
    """
    import numpy as np

    arrivals, count = times.tolist(), times.size
    free = list(ready_ms)
    heapify(free)
    rows, levels = draw.rows, draw.levels(count)
    ends, seals, starts, took = [], [], [], []
    seal = 0.0
    first = 0
    while first < count:
        worker = free[0]
        opened = max(seal, arrivals[first])
        seal = opened + wait_ms
        last = first + batch - 1
        if last < count and arrivals[last] < seal:
            seal = max(opened, arrivals[last])
        if last < count and arrivals[last] <= seal:
            end = last + 1
        else:
            end = bisect_right(arrivals, seal, first + 1, min(last, count))
        start = seal if seal > worker else worker
        time = rows[end - first - 1][next(levels)]
        heapreplace(free, start + time)
        ends.append(end)
        seals.append(seal)
        starts.append(start)
        took.append(time)
        first = end
    sizes = np.diff(np.array(ends, dtype=np.int64), prepend=0)
    return Batches(
        np.arange(count),
        sizes,
        np.full(sizes.size, -np.inf),
        np.array(seals),
        np.array(starts),
        np.array(took),
    )
