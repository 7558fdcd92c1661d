"""How many requests may be in the server at once, whoever sends them.

Ray's own `max_queued_requests` counts for each caller by itself, each proxy and each handle: all of
them together could fill the queue several times. All requests pass the ingress, so it counts here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from oip import Refused

# Of the promised time this part may pass in the server: the rest is for the way there and back.
_INSIDE = 0.95
# So many late answers beyond their share lower the bound, by this factor, to this part at least.
_TOO_MANY, _LOWER, _LEAST = 3.0, 0.9, 0.25
# Without an answer for so long, and so many times the promise, nothing is known of the server any more.
_FORGOTTEN_S, _FORGOTTEN_TIMES = 1.0, 4.0
_NONE: Mapping[float, float] = {}


class Bound:
    """The most requests that may be inside: as planned, or fewer while answers are later than promised.

    The plan knows how fast the server answers up to its limit. Beyond that it works for refused
    requests as well, or other programs use the machine, and what waits in a queue of the planned length
    waits too long. `promised` has the longest time in seconds by percentile, as in {0.95: 0.1}: of a
    hundred answers five may take longer. Late answers beyond that share lower the bound by a tenth, to
    `least` at the least. Each answer in time raises it a little: by one for as many as are inside.
    """

    def __init__(self, most: int, least: int = 0, promised: Mapping[float, float] = _NONE) -> None:
        self._most, self._least = most, min(most, max(least, round(_LEAST * most)))
        self._limits = [(1 - part, _INSIDE * seconds) for part, seconds in promised.items()]
        self._beyond = [0.0] * len(self._limits)
        longest_s = max(promised.values(), default=0.0)
        self._forgotten_s = max(_FORGOTTEN_S, _FORGOTTEN_TIMES * longest_s)
        self._now, self._lowered, self._answered = float(most), -1.0, -1.0

    def at(self, now: float) -> int:
        """The bound at a time, in seconds."""
        if now - self._answered > self._forgotten_s:
            self._now, self._beyond = float(self._most), [0.0] * len(self._limits)
        return round(self._now)

    def answered(self, begun: float, now: float, before: float) -> None:
        """Take note of a request that was let in at `begun`, left at `now`, and was unread `before`."""
        self._answered = now
        if begun < self._lowered:
            return  # The bound was higher then.
        took = before + now - begun
        late = [took > seconds for _, seconds in self._limits]
        self._beyond = [
            max(0.0, beyond + was_late - share)
            for beyond, was_late, (share, _) in zip(self._beyond, late, self._limits, strict=True)
        ]
        if max(self._beyond, default=0.0) >= _TOO_MANY:
            self._now, self._lowered = max(float(self._least), _LOWER * self._now), now
            self._beyond = [0.0] * len(self._limits)
        elif not any(late):
            self._now = min(float(self._most), self._now + 1 / self._now)


class Admission:
    """Lets requests in up to a bound; `inside` are there now.

    A request that finds it full is refused with 429, and told to come again in `retry_after_s`.
    """

    def __init__(self, bound: Bound, retry_after_s: float) -> None:
        self.inside = 0
        self._bound, self._retry_after = bound, str(max(1, round(retry_after_s)))
        self._unread_s = 0.0

    @property
    def most(self) -> int:
        """How many may be inside now."""
        return self._bound.at(time.perf_counter())

    @property
    def full(self) -> bool:
        """Whether as many are inside as may be."""
        return self.inside >= self.most

    def require_room(self) -> None:
        """Raise `Refused` where it is full."""
        if self.full:
            sentence = f"the queue is full with {self.inside} requests"
            headers = {"retry-after": self._retry_after}
            raise Refused(429, sentence, cause="queue_full", **headers)

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Be inside; raises `Refused` where it is full."""
        self.require_room()
        begun, before = time.perf_counter(), self._unread_s
        asyncio.get_running_loop().call_soon(self._looked, begun)
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1
            self._bound.answered(begun, time.perf_counter(), before)

    def _looked(self, since: float) -> None:
        """Estimate how long a request waits until it is read: a round of the event loop.

        From a request to the next round is half of one, on average.
        """
        self._unread_s += 0.1 * (2 * (time.perf_counter() - since) - self._unread_s)
