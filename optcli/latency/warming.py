"""Warming up: until calls take what they usually take.

Caches fill, memory is allocated once, kernels are chosen in the first calls, and some runtimes go on
for seconds. What was still on its way would be a difference between launches.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from optcli.latency.messages import WarmUp

# Two windows of calls that follow each other, this long, whose medians differ by less than this.
_WINDOW_NS = 0.2e9
_STEADY = 0.03
# It must have lasted so long: what comes late is not seen in the first windows.
_LEAST_NS = 0.5e9


def by_count(call: Callable[[], int], calls: int, seconds: float) -> WarmUp:
    """Call until `calls` or `seconds` are reached; `usual_ns` is the median of the later half.

    `call` gives its own nanoseconds.
    """
    begin = time.perf_counter_ns()
    times = [call()]
    while len(times) < calls and time.perf_counter_ns() - begin < seconds * 1e9:
        times.append(call())
    return _warm_up(times, begin, times[len(times) // 2 :], steady_after=len(times), steady=None)


def until_steady(call: Callable[[], int], calls: int, seconds: float) -> WarmUp:
    """Call until two successive windows of 0.2 s differ by less than 3 % in their medians.

    At least `calls` calls and half a second, at most `seconds`. `steady` says whether it was reached,
    `steady_after` how many calls came before the first of the two windows.
    """
    begin = time.perf_counter_ns()
    times = [call()]  # the first call is nobody's window
    before: list[int] = []
    while True:
        window = _window(call)
        times += window
        elapsed = time.perf_counter_ns() - begin
        alike = before and abs(_median(window) / _median(before) - 1) < _STEADY
        if alike and len(times) >= calls and elapsed >= _LEAST_NS:
            after = len(times) - len(window) - len(before)
            return _warm_up(times, begin, before + window, steady_after=after, steady=True)
        if elapsed >= seconds * 1e9:
            return _warm_up(times, begin, before + window, steady_after=len(times), steady=False)
        before = window


def _window(call: Callable[[], int]) -> list[int]:
    end = time.perf_counter_ns() + _WINDOW_NS
    times = [call()]
    while time.perf_counter_ns() < end:
        times.append(call())
    return times


def _warm_up(
    times: list[int], begin: int, usual: list[int], *, steady_after: int, steady: bool | None
) -> WarmUp:
    return WarmUp(
        first_ms=times[0] / 1e6,
        calls=len(times),
        usual_ns=_median(usual),
        steady_after=steady_after,
        steady=steady,
        seconds=(time.perf_counter_ns() - begin) / 1e9,
    )


def _median(times: list[int]) -> int:
    return sorted(times)[len(times) // 2]
