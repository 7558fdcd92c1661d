"""torch.profiler: operators of eager networks, exported programs and TorchScript, one by one.

Of compiled networks and AOTInductor packages it sees the calls of PyTorch's own operators (matrix
products and some convolutions); the code that was generated for the rest is one row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.profiling.events import OPAQUE, Event, Reading
from optcli.profiling.profiler import Profiler

if TYPE_CHECKING:
    from optcli.profiling.profiler import Feed
    from optcli.runners import Runner

_COMPUTE = "optcli compute"
# Regions that hold operators but are none.
_REGIONS = {"## Call CompiledFxGraph": "compiled graph", "AOTIModelContainerRunner::": "package"}
# What neither computes nor copies; inside a region it belongs to the region.
_BOOKKEEPING = frozenset(
    f"aten::{name}"
    for name in ("empty", "empty_strided", "empty_like", "resize_", "as_strided", "as_strided_", "view")
) | {
    "aten::detach",
    "aten::set_",
    "aten::alias",
    "aten::reshape",
    "aten::slice",
    "aten::select",
    "aten::_nnpack_available",
}
_INTEGER = ("quantized::", "onednn::q", "aten::quantize", "quantized_decomposed::")
_SEEN_AS_ONE = (
    f"torch.profiler sees generated code as one piece: its kernels are not told apart (row '{OPAQUE}')"
)


class TorchProfiler(Profiler):
    """Runs `torch.profiler` around each round, on the CPU."""

    _profile: Any = None

    def opened(self, plain: Runner, reopen: Callable[[Path], Runner]) -> Runner:
        """The same: torch.profiler can be switched on at any time."""
        self._read: list[Sequence[Event]] = []
        return plain

    @contextmanager
    def round(self) -> Iterator[None]:
        import torch

        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            yield
        self._read += calls(profile.events())
        self._profile = profile

    def begin(self) -> None:
        super().begin()
        self._read = []

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

    def read(self) -> Reading:
        opaque = any(event.type == OPAQUE for call in self._read for event in call)
        return Reading(
            "torch.profiler", self._read, self._trace(), notes=(_SEEN_AS_ONE,) if opaque else ()
        )

    def close(self) -> None:
        """The runner is the one that is timed without a profiler: not ours to close."""

    def _trace(self) -> list[dict[str, Any]]:
        """The last round's events."""
        if self._profile is None:
            return []
        file = self._scratch / "torch.json"
        self._profile.export_chrome_trace(str(file))
        found: list[dict[str, Any]] = json.loads(file.read_bytes())["traceEvents"]
        return found


def calls(events: Sequence[Any]) -> list[list[Event]]:
    """The operators of every compute step in a list of torch's `FunctionEvent`s."""
    steps = sorted((e for e in events if e.name == _COMPUTE), key=lambda e: e.time_range.start)
    return [[one for child in step.cpu_children for one in _operators(child, None)] for step in steps]


def _operators(event: Any, called: str | None) -> Iterator[Event]:
    """What computes below an event; `called` is the operator that was called from outside.

    An operator that spends half of its time or more in another one only passes the work on: its own
    share is the framework's, as are regions of the interpreter.
    """
    name = str(event.name)
    children = [child for child in event.cpu_children if child.name not in _BOOKKEEPING]
    region = next((what for start, what in _REGIONS.items() if name.startswith(start)), None)
    if region is not None:
        inside = [one for child in children for one in _operators(child, None)]
        yield from inside
        rest_us = float(event.cpu_time_total) - sum(one.time_us for one in inside)
        yield Event(region, OPAQUE, max(0.0, rest_us))
    elif "::" not in name:
        for child in event.cpu_children:
            yield from _operators(child, called)
    elif max((float(child.cpu_time_total) for child in children), default=0.0) * 2 >= float(
        event.cpu_time_total
    ):
        for child in children:
            yield from _operators(child, called or name)
    else:
        precision = "int8" if name.startswith(_INTEGER) else None
        yield Event(called or name, name, float(event.cpu_time_total), precision)
