"""What a measuring process does: open one artifact, then time calls at each request.

The parent speaks first; every command but `end` has one answer (`optcli.measure.latency.messages`).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING

from optcli import runners
from optcli.environment import usable_cores
from optcli.errors import RunnerError
from optcli.measure.latency import feeds
from optcli.measure.latency.machine_state import GpuMemory, Noise, high_water_bytes, mark_bytes
from optcli.measure.latency.messages import (
    Command,
    HeldMemory,
    MeasureRequest,
    Opening,
    Ready,
    Round,
    WarmUp,
)
from optcli.results import flags
from optcli.workers import Channel, libraries

if TYPE_CHECKING:
    from optcli.measure.latency.feeds import Feed
    from optcli.runners import Runner

# Two windows of calls that follow each other, this long, whose medians differ by less than this.
_WINDOW_NS = 0.2e9
_STEADY = 0.03
# It must have lasted so long: what comes late is not seen in the first windows.
_LEAST_NS = 0.5e9


def serve(
    request: MeasureRequest, channel: Channel, kind: type[MeasuringProcess] | None = None
) -> None:
    """Carry out the parent's commands until it is done."""
    process = (kind or MeasuringProcess)(request)
    try:
        while (command := channel.receive(Command)) is not None and command.do != "end":
            channel.send(process.answer(command))
    finally:
        process.close()


class MeasuringProcess:
    """One artifact, its inputs, and what was asked of them so far."""

    def __init__(self, request: MeasureRequest) -> None:
        request = request.of_model()
        self._artifact = request.artifact
        self._runner: Runner = runners.find(request.runner).model_validate(request.options)
        made = feeds.make(request.inputs, request.feeds, request.batch_sizes, request.seed)
        names = request.names or tuple(spec.name for spec in request.inputs)
        own = {spec.name: name for spec, name in zip(request.inputs, names, strict=True)}
        self._inputs = [s.model_copy(update={"name": own[s.name]}) for s in request.inputs]
        self._feeds = {
            size: [{own[name]: array for name, array in feed.items()} for feed in batches]
            for size, batches in made.items()
        }
        self._turn = 0
        self._cpu_ns = 0
        # Threads of its own wait for each other then: waiting says nothing of other work.
        self._crowded = False

    def answer(self, command: Command) -> Ready | Opening | WarmUp | Round | HeldMemory:
        """Carry out one command."""
        try:
            if command.do == "ready":
                return Ready()
            if command.do == "open":
                return self._open()
            if command.do == "warm":
                call = partial(self.call, self._feeds[command.batch_size])
                warm_up = warm_up_until_steady if command.steady else warm_up_by_count
                with self._gpu.looking() if self._gpu else nullcontext():
                    return warm_up(call, command.calls, command.seconds)
            if command.do == "round":
                return self._round(command.batch_size, command.calls, command.lead_in)
            return HeldMemory(
                observed=self._runner.observed(),
                peak_memory_bytes=max(0, high_water_bytes() - self._empty_bytes)
                + self._runner.remote_peak_bytes(),
                peak_gpu_memory_bytes=self._gpu.peak_bytes if self._gpu else None,
            )
        finally:
            self._cpu_ns = time.process_time_ns()

    def close(self) -> None:
        """Let go of the model."""
        self._runner.close()

    def _open(self) -> Opening:
        # An empty worker has its inputs, but neither a runtime nor a model.
        self._gpu = GpuMemory.here()
        self._empty_bytes = mark_bytes()
        start = time.perf_counter_ns()
        libraries.bring_in(self._runner.requires().packages)
        imported = time.perf_counter_ns()
        self._runner.open(self._artifact, self._inputs)
        loaded = time.perf_counter_ns()
        effective = self._runner.effective()
        threads = effective.get("threads") or self._runner.thread_count()
        self._crowded = threads > usable_cores()
        if self._crowded:
            crowd = flags.threads_over_cores(threads, usable_cores()).model_dump()
            effective = {**effective, "flags": [*effective.get("flags", ()), crowd]}
        # What importing left behind is not looked through again before every round.
        gc.collect()
        gc.freeze()
        return Opening(
            import_ms=(imported - start) / 1e6,
            load_ms=(loaded - imported) / 1e6,
            effective=effective,
            threads=threads,
        )

    def _round(self, batch_size: int, calls: int, lead_in: int) -> Round:
        """Time calls one by one, after some untimed ones that bring the model back into the caches.

        It also says what the process computed since the last command.
        """
        idle_cpu_ns = time.process_time_ns() - self._cpu_ns
        batches = self._feeds[batch_size]
        gc.collect()
        gc.disable()
        try:
            for _ in range(lead_in):
                self.call(batches)
            first_feed = self._turn % len(batches)
            noise = Noise()
            cpu = time.process_time_ns()
            times, device_ms = [], []
            for _ in range(calls):
                times.append(self.call(batches))
                device_ms.append(self._runner.device_ms())
            cpu = time.process_time_ns() - cpu
            disturbed = noise.since()
            return Round(
                ns=tuple(times),
                device_ns=_nanoseconds(device_ms),
                cpu_ns=cpu,
                switches=disturbed.switches,
                steal_s=disturbed.steal_s,
                waited_ns=max(disturbed.throttled_ns, 0 if self._crowded else disturbed.waited_ns),
                first_feed=first_feed,
                feeds=len(batches),
                idle_cpu_ns=idle_cpu_ns,
            )
        finally:
            gc.enable()

    def call(self, batches: list[Feed]) -> int:
        """Nanoseconds of one call: inputs copied in, computed, outputs copied out.

        By this process's clock, or by the runner's where the model lies in another process.
        """
        feed = batches[self._turn % len(batches)]
        self._turn += 1
        runner = self._runner
        start = time.perf_counter_ns()
        runner.bind(feed)
        runner.execute()
        outputs = runner.fetch()
        stop = time.perf_counter_ns()
        if not outputs:
            raise RunnerError("the model gave no output")
        own_ns = runner.host_ns()
        return stop - start if own_ns is None else own_ns


def _nanoseconds(times_ms: Sequence[float | None]) -> tuple[int, ...] | None:
    """None unless every call has a time: a series with holes would be another distribution."""
    times = [each for each in times_ms if each is not None]
    return tuple(round(each * 1e6) for each in times) if len(times) == len(times_ms) else None


# Warming up: until calls take what they usually take.
#
# Caches fill, memory is allocated once, kernels are chosen in the first calls, and some runtimes go on
# for seconds. What was still on its way would be a difference between launches.


def warm_up_by_count(call: Callable[[], int], calls: int, seconds: float) -> WarmUp:
    """Call until `calls` or `seconds` are reached; `usual_ns` is the median of the later half.

    `call` gives its own nanoseconds.
    """
    begin = time.perf_counter_ns()
    times = [call()]
    while len(times) < calls and time.perf_counter_ns() - begin < seconds * 1e9:
        times.append(call())
    return _warm_up(times, begin, times[len(times) // 2 :], steady_after=len(times), steady=None)


def warm_up_until_steady(call: Callable[[], int], calls: int, seconds: float) -> WarmUp:
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
