"""Batching servers event by event: both rules, with all that `Batching` knows. Milliseconds.

Of what happens at the same time, batches end first, then requests arrive, then waits end. Where nothing
is dropped or held back and nothing has a priority, `recursion` says the same faster.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush, heapreplace
from typing import TYPE_CHECKING, Protocol

from optcli.queueing.arrivals import Arrivals
from optcli.queueing.batching import Batches, Batching
from optcli.queueing.durations import Durations

if TYPE_CHECKING:
    import numpy as np

_BEFORE_ARRIVALS, _ARRIVAL, _AFTER_ARRIVALS = 0, 1, 2


def run(
    arrivals: Arrivals,
    batching: Batching,
    ready_ms: Sequence[float],
    draw: Durations,
    replica_of: Sequence[int] = (),
    call_ms: float = 0.0,
) -> Batches:
    """What was sent; what is missing in it was dropped.

    `ready_ms` [workers]. For sealed batches `replica_of` [requests] is where each call goes, in turn,
    and a batch takes `call_ms` less for each of its requests that did not come in a call of its own.
    """
    times = arrivals.times_ms.tolist()
    server: _Server
    if batching.semantics == "sealed":
        server = _Sealed(batching, ready_ms, draw, len(times), replica_of, call_ms)
    else:
        server = _OldestAge(batching, ready_ms, draw, arrivals)
    arriving = 0
    while (event := server.next_event()) is not None or arriving < len(times):
        if arriving < len(times) and (event is None or (times[arriving], _ARRIVAL) < event):
            server.arrives(arriving, times[arriving])
            arriving += 1
        elif event is not None:
            server.goes_on(event[0])
    return _arrays(server.sent)


@dataclass(slots=True, eq=False)
class _Batch:
    """One batch; its times are those of `Batches`."""

    free_ms: float
    members: list[int] = field(default_factory=list)
    calls: int = 0
    closed_ms: float = math.nan
    started_ms: float = math.nan
    took_ms: float = math.nan


class _Server(Protocol):
    """A server with requests that wait; `sent` are its batches in the order in which they closed."""

    sent: list[_Batch]

    def next_event(self) -> tuple[float, int] | None:
        """When something happens by itself, and whether before or after arrivals at that time."""

    def arrives(self, request: int, now: float) -> None:
        """A request comes."""

    def goes_on(self, now: float) -> None:
        """The next event happens."""


class _OldestAge:
    """A free worker takes a batch that is full, or whose oldest request has waited long enough.

    A full queue makes room at its least urgent; it refuses what is less urgent than all that wait. A
    timeout is looked at when a batch would be sent.
    """

    def __init__(
        self, batching: Batching, ready_ms: Sequence[float], draw: Durations, arrivals: Arrivals
    ) -> None:
        count = arrivals.count
        self.sent: list[_Batch] = []
        self._batching, self._times = batching, arrivals.times_ms.tolist()
        self._priority = [0] * count if arrivals.priority is None else arrivals.priority.tolist()
        self._stream = [0] * count if arrivals.stream is None else arrivals.stream.tolist()
        self._rows, self._levels = draw.table.tolist(), draw.levels(count).tolist()
        self._free = list(ready_ms)
        heapify(self._free)
        self._now = 0.0
        # What waits, the most urgent first, in each priority the oldest first: (priority, request).
        self._queue: list[tuple[int, int]] = []

    def next_event(self) -> tuple[float, int] | None:
        if not self._queue:
            return None
        if len(self._queue) >= self._batching.batch:
            return max(self._free[0], self._now), _BEFORE_ARRIVALS
        oldest = min(request for _, request in self._queue)
        return max(self._free[0], self._times[oldest] + self._batching.wait_ms), _AFTER_ARRIVALS

    def arrives(self, request: int, now: float) -> None:
        """Let a request in, or drop it or another one."""
        self._now = now
        queue, batching, priority = self._queue, self._batching, self._priority[request]
        if batching.stream_cap is not None:
            stream = self._stream[request]
            mine = [(its, each) for its, each in queue if self._stream[each] == stream]
            if len(mine) >= batching.stream_cap:
                queue.remove(min(mine, key=lambda each: each[1]))
        if batching.queue_cap is not None and len(queue) >= batching.queue_cap:
            least_urgent, _ = queue[-1]
            if batching.on_full == "reject-newest" or priority > least_urgent:
                return
            del queue[bisect_left(queue, (least_urgent, 0))]
        insort(queue, (priority, request))

    def goes_on(self, now: float) -> None:
        """Send a batch, unless something has waited too long and is dropped."""
        self._now, timeout, largest = now, self._batching.timeout_ms, self._batching.batch
        if timeout is not None:
            waiting = len(self._queue)
            self._queue = [each for each in self._queue if now - self._times[each[1]] <= timeout]
            if len(self._queue) < waiting:
                return
        members = [request for _, request in self._queue[:largest]]
        del self._queue[:largest]
        took_ms = self._rows[len(members) - 1][self._levels[len(self.sent)]]
        batch = _Batch(self._free[0], members, closed_ms=now, started_ms=now, took_ms=took_ms)
        heapreplace(self._free, now + took_ms)
        self.sent.append(batch)


class _Sealed:
    """Replicas that close one batch after the other, behind an ingress that may hold requests back.

    A call goes as soon as there is room for all that the ingress holds, or for a full call. Its
    requests join the replica's open batch, which closes when it is full, or its first has waited long
    enough.
    """

    def __init__(
        self,
        batching: Batching,
        ready_ms: Sequence[float],
        draw: Durations,
        count: int,
        replica_of: Sequence[int],
        call_ms: float,
    ) -> None:
        self.sent: list[_Batch] = []
        self._batching, self._replica_of, self._call_ms = batching, replica_of, call_ms
        self._most = math.inf if batching.most_sent is None else batching.most_sent
        self._rows = draw.table.tolist()
        replicas = range(batching.instances)
        self._levels = [replace(draw, seed=draw.seed + each).levels(count) for each in replicas]
        self._open: list[_Batch | None] = [None for _ in replicas]
        self._closed: list[deque[_Batch]] = [deque() for _ in replicas]
        self._counts, self._free = [0] * batching.instances, [0] * batching.instances
        self._there = self._held = self._requests = self._calls = 0
        # Time, before or after arrivals, a number that no other event has, replica, batch.
        self._events: list[tuple[float, int, int, int, _Batch]] = []
        self._numbers = 0
        for worker, ready in enumerate(ready_ms):
            replica = worker // batching.concurrency
            if ready:
                self._expect(ready, _BEFORE_ARRIVALS, replica, _Batch(ready))
            else:
                self._free[replica] += 1

    def next_event(self) -> tuple[float, int] | None:
        return self._events[0][:2] if self._events else None

    def arrives(self, request: int, now: float) -> None:
        self._held += 1
        self._send(now)

    def goes_on(self, now: float) -> None:
        _, kind, _, replica, batch = heappop(self._events)
        if kind == _AFTER_ARRIVALS:
            if self._open[replica] is batch:
                self._close(replica, batch, now)
        else:
            self._there -= len(batch.members)
            self._free[replica] += 1
            if self._closed[replica]:
                self._start(replica, self._closed[replica].popleft(), now)
        self._send(now)

    def _send(self, now: float) -> None:
        """Send all calls for which there is room."""
        largest = self._batching.batch
        while self._held and self._there + (size := min(largest, self._held)) <= self._most:
            first = self._requests
            self._held, self._there, self._requests = (
                self._held - size,
                self._there + size,
                first + size,
            )
            self._take(self._replica_of[self._calls], range(first, first + size), now)
            self._calls += 1

    def _take(self, replica: int, requests: Sequence[int], now: float) -> None:
        """Add the requests of a call to the open batch of a replica, and to others that they fill."""
        while requests:
            batch = self._open[replica]
            if batch is None:
                batch = self._open[replica] = _Batch(-math.inf)
                self._expect(now + self._batching.wait_ms, _AFTER_ARRIVALS, replica, batch)
            room = self._batching.batch - len(batch.members)
            batch.members += requests[:room]
            batch.calls += 1
            requests = requests[room:]
            if len(batch.members) == self._batching.batch:
                self._close(replica, batch, now)

    def _close(self, replica: int, batch: _Batch, now: float) -> None:
        size, level = len(batch.members), self._levels[replica][self._counts[replica]]
        batch.closed_ms = now
        batch.took_ms = self._rows[size - 1][level] - (size - batch.calls) * self._call_ms
        self._counts[replica] += 1
        self._open[replica] = None
        self.sent.append(batch)
        if self._free[replica]:
            self._start(replica, batch, now)
        else:
            self._closed[replica].append(batch)

    def _start(self, replica: int, batch: _Batch, now: float) -> None:
        self._free[replica] -= 1
        batch.started_ms = now
        self._expect(now + batch.took_ms, _BEFORE_ARRIVALS, replica, batch)

    def _expect(self, at_ms: float, kind: int, replica: int, batch: _Batch) -> None:
        self._numbers += 1
        heappush(self._events, (at_ms, kind, self._numbers, replica, batch))


def _arrays(sent: Sequence[_Batch]) -> Batches:
    import numpy as np

    def of(name: str) -> np.ndarray:
        return np.array([getattr(batch, name) for batch in sent])

    return Batches(
        members=np.array([each for batch in sent for each in batch.members], dtype=np.int64),
        sizes=np.array([len(batch.members) for batch in sent], dtype=np.int64),
        free_ms=of("free_ms"),
        closed_ms=of("closed_ms"),
        started_ms=of("started_ms"),
        took_ms=of("took_ms"),
    )
