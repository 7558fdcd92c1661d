"""The shortest of many repetitions: what disturbs a call can only make it longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from optcli.measure.roofline.findings import Operation, Rate

_FEWEST = 5
# The shortest is believed once so many calls took hardly longer.
_WITNESSES = 3
_HARDLY = 1.03
_PATIENCE = 4


@dataclass(frozen=True)
class RateRequest:
    """How many threads to use, and how many seconds for each measurement of a rate or bandwidth."""

    threads: int
    seconds: float
    working_sets_bytes: tuple[int, ...] = ()

    def rate(self, library: str, precision: str, operation: Operation, size: str, per_s: float) -> Rate:
        """What a library reached with these threads."""
        return Rate(
            precision=precision,
            operation=operation,
            library=library,
            threads=self.threads,
            size=size,
            per_s=per_s,
        )


def best_s(call: Callable[[], Any], seconds: float) -> float:
    """Seconds of the fastest call within so many seconds, and within five calls at least.

    On a machine that is not quiet, up to four times as long, until three calls agree.
    """
    call()
    times_s: list[float] = []
    begin = time.perf_counter()
    while True:
        start = time.perf_counter()
        call()
        times_s.append(time.perf_counter() - start)
        spent = time.perf_counter() - begin
        if len(times_s) >= _FEWEST and spent >= seconds:
            best = min(times_s)
            agree = sum(each <= _HARDLY * best for each in times_s)
            if agree >= _WITNESSES or spent >= _PATIENCE * seconds:
                return best
