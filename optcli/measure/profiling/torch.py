"""torch.profiler: operators of eager networks, exported programs and TorchScript, one by one.

Of compiled networks and AOTInductor packages it sees the calls of PyTorch's own operators (matrix
products and some convolutions); the code that was generated for the rest is one row.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeAlias

from optcli.measure.profiling.profiler import OPAQUE, OperatorEvent, ProfiledEvents, Profiler

if TYPE_CHECKING:
    from optcli.measure.profiling.profiler import Feed
    from optcli.runners import Runner

_COMPUTE = "optcli compute"
# The names from an operator that was called from outside down to one below it.
_Path: TypeAlias = tuple[str, ...]
# Regions that hold operators but are none.
_REGIONS = {"## Call CompiledFxGraph": "compiled graph", "AOTIModelContainerRunner::": "package"}
# What neither computes nor copies; inside a region it belongs to the region.
_BOOKKEEPING = frozenset(
    f"aten::{name}"
    for name in (
        *("empty", "empty_strided", "empty_like", "resize_", "as_strided", "as_strided_", "view"),
        *("detach", "set_", "alias", "reshape", "slice", "select", "_nnpack_available"),
    )
)
_INTEGER = ("quantized::", "onednn::q", "aten::quantize", "quantized_decomposed::")
_SEEN_AS_ONE = (
    f"torch.profiler sees generated code as one piece: its kernels are not told apart (row '{OPAQUE}')"
)


class TorchProfiler(Profiler):
    """Runs `torch.profiler` around each round, on the CPU."""

    _profile: Any = None

    def opened(self, plain: Runner, reopen: Callable[[Path], Runner]) -> Runner:
        """The runner that is timed: torch.profiler can be switched on at any time."""
        self._steps: list[Any] = []
        return plain

    @contextmanager
    def round(self) -> Iterator[None]:
        import torch

        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            yield
        self._steps += compute_steps(profile.events())
        self._profile = profile

    def begin(self) -> None:
        super().begin()
        self._steps = []

    def call(self, feed: Feed) -> float:
        import torch

        with torch.profiler.record_function("optcli copy in"):
            self._runner.bind(feed)
        start = time.perf_counter_ns()
        with torch.profiler.record_function(_COMPUTE):
            self._runner.execute()
        stop = time.perf_counter_ns()
        with torch.profiler.record_function("optcli copy out"):
            self._runner.fetch()
        self._calls += 1
        return (stop - start) / 1e6

    def read(self) -> ProfiledEvents:
        calls = operators(self._steps)
        opaque = any(event.type == OPAQUE for call in calls for event in call)
        return ProfiledEvents(
            "torch.profiler", calls, self._trace(), notes=(_SEEN_AS_ONE,) if opaque else ()
        )

    def close(self) -> None:
        """Nothing: the runner is the one that is timed without a profiler, and its owner closes it."""

    def _trace(self) -> list[dict[str, Any]]:
        """The last round's events."""
        if self._profile is None:
            return []
        file = self._scratch / "torch.json"
        self._profile.export_chrome_trace(str(file))
        events: list[dict[str, Any]] = json.loads(file.read_bytes())["traceEvents"]
        return events


def compute_steps(events: Sequence[Any]) -> list[Any]:
    """The compute steps among torch's `FunctionEvent`s, in their order."""
    return sorted((e for e in events if e.name == _COMPUTE), key=lambda e: e.time_range.start)


def operators(steps: Sequence[Any]) -> list[list[OperatorEvent]]:
    """The operators that compute, for every compute step.

    An operator that spends half of its time or more in another one only passes the work on: its own
    share is the framework's, as are regions of the interpreter. That is decided over all steps by the
    median, so that an interruption between the two does not make an operator of the framework's share.
    """
    shares: dict[_Path, list[float]] = defaultdict(list)
    for step in steps:
        for child in step.cpu_children:
            _note_shares(child, (), shares)
    hollow = {path for path, values in shares.items() if median(values) >= 0.5}
    return [
        [event for child in step.cpu_children for event in _within(child, (), None, hollow)]
        for step in steps
    ]


def _computing(event: Any) -> list[Any]:
    return [child for child in event.cpu_children if child.name not in _BOOKKEEPING]


def _note_shares(event: Any, above: _Path, shares: dict[_Path, list[float]]) -> None:
    """The share of an event's time that its longest child takes, for it and all below it."""
    path = (*above, str(event.name))
    longest_us = max((float(child.cpu_time_total) for child in _computing(event)), default=0.0)
    # What took no time on the profiler's clock has nothing of its own either.
    shares[path].append(longest_us / float(event.cpu_time_total) if event.cpu_time_total else 0.0)
    for child in event.cpu_children:
        _note_shares(child, path, shares)


def _within(
    event: Any, above: _Path, called: str | None, hollow: Set[_Path]
) -> Iterator[OperatorEvent]:
    """What computes in an event; `called` is the operator that was called from outside."""
    name = str(event.name)
    path = (*above, name)
    region = next((what for start, what in _REGIONS.items() if name.startswith(start)), None)
    if region is not None:
        inside = [inner for child in _computing(event) for inner in _within(child, path, None, hollow)]
        yield from inside
        rest_us = float(event.cpu_time_total) - sum(inner.time_us for inner in inside)
        yield OperatorEvent(region, OPAQUE, max(0.0, rest_us))
    elif "::" not in name:
        for child in event.cpu_children:
            yield from _within(child, path, called, hollow)
    elif path in hollow and _computing(event):
        for child in _computing(event):
            yield from _within(child, path, called or name, hollow)
    else:
        precision = "int8" if name.startswith(_INTEGER) else None
        yield OperatorEvent(called or name, name, float(event.cpu_time_total), precision)
