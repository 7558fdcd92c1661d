"""What all runtimes' profilers share: calls in rounds, the events recorded, times by operator."""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Any, Literal

from optcli.files import registry
from optcli.measure.profiling.record import OperatorTime
from optcli.runners import Runner

if TYPE_CHECKING:
    import numpy as np

    Feed = dict[str, np.ndarray]

# The row for code that the profiler sees as one piece.
OPAQUE = "compiled code"


@dataclass(frozen=True)
class OperatorEvent:
    """One operator that ran once: its own time, without that of operators inside it."""

    name: str
    type: str
    time_us: float
    precision: str | None = None


@dataclass(frozen=True)
class ProfiledEvents:
    """The events of the profiled calls.

    `calls` holds each call's events in their order; a runtime that gives means alone gives one call
    and says so in `statistic`. `trace` are events of the Chrome trace format.
    """

    profiler: str
    calls: Sequence[Sequence[OperatorEvent]]
    trace: list[dict[str, Any]]
    statistic: Literal["median", "mean"] = "median"
    notes: tuple[str, ...] = ()

    def typical(self, values: Sequence[float]) -> float:
        """The median or the mean, as the operators' times are."""
        return median(values) if self.statistic == "median" else mean(values)


@dataclass(frozen=True)
class Times:
    """Operators, the slowest first, and the milliseconds of one call in and outside of them.

    `unexplained_ms` is the rest of a call without a profiler: the sum of the three is that call's time.
    It is below zero where the profiler makes operators slower than they are.
    """

    operators: tuple[OperatorTime, ...] = ()
    operators_ms: float = 0.0
    outside_ms: float = 0.0
    unexplained_ms: float = 0.0
    notes: tuple[str, ...] = ()


def times(reading: ProfiledEvents, plain_ms: Sequence[float], profiled_ms: Sequence[float]) -> Times:
    """Times by operator, from a reading and the wall times of calls without and with the profiler.

    The time outside of operators is the smaller of two estimates. One is wall time less operators in
    the profiled calls; the profiler's own work makes it too large. The other is a quick call without
    the profiler less the operators of a quick call with it (lower quartiles): waiting for cores on a
    busy machine does not count as the framework's time. Each operator has its own typical time. On a
    busy machine every call may be held up in another operator: then no typical time shows it, and it
    stays unexplained.
    """
    totals = [sum(event.time_us for event in call) / 1e3 for call in reading.calls]
    if not totals or not any(totals):
        return Times(notes=(f"{reading.profiler} noted no operator",))
    if len(totals) == len(profiled_ms):
        within = [wall - inside for wall, inside in zip(profiled_ms, totals, strict=True)]
    else:
        within = [reading.typical(profiled_ms) - totals[0]]
    outside_ms = max(0.0, min(reading.typical(within), _quick(plain_ms) - _quick(totals)))
    rows = _operators(reading)
    summed_ms = sum(row.time_ms for row in rows)
    wall_ms = median(plain_ms)
    whole_ms = max(wall_ms, summed_ms + outside_ms)
    operators = tuple(
        row.model_copy(update={"share": row.time_ms / whole_ms})
        for row in sorted(rows, key=lambda row: -row.time_ms)
    )
    return Times(operators, summed_ms, outside_ms, wall_ms - summed_ms - outside_ms)


def _quick(values: Sequence[float]) -> float:
    """The lower quartile: the time of a call that little else delayed."""
    return sorted(values)[len(values) // 4]


def _operators(reading: ProfiledEvents) -> list[OperatorTime]:
    """One row per operator: the n-th of a name and type within a call is the same one in every call."""
    count = len(reading.calls)
    times_ms: dict[tuple[str, str, int], list[float]] = defaultdict(list)
    precisions: dict[tuple[str, str, int], str | None] = {}
    for call in reading.calls:
        seen: Counter[tuple[str, str]] = Counter()
        for event in call:
            key = (event.name, event.type, seen[event.name, event.type])
            seen[event.name, event.type] += 1
            times_ms[key].append(event.time_us / 1e3)
            precisions[key] = event.precision
    # Operators of one name get numbers only where one call has several of them.
    several = {key[:2] for key in times_ms if key[2]}
    rows = []
    for key, values in times_ms.items():
        name = f"{key[0]} #{key[2] + 1}" if key[:2] in several else key[0]
        calls = len(values) / count
        # An operator that did not run in a call took no time there.
        values += [0.0] * (count - len(values))
        rows.append(
            OperatorTime(
                name=name,
                type=key[1],
                precision=precisions[key],
                calls=calls,
                time_ms=reading.typical(values),
                share=0.0,
            )
        )
    return rows


# By runner. One that is not here is measured by stages alone.
_MODULES = {
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "torch": "torch",
    "torchscript": "torch",
    "aoti": "torch",
}


class Profiler(ABC):
    """One runtime's own profiler. Subclasses: one per file.

    `plain` is the opened runner that is timed without a profiler; `reopen` opens another one of the
    same settings for profiling, for runtimes that must be told before they load; `scratch` is an empty
    folder.
    """

    def __init__(self, plain: Runner, reopen: Callable[[Path], Runner], scratch: Path) -> None:
        self._scratch = scratch
        self._runner = self.opened(plain, reopen)
        self._calls = 0

    def opened(self, plain: Runner, reopen: Callable[[Path], Runner]) -> Runner:
        """The runner to profile."""
        return reopen(self._scratch)

    def round(self) -> AbstractContextManager[object]:
        """A context around each round of calls."""
        return nullcontext()

    def begin(self) -> None:
        """Count from here on: earlier calls were to warm up. Called once, between rounds."""
        self._calls = 0

    def call(self, feed: Feed) -> float:
        """One call; gives the milliseconds of its compute step."""
        self._runner.bind(feed)
        start = time.perf_counter_ns()
        self._runner.execute()
        stop = time.perf_counter_ns()
        self._runner.fetch()
        self._calls += 1
        return (stop - start) / 1e6

    @abstractmethod
    def read(self) -> ProfiledEvents:
        """The events of the calls since `begin`. Called once, at the end."""

    def close(self) -> None:
        """Let go of what `reopen` opened."""
        self._runner.close()


def of_runner(name: str) -> type[Profiler] | None:
    """The profiler of a runner's runtime; None where optcli reads none."""
    module = _MODULES.get(name)
    if module is None:
        return None
    loaded = importlib.import_module(f"optcli.measure.profiling.{module}")
    return registry.only_subclass(loaded, Profiler)  # type: ignore[type-abstract]
