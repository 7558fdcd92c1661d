"""The two batching rules without drops, batch by batch: exact, and fast in plain Python.

A queue without caps and timeouts is first come, first served: a batch is a run of requests, and the
next one follows from when it was sent. Times in milliseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapreplace
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
    worker and a the arrivals, i the oldest: t0 = max(f, a_i), sent at max(t0, min(a_i + D, a_{i+B-1})).
    """
    import numpy as np

    count = times.size
    levels = draw.levels(count)
    if batch == 1 and (draw.is_fixed or len(ready_ms) == 1) and max(ready_ms) <= times[0]:
        return one_by_one(times, len(ready_ms), draw.table[0, levels])
    # Nobody arrives after the last: then no batch is full.
    arrivals = times.tolist() + [math.inf] * batch
    free = sorted(ready_ms)
    rows, chosen, is_fixed = draw.table.tolist(), levels.tolist(), draw.is_fixed
    fixed = [row[0] for row in rows]
    ends: list[int] = []
    frees: list[float] = []
    sent: list[float] = []
    first = 0
    while first < count:
        worker = free[0]
        due = arrivals[first] + wait_ms[first]
        last = first + batch - 1
        full = arrivals[last]
        if full < due:
            due = full
        if due < worker:
            due = worker
        end = last + 1 if full <= due else bisect_right(arrivals, due, first + 1, last)
        size = end - first - 1
        heapreplace(free, due + (fixed[size] if is_fixed else rows[size][chosen[len(ends)]]))
        ends.append(end)
        frees.append(worker)
        sent.append(due)
        first = end
    sizes = np.diff(ends, prepend=0)
    took = draw.table[sizes - 1, levels[: sizes.size]]
    started = np.array(sent)
    return Batches(np.arange(count), sizes, np.array(frees), started, started, took)


def sealed(
    times: np.ndarray, wait_ms: float, batch: int, ready_ms: Sequence[float], draw: Durations
) -> Batches:
    """One replica closes batch after batch; a worker takes each closed one when it is free.

    A batch that begins with request i is sealed at min(a_i + D, a_{i+B-1}), whatever its worker does,
    and started at max(seal, worker free). `times` [requests] of this replica, `ready_ms` [its workers].
    """
    import numpy as np

    count = times.size
    ends = np.searchsorted(times, times + wait_ms, side="right")
    ends = np.minimum(ends, np.arange(count) + batch)
    following = ends.tolist()
    begins: list[int] = []
    first = 0
    while first < count:
        begins.append(first)
        first = following[first]
    firsts = np.array(begins)
    lasts = ends[firsts] - 1
    sizes = lasts - firsts + 1
    seals = np.where(sizes == batch, times[lasts], times[firsts] + wait_ms)
    took = draw.table[sizes - 1, draw.levels(count)[: sizes.size]]
    starts = _started(seals, took, ready_ms)
    never = np.full(sizes.size, -np.inf)
    return Batches(np.arange(count), sizes, never, seals, starts, took)


def _started(closed: np.ndarray, took: np.ndarray, ready_ms: Sequence[float]) -> np.ndarray:
    """When a worker takes each batch, in the order in which they close: all [batches]."""
    import numpy as np

    if len(ready_ms) == 1:
        before = np.cumsum(took) - took
        started: np.ndarray = np.maximum.accumulate(np.maximum(closed, ready_ms[0]) - before) + before
        return started
    free = sorted(ready_ms)
    starts: list[float] = []
    for close, long in zip(closed.tolist(), took.tolist(), strict=True):
        start = close if close > free[0] else free[0]
        heapreplace(free, start + long)
        starts.append(start)
    return np.array(starts)


def one_by_one(times: np.ndarray, workers: int, took: np.ndarray) -> Batches:
    """Batches of one, without a loop: one worker, or several and one time for all.

    Several workers then take turns, each with every c-th request. A worker's k-th request starts at
    max(a_k, previous start + previous time): a running maximum of a_k less the sum of the times before.
    """
    import numpy as np

    count = times.size
    padded = -(-count // workers) * workers
    arrived = np.full((padded // workers, workers), np.inf)
    arrived.flat[:count] = times
    spent = np.zeros(arrived.shape)
    spent.flat[:count] = took
    before = np.cumsum(spent, axis=0) - spent
    starts = np.maximum.accumulate(arrived - before, axis=0) + before
    free = np.zeros(starts.shape)
    free[1:] = starts[:-1] + spent[:-1]
    started = starts.ravel()[:count]
    ones = np.ones(count, dtype=np.int64)
    return Batches(np.arange(count), ones, free.ravel()[:count], started, started, took)
