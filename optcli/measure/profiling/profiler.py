"""The base of all runtimes' profilers: it calls the network in rounds and gives what was recorded."""

from __future__ import annotations

import importlib
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from optcli.files import registry
from optcli.measure.profiling.events import ProfiledEvents
from optcli.runners import Runner

if TYPE_CHECKING:
    import numpy as np

    Feed = dict[str, np.ndarray]

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
