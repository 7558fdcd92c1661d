"""Oldest-age batching with a queue cap and a timeout, first come, first served, batch by batch.

Between two batches the queue only takes in, so that what came in, and whom the cap drops, follows from
slices. Caps below the largest batch, priorities and streams need `event_loop`. Milliseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heapreplace
from typing import TYPE_CHECKING

from optcli.queueing.batching import Batching
from optcli.queueing.durations import Durations
from optcli.queueing.recursions import Batches

if TYPE_CHECKING:
    import numpy as np


def applies(batching: Batching) -> bool:
    """Whether `run` can do it, for requests of one priority."""
    cap = batching.queue_cap
    return batching.stream_cap is None and (cap is None or cap >= batching.batch)


def run(
    times: np.ndarray,
    wait_ms: Sequence[float],
    batching: Batching,
    ready_ms: Sequence[float],
    draw: Durations,
) -> tuple[Batches, dict[str, list[int]]]:
    """What was sent, and the dropped requests by cause.

    `times` [requests] ascending, `wait_ms` [requests], `ready_ms` [workers]. A timeout is looked at
    when a batch would be sent.
    """
    import numpy as np

    count, batch = times.size, batching.batch
    cap = math.inf if batching.queue_cap is None else batching.queue_cap
    timeout = math.inf if batching.timeout_ms is None else batching.timeout_ms
    drops_oldest = batching.on_full == "drop-oldest"
    # Nobody arrives after the last: then no batch is full.
    arrivals = times.tolist() + [math.inf] * batch
    levels = draw.levels(count)
    rows, chosen = draw.table.tolist(), levels.tolist()
    free = sorted(ready_ms)
    queue: list[int] = []  # all that were let in; those from `head` on wait
    head, arriving = 0, 0
    full: list[int] = []
    late: list[int] = []
    members: list[int] = []
    sizes: list[int] = []
    frees: list[float] = []
    sent: list[float] = []
    while arriving < count or head < len(queue):
        worker = free[0]
        if arrivals[arriving] < worker:  # all workers are taken: nothing is sent until then
            end = bisect_left(arrivals, worker, arriving, count)
            excess = len(queue) - head + end - arriving - cap
            if excess <= 0:
                queue.extend(range(arriving, end))
            elif drops_oldest:
                queue.extend(range(arriving, end))
                full += queue[head : head + int(excess)]
                head += int(excess)
            else:
                let_in = end - int(excess)
                queue.extend(range(arriving, let_in))
                full.extend(range(let_in, end))
            arriving = end
        waiting = len(queue) - head
        if not waiting:
            if arriving == count:
                break
            queue.append(arriving)
            arriving += 1
            waiting = 1
        oldest = queue[head]
        due = arrivals[oldest]
        if waiting < batch:
            due += wait_ms[oldest]
            last = arriving + batch - waiting - 1
            due = max(min(due, arrivals[last]), worker)
            end = last + 1 if arrivals[last] <= due else bisect_right(arrivals, due, arriving, last)
            queue.extend(range(arriving, end))
            arriving = end
        else:
            due = max(due, worker)
        first = head
        while head < len(queue) and due - arrivals[queue[head]] > timeout:
            head += 1
        if head > first:
            late += queue[first:head]
            continue
        taken = queue[head : head + batch]
        head += len(taken)
        members += taken
        sizes.append(len(taken))
        frees.append(worker)
        sent.append(due)
        heapreplace(free, due + rows[len(taken) - 1][chosen[len(sizes) - 1]])
    lengths = np.array(sizes, dtype=np.int64)
    started = np.array(sent)
    batches = Batches(
        members=np.array(members, dtype=np.int64),
        sizes=lengths,
        free_ms=np.array(frees),
        closed_ms=started,
        started_ms=started,
        took_ms=draw.table[lengths - 1, levels[: lengths.size]],
    )
    return batches, {"full": full, "timeout": late}
