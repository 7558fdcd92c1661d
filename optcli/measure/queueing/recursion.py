"""The batching rules, batch by batch: when the next one goes follows from the one before.

Without priorities a queue is first come, first served: a batch is a run of requests. Times in
milliseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING

from optcli.measure.queueing.batching import Batches, Batching

if TYPE_CHECKING:
    import numpy as np

    from optcli.measure.queueing.durations import Durations


def run(times: np.ndarray, batching: Batching, ready_ms: Sequence[float], draw: Durations) -> Batches:
    """What one queue sends: that of the server, or of one replica where batches are sealed.

    `times` [requests] ascending, `ready_ms` [workers]. A batch that begins with request i closes at
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
    free = sorted(ready_ms)
    ends: list[int] = []
    frees: list[float] = []
    closes: list[float] = []
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
        heapreplace(free, (closed if closed > worker else worker) + took)
        ends.append(end)
        frees.append(worker)
        closes.append(closed)
        first = end
    sizes = np.diff(ends, prepend=0)
    closed_ms, free_ms = np.array(closes), np.array(frees)
    return Batches(
        members=np.arange(count),
        sizes=sizes,
        free_ms=np.full(sizes.size, -np.inf) if sealed else free_ms,
        closed_ms=closed_ms,
        started_ms=np.maximum(closed_ms, free_ms),
        took_ms=draw.table[sizes - 1, levels[: sizes.size]],
    )


def by_priority(
    times: np.ndarray,
    priority: np.ndarray,
    batching: Batching,
    ready_ms: Sequence[float],
    draw: Durations,
) -> Batches:
    """What one "oldest-age" queue sends where the most urgent of all that wait go first.

    `priority` [requests] counts from 0, the most urgent.
    """
    import numpy as np

    count, batch, wait_ms = times.size, batching.batch, batching.wait_ms
    arrivals = times.tolist() + [math.inf] * batch
    urgency, rows = priority.tolist(), draw.table.tolist()
    levels = draw.levels(count).tolist()
    free = list(ready_ms)
    heapify(free)
    waiting: list[tuple[int, int]] = []
    sent = [False] * count
    members: list[int] = []
    sizes: list[int] = []
    frees: list[float] = []
    closes: list[float] = []
    oldest = arrived = 0
    while len(members) < count:
        while sent[oldest]:
            oldest += 1
        worker = free[0]
        # All that were sent have arrived: the queue is full with the batch-th arrival beyond them.
        closed = max(worker, min(arrivals[oldest] + wait_ms, arrivals[len(members) + batch - 1]))
        while arrived < count and arrivals[arrived] <= closed:
            heappush(waiting, (urgency[arrived], arrived))
            arrived += 1
        chosen = [heappop(waiting)[1] for _ in range(min(batch, len(waiting)))]
        for each in chosen:
            sent[each] = True
        heapreplace(free, closed + rows[len(chosen) - 1][levels[len(sizes)]])
        members += chosen
        sizes.append(len(chosen))
        frees.append(worker)
        closes.append(closed)
    size, closed_ms = np.array(sizes), np.array(closes)
    return Batches(
        members=np.array(members),
        sizes=size,
        free_ms=np.array(frees),
        closed_ms=closed_ms,
        started_ms=closed_ms,
        took_ms=draw.table[size - 1, levels[: size.size]],
    )
