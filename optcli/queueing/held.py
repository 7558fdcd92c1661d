"""Sealed batches behind an ingress that holds requests back: event by event. Times in milliseconds.

An ingress that knows how many requests are at the replicas holds back what they could not begin with.
What it holds goes in calls that are as full as can be, so batches fill up where requests queue.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from optcli.queueing.recursions import Batches

if TYPE_CHECKING:
    import numpy as np

    from optcli.queueing.durations import Durations


# How long a batch takes in milliseconds, by its requests, the calls that they came in, and its number.
Takes = Callable[[int, int, int], float]


def never_holds(batches: Batches, times: np.ndarray, most: int) -> bool:
    """Whether at most `most` requests are ever at the replicas, each from its time in `times` on."""
    import numpy as np

    finished = np.sort(np.repeat(batches.started_ms + batches.took_ms, batches.sizes))
    there = np.arange(1, times.size + 1) - np.searchsorted(finished, times, side="right")
    return bool(there.max(initial=0) <= most)


def run(
    times: np.ndarray,
    wait_ms: float,
    batch: int,
    replica_of: Sequence[int],
    workers: Sequence[int],
    most: int,
    draw: Durations,
    call_ms: float,
) -> Batches:
    """Let at most `most` requests be at the replicas; the others wait, and go `batch` in a call.

    A call goes as soon as there is room for all that waits, or for a full call. `times` [requests]
    ascending; `replica_of` [requests] is where each call goes, in turn; `workers` [replicas] is how
    many batches each computes at once. `most` is at least `batch`. The requests of a call join the
    replica's open batch, which closes when it is full, or `wait_ms` after its first. A batch takes
    `call_ms` less than `draw` says for each of its requests that did not come in a call of its own.
    """
    table, levels = draw.table.tolist(), draw.levels(times.size).tolist()

    def takes(size: int, calls: int, number: int) -> float:
        return float(table[size - 1][levels[number]] - (size - calls) * call_ms)

    replicas = _Replicas(wait_ms, batch, workers, takes)
    arrivals = [*times.tolist(), math.inf]
    arrived = sent = calls = 0
    while arrived < times.size or replicas.events:
        now = arrivals[arrived]
        if replicas.events and replicas.events[0][0] <= now:
            now = replicas.next_event()
        else:
            arrived += 1
        while sent < arrived and replicas.there + (size := min(batch, arrived - sent)) <= most:
            replicas.take(replica_of[calls], range(sent, sent + size), now)
            calls, sent = calls + 1, sent + size
    return replicas.batches()


@dataclass(slots=True, eq=False)
class _Batch:
    sent_ms: float
    members: list[int] = field(default_factory=list)
    calls: int = 0
    closed_ms: float = math.nan
    started_ms: float = math.nan
    took_ms: float = math.nan


class _Replicas:
    """An open batch, closed ones that wait and free workers, of each replica."""

    def __init__(self, wait_ms: float, batch: int, workers: Sequence[int], takes: Takes) -> None:
        self.there = 0
        # Time, a number that no other event has, replica, a batch, and whether it then ends or closes.
        self.events: list[tuple[float, int, int, _Batch, bool]] = []
        self._wait_ms, self._batch, self._free = wait_ms, batch, list(workers)
        self._open: list[_Batch | None] = [None] * len(workers)
        self._waiting: list[deque[_Batch]] = [deque() for _ in workers]
        self._closed: list[_Batch] = []
        self._takes, self._events = takes, 0

    def take(self, replica: int, requests: Sequence[int], now: float) -> None:
        """Add the requests of a call to the open batch of a replica, and to others that they fill."""
        self.there += len(requests)
        rest = requests
        while rest:
            batch = self._open[replica]
            if batch is None:
                batch = self._open[replica] = _Batch(now)
                if self._wait_ms:
                    self._expect(now + self._wait_ms, replica, batch, ends=False)
            room = self._batch - len(batch.members)
            batch.members += rest[:room]
            batch.calls += 1
            rest = rest[room:]
            if len(batch.members) == self._batch:
                self._close(replica, batch, now)
        left = self._open[replica]
        if left is not None and not self._wait_ms:
            self._close(replica, left, now)

    def next_event(self) -> float:
        """Let the next event happen; gives its time."""
        now, _, replica, batch, ends = heappop(self.events)
        if not ends:
            if self._open[replica] is batch:
                self._close(replica, batch, now)
        else:
            self.there -= len(batch.members)
            self._free[replica] += 1
            if self._waiting[replica]:
                self._start(replica, self._waiting[replica].popleft(), now)
        return now

    def batches(self) -> Batches:
        """All batches, in the order in which they closed."""
        import numpy as np

        closed = self._closed
        return Batches(
            members=np.array([each for batch in closed for each in batch.members], dtype=np.int64),
            sizes=np.array([len(batch.members) for batch in closed], dtype=np.int64),
            free_ms=np.array([batch.sent_ms for batch in closed]),
            closed_ms=np.array([batch.closed_ms for batch in closed]),
            started_ms=np.array([batch.started_ms for batch in closed]),
            took_ms=np.array([batch.took_ms for batch in closed]),
        )

    def _close(self, replica: int, batch: _Batch, now: float) -> None:
        self._open[replica] = None
        batch.closed_ms = now
        batch.took_ms = self._takes(len(batch.members), batch.calls, len(self._closed))
        self._closed.append(batch)
        if self._free[replica]:
            self._start(replica, batch, now)
        else:
            self._waiting[replica].append(batch)

    def _start(self, replica: int, batch: _Batch, now: float) -> None:
        self._free[replica] -= 1
        batch.started_ms = now
        self._expect(now + batch.took_ms, replica, batch, ends=True)

    def _expect(self, at_ms: float, replica: int, batch: _Batch, *, ends: bool) -> None:
        self._events += 1
        heappush(self.events, (at_ms, self._events, replica, batch, ends))
