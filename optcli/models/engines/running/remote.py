"""An execution in another interpreter: TensorRT 8.6 runs on CPython 3.10 only.

Arrays go through shared memory. A call is timed over there, from inputs in memory to outputs in memory,
as a call in this process would be: neither the pipe nor the way through shared memory is in the number.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from optcli.models.engines import EngineError, child
from optcli.models.engines.messages import LogLine
from optcli.models.engines.running.shared_arrays import Layout, SharedArrays, SharedFolder

if TYPE_CHECKING:
    import numpy as np

OPEN = "optcli.models.engines.running.execution:open_here"


class RemoteExecution:
    """The interface of an `Execution`, whose engine another process holds.

    `job` is what `open_here` takes, `python` the other interpreter. Raises `EngineError`: what
    was raised over there, or that the process died, with TensorRT's last words. Without time limits of
    its own: whoever measures or judges has one, and the process ends with its parent.
    """

    def __init__(self, job: Mapping[str, Any], python: str | None, *, opens: str = OPEN) -> None:
        self._lines: list[LogLine] = []
        self._layout: Layout = ()
        self._answer: dict[str, Any] = {}
        self._folder = SharedFolder()
        self._shared_inputs = SharedArrays(self._folder.path / "inputs")
        self._shared_outputs = SharedArrays(self._folder.path / "outputs")
        self._process: Any = None
        try:
            self._process = child.start(python, "optcli.models.engines.running.remote_process")
            about = self._ask(
                {"do": "open", "open": opens, "job": dict(job), "folder": str(self._folder.path)}
            )
        except BaseException:
            self.close()
            raise
        self.notes: dict[str, Any] = about["notes"]
        self._inputs: dict[str, str] = about["inputs"]

    @property
    def inputs(self) -> dict[str, np.dtype[Any]]:
        """The engine's inputs and what their elements are held as."""
        import numpy as np

        return {name: np.dtype(kind) for name, kind in self._inputs.items()}

    def bind(self, feed: Mapping[str, np.ndarray]) -> None:
        """Put one batch where the other process finds it."""
        self._answer = {}
        self._layout = self._shared_inputs.write(feed)

    def execute(self) -> None:
        """Let it bind, compute and fetch, and time that."""
        if not self._layout:
            raise EngineError("nothing was bound", hint="bind inputs first")
        self._answer = self._ask({"do": "call", "layout": self._layout})

    def fetch(self) -> dict[str, np.ndarray]:
        """Copies of the outputs."""
        if not self._answer:
            raise EngineError("nothing was computed", hint="execute first")
        views = self._shared_outputs.read(self._answer["layout"])
        return {name: view.copy() for name, view in views.items()}

    def device_ms(self) -> float | None:
        """Milliseconds on the GPU of the last `execute`."""
        return self._answer.get("device_ms")

    def host_ns(self) -> int | None:
        """Nanoseconds of the last call by the other process's clock."""
        return self._answer.get("ns")

    def peak_bytes(self) -> int:
        """The most memory that process has held, above itself without TensorRT and an engine."""
        return int(self._ask({"do": "memory"})["peak_bytes"])

    def describe(self) -> dict[str, Any]:
        """What runs there."""
        return self._ask({"do": "describe"})

    def close(self) -> None:
        """End the process; a second time nothing happens."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(EngineError, OSError):
                self._tell(process, {"do": "end"})
                self._hear(process)
            child.end(process)
        self._folder.remove()

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        if self._process is None:
            raise EngineError("the engine was closed", hint="open it again")
        self._tell(self._process, command)
        return self._hear(self._process)

    def _tell(self, process: Any, command: dict[str, Any]) -> None:
        # One that is gone is noticed when it does not answer.
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps(command).encode() + b"\n")
            process.stdin.flush()

    def _hear(self, process: Any) -> dict[str, Any]:
        for line in process.stdout:
            record = json.loads(line)
            if "answer" in record:
                return dict(record["answer"])
            if "error" in record:
                raise EngineError.from_record(record["error"])
            self._lines.append(LogLine(*record["log"]))
        raise child.died(process, self._lines)
