"""What is computed to find the peaks, and the shortest time of many repetitions.

Matrix products and convolutions that libraries do best, of a few milliseconds at most: on a machine
that is not quiet some are left alone. What disturbs a call can only make it longer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from optcli.measure.roofline.findings import Operation, Rate

MATRICES = (512, 1024)


@dataclass(frozen=True)
class ConvolutionShape:
    """A 3 x 3 convolution that keeps its size, with as many channels in as out."""

    batch: int
    channels: int
    side: int

    @property
    def operations(self) -> int:
        """Two for each multiply-accumulate of the direct algorithm."""
        return 2 * self.batch * self.side**2 * self.channels**2 * 9

    @property
    def size(self) -> str:
        """For a report."""
        return f"{self.batch} x {self.channels} x {self.side} x {self.side}, 3 x 3"


CONVOLUTIONS = (ConvolutionShape(2, 64, 56), ConvolutionShape(4, 256, 14))


def product_operations(side: int) -> int:
    """Operations of a product of two square matrices."""
    return 2 * side**3


def product_size(side: int) -> str:
    """For a report."""
    return f"{side} x {side} x {side}"


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
