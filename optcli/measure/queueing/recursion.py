"""The batching rules, batch by batch: when the next one goes follows from the one before.

A queue is first come, first served: a batch is a run of requests. Times in milliseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from heapq import heapreplace
from typing import TYPE_CHECKING

from optcli.measure.queueing.batching import Batches, Batching

if TYPE_CHECKING:
    import numpy as np

    from optcli.measure.queueing.durations import Durations


def run(times: np.ndarray, batching: Batching, workers: int, draw: Durations) -> Batches:
    """What one queue sends: that of the server, or of one replica where batches are sealed.

    `times` [requests] ascending. A batch that begins with request i closes at
    min(a_i + D, a_{i+B-1}); with "oldest-age" no earlier than a worker is free. The first free worker
    takes it.
    """
    import numpy as np

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
    return Batches(
        members=np.arange(count),
        sizes=sizes,
        started_ms=np.array(starts),
        took_ms=draw.table[sizes - 1, levels[: sizes.size]],
    )
