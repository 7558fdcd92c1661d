"""Where a build's time goes, phase by phase."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Phases:
    """Seconds by phase: `with phases.take("latency"): ...`, several times if need be."""

    def __init__(self) -> None:
        self.took_s: dict[str, float] = {}

    @contextmanager
    def take(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase, also where it ends in an error."""
        began = time.monotonic()
        try:
            yield
        finally:
            took = self.took_s.get(name, 0.0) + time.monotonic() - began
            self.took_s[name] = round(took, 3)
