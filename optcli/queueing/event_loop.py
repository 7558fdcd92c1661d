"""Batching servers event by event: both rules, with all that `Batching` knows. Milliseconds.

Of what happens at the same time, batches end first, then requests arrive, then waits end. Where nothing
is dropped or held back and nothing has a priority, `recursion` says the same faster.
"""

from __future__ import annotations

import math
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
        self._stream = None if arrivals.stream is None else arrivals.stream.tolist()
        self._rows, self._levels = draw.table.tolist(), draw.levels(count).tolist()
        self._free = list(ready_ms)
        heapify(self._free)
        self._now, self._waiting = 0.0, 0
        # What waits, by priority and by stream, in the order in which it came.
        self._classes: list[deque[int]] = [deque() for _ in range(max(self._priority) + 1)]
        self._by_stream: dict[int, deque[int]] = {}
        self._gone: set[int] = set()  # dropped from the middle of a class

    def next_event(self) -> tuple[float, int] | None:
        if not self._waiting:
            return None
        if self._waiting >= self._batching.batch:
            return max(self._free[0], self._now), _BEFORE_ARRIVALS
        oldest = min(front for each in self._classes if (front := self._front(each)) >= 0)
        return max(self._free[0], self._times[oldest] + self._batching.wait_ms), _AFTER_ARRIVALS

    def arrives(self, request: int, now: float) -> None:
        """Let a request in, or drop it or another one."""
        self._now, batching = now, self._batching
        if batching.stream_cap is not None and self._stream is not None:
            mine = self._by_stream.setdefault(self._stream[request], deque())
            if len(mine) >= batching.stream_cap:
                self._drop(mine[0])
            mine.append(request)
        if batching.queue_cap is not None and self._waiting >= batching.queue_cap:
            least_urgent = max(
                level for level, each in enumerate(self._classes) if self._front(each) >= 0
            )
            if batching.on_full == "reject-newest" or self._priority[request] > least_urgent:
                self._leaves_stream(request)
                return
            self._drop(self._front(self._classes[least_urgent]))
        self._classes[self._priority[request]].append(request)
        self._waiting += 1

    def goes_on(self, now: float) -> None:
        """Send a batch, unless something has waited too long and is dropped."""
        self._now = now
        if self._expire(now):
            return
        batch = _Batch(self._free[0], self._take(), closed_ms=now, started_ms=now)
        batch.took_ms = self._rows[len(batch.members) - 1][self._levels[len(self.sent)]]
        heapreplace(self._free, now + batch.took_ms)
        self.sent.append(batch)

    def _expire(self, now: float) -> bool:
        """Drop what has waited too long; whether anything was dropped."""
        timeout, before = self._batching.timeout_ms, self._waiting
        if timeout is None:
            return False
        for each in self._classes:
            while (front := self._front(each)) >= 0 and now - self._times[front] > timeout:
                self._drop(front)
        return self._waiting < before

    def _take(self) -> list[int]:
        """The most urgent requests, in each class the oldest first, out of the queue."""
        taken: list[int] = []
        for each in self._classes:
            while len(taken) < self._batching.batch and (front := self._front(each)) >= 0:
                taken.append(each.popleft())
                self._leaves_stream(front)
        self._waiting -= len(taken)
        return taken

    def _front(self, requests: deque[int]) -> int:
        """The oldest that is still there; -1 for none."""
        while requests and requests[0] in self._gone:
            self._gone.discard(requests.popleft())
        return requests[0] if requests else -1

    def _drop(self, request: int) -> None:
        self._gone.add(request)
        self._waiting -= 1
        self._leaves_stream(request)

    def _leaves_stream(self, request: int) -> None:
        if self._batching.stream_cap is not None and self._stream is not None:
            self._by_stream[self._stream[request]].remove(request)


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
