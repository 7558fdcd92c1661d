"""Oldest-age batching event by event: queue caps, timeouts, streams and priorities. Milliseconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapify, heapreplace

from optcli.queueing.arrivals import Arrivals
from optcli.queueing.batching import Batching
from optcli.queueing.durations import Durations
from optcli.queueing.recursions import Batches

# Why a request was dropped, by what it left with.
CAUSES = ("full", "timeout", "stream")


@dataclass(eq=False)
class _Queue:
    """Requests that wait: by priority, in the order in which they came."""

    times: list[float]
    priority: list[int]
    stream: list[int] | None
    batching: Batching
    dropped: dict[str, list[int]] = field(default_factory=lambda: {cause: [] for cause in CAUSES})
    waiting: int = 0

    def __post_init__(self) -> None:
        self.classes: list[deque[int]] = [deque() for _ in range(max(self.priority) + 1)]
        self.gone: set[int] = set()  # dropped from the middle of a class
        self.by_stream: dict[int, deque[int]] = {}

    def admit(self, request: int) -> None:
        """Let a request in, or drop it or another one."""
        batching = self.batching
        if batching.stream_cap is not None and self.stream is not None:
            mine = self.by_stream.setdefault(self.stream[request], deque())
            if len(mine) >= batching.stream_cap:
                self._drop(mine[0], "stream")
        if batching.queue_cap is not None and self.waiting >= batching.queue_cap:
            least_urgent = max(
                level for level, each in enumerate(self.classes) if self._front(each) >= 0
            )
            if batching.on_full == "reject-newest" or self.priority[request] > least_urgent:
                self.dropped["full"].append(request)
                return
            self._drop(self._front(self.classes[least_urgent]), "full")
        self.classes[self.priority[request]].append(request)
        self.waiting += 1
        if self.stream is not None:
            self.by_stream.setdefault(self.stream[request], deque()).append(request)

    def oldest(self) -> int:
        """The request that has waited longest; there is one."""
        fronts = [front for each in self.classes if (front := self._front(each)) >= 0]
        return min(fronts)

    def expire(self, now: float) -> bool:
        """Drop what has waited too long; whether anything was dropped."""
        timeout = self.batching.timeout_ms
        if timeout is None:
            return False
        before = self.waiting
        for each in self.classes:
            while (front := self._front(each)) >= 0 and now - self.times[front] > timeout:
                self._drop(front, "timeout")
        return self.waiting < before

    def take(self, count: int) -> list[int]:
        """The most urgent requests, in each class the oldest first, out of the queue."""
        taken: list[int] = []
        for each in self.classes:
            while len(taken) < count and (front := self._front(each)) >= 0:
                each.popleft()
                taken.append(front)
        self.waiting -= len(taken)
        if self.stream is not None:
            for request in taken:
                self.by_stream[self.stream[request]].remove(request)
        return taken

    def _front(self, requests: deque[int]) -> int:
        """The oldest that is still there; -1 for none."""
        while requests and requests[0] in self.gone:
            self.gone.discard(requests.popleft())
        return requests[0] if requests else -1

    def _drop(self, request: int, cause: str) -> None:
        self.dropped[cause].append(request)
        self.gone.add(request)
        self.waiting -= 1
        if self.stream is not None:
            self.by_stream[self.stream[request]].remove(request)


def run(
    arrivals: Arrivals,
    wait_ms: Sequence[float],
    batching: Batching,
    ready_ms: Sequence[float],
    draw: Durations,
) -> tuple[Batches, dict[str, list[int]]]:
    """What was sent, and the dropped requests by cause.

    `wait_ms` [requests], `ready_ms` [workers]. A full queue makes room at its least urgent; it refuses
    what is less urgent than all that wait. A timeout is looked at when a batch would be sent.
    """
    import numpy as np

    times = arrivals.times_ms.tolist()
    count = len(times)
    priority = [0] * count if arrivals.priority is None else arrivals.priority.tolist()
    stream = None if arrivals.stream is None else arrivals.stream.tolist()
    queue = _Queue(times, priority, stream, batching)
    free = list(ready_ms)
    heapify(free)
    rows, levels = draw.table.tolist(), draw.levels(count).tolist()
    members: list[int] = []
    sizes: list[int] = []
    frees: list[float] = []
    sent: list[float] = []
    took: list[float] = []
    now, arriving = 0.0, 0
    while arriving < count or queue.waiting:
        due = float("inf")
        if queue.waiting >= batching.batch:
            due = max(free[0], now)
        elif queue.waiting:
            oldest = queue.oldest()
            due = max(free[0], times[oldest] + wait_ms[oldest])
        # Who arrives just as an unfilled batch is sent joins it.
        joins = queue.waiting < batching.batch
        if arriving < count and (times[arriving] < due or (joins and times[arriving] == due)):
            now = times[arriving]
            queue.admit(arriving)
            arriving += 1
            continue
        now = due
        if queue.expire(now):
            continue
        batch = queue.take(batching.batch)
        time = rows[len(batch) - 1][levels[len(sizes)]]
        members += batch
        sizes.append(len(batch))
        frees.append(heapreplace(free, now + time))
        sent.append(now)
        took.append(time)
    started = np.array(sent)
    batches = Batches(
        members=np.array(members, dtype=np.int64),
        sizes=np.array(sizes, dtype=np.int64),
        free_ms=np.array(frees),
        closed_ms=started,
        started_ms=started,
        took_ms=np.array(took),
    )
    return batches, queue.dropped
