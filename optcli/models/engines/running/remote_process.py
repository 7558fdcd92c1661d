"""The process behind a `RemoteExecution`: holds the engine, times its calls, ends with its parent.

Standard input has one command a line, standard output one answer each; lines of TensorRT's log come in
between, as `{"log": [severity, text]}`:

    {"do": "open", "open": "module:name", "job": {...}, "folder": ...}   -> inputs, what was opened
    {"do": "call", "layout": [...]}                                      -> layout of the outputs, times
    {"do": "describe"}                                                   -> what runs here
    {"do": "memory"}                                                     -> the most memory held so far
    {"do": "end"}                                                        -> nothing; the process ends
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any, TextIO

from optcli.models.engines import EngineError
from optcli.models.engines.messages import LogLine
from optcli.models.engines.process import ChildOutput, call, standard_output
from optcli.models.engines.running.shared_arrays import SharedArrays

_SEVERITIES = "FEW"  # of log lines that explain why this process died


class Serving(ChildOutput):
    """One engine and the memory that is shared with the parent."""

    def __init__(self, out: TextIO) -> None:
        super().__init__(out)
        self._empty_bytes = _high_water_bytes()
        self._execution: Any = None

    def answer(self, command: dict[str, Any]) -> dict[str, Any]:
        """Carry out one command."""
        return getattr(self, f"_{command['do']}")(command)  # type: ignore[no-any-return]

    def _open(self, command: dict[str, Any]) -> dict[str, Any]:
        folder = Path(command["folder"])
        self._shared_inputs = SharedArrays(folder / "inputs")
        self._shared_outputs = SharedArrays(folder / "outputs")
        self._execution = call(command["open"], command["job"], self._heard)
        names = {name: dtype.str for name, dtype in self._execution.inputs.items()}
        return {"inputs": names, "notes": self._execution.notes}

    def _call(self, command: dict[str, Any]) -> dict[str, Any]:
        feed = self._shared_inputs.read(command["layout"])
        execution = self._execution
        start = time.perf_counter_ns()
        execution.bind(feed)
        execution.execute()
        outputs = execution.fetch()
        ns = time.perf_counter_ns() - start
        device_ms = execution.device_ms()
        return {"layout": self._shared_outputs.write(outputs), "ns": ns, "device_ms": device_ms}

    def _describe(self, command: dict[str, Any]) -> dict[str, Any]:
        return dict(self._execution.describe())

    def _memory(self, command: dict[str, Any]) -> dict[str, Any]:
        return {"peak_bytes": max(0, _high_water_bytes() - self._empty_bytes)}

    def _end(self, command: dict[str, Any]) -> dict[str, Any]:
        if self._execution is not None:
            self._execution.close()
        return {}

    def _heard(self, line: LogLine) -> None:
        if line.severity in _SEVERITIES:
            self.send({"log": [line.severity, line.text]})


def _high_water_bytes() -> int:
    """The most resident memory so far. Not `ru_maxrss`, which survives `exec` from a large parent."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    lines = (line.split() for line in status.splitlines())
    return next((int(words[1]) * 1024 for words in lines if words[:1] == ["VmHWM:"]), 0)


def main() -> None:
    """Answer commands until the parent is done, or gone."""
    serving = Serving(standard_output())
    commands: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(commands,), daemon=True).start()
    while True:
        command = json.loads(commands.get())
        try:
            serving.send({"answer": serving.answer(command)})
        except EngineError as error:
            serving.send({"error": error.to_record()})
        except Exception as error:  # said to the parent, which knows what to do about it
            traceback.print_exc()
            serving.send({"error": EngineError(f"{type(error).__name__}: {error}").to_record()})
        if command["do"] == "end":
            return


def _listen(commands: queue.SimpleQueue[bytes]) -> None:
    """A parent that is gone ends this process at once, whatever native code is at work."""
    for line in sys.stdin.buffer:
        commands.put(line)
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
