"""How many requests may be in the server at once, whoever sends them.

Ray's own `max_queued_requests` counts for each caller by itself, each proxy and each handle: all of
them together could fill the queue several times. All requests pass the ingress, so it counts here.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from oip import Refused


class Admission:
    """Lets `limit` requests in; `inside` are there now. One that finds it full is refused with 429."""

    def __init__(self, limit: int, retry_after_s: float) -> None:
        self.limit, self.inside = limit, 0
        self._retry_after = str(max(1, round(retry_after_s)))

    @property
    def full(self) -> bool:
        """Whether as many are inside as may be."""
        return self.inside >= self.limit

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
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1
