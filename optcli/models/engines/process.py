"""The child's side of TensorRT's work: one job in, JSON lines out, whichever interpreter this is.

The first line on standard input is the job, `{"function": "module:name", "job": {...}}`; when
standard input closes, whoever asked is gone, and so is this process. Standard output carries one
JSON object per line: `{"progress": [fraction, message]}`, `{"warned": message}`,
`{"log": [severity, text]}` and at last `{"result": ...}` or `{"error": {...}}`. What libraries print
goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Mapping
from typing import Any, TextIO

from optcli.models.engines import EngineError, messages
from optcli.models.engines.messages import LogLine


class ChildOutput:
    """The lines that this process writes to its parent, each whole: TensorRT logs from own threads."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._one_at_a_time = threading.Lock()

    def send(self, record: Mapping[str, Any]) -> None:
        """Write one line."""
        with self._one_at_a_time:
            self._out.write(json.dumps(record) + "\n")
            self._out.flush()


class JobChannel(ChildOutput):
    """What a job says on its way; `lines` are those that TensorRT logged so far."""

    def __init__(self, out: TextIO) -> None:
        super().__init__(out)
        self.lines: list[LogLine] = []

    def progress(self, fraction: float | None, message: str) -> None:
        """How far the job is; `fraction` is 0..1, or None where the end is not known."""
        self.send({"progress": [fraction, message]})

    def warn(self, message: str) -> None:
        """Something a person should know that stops nothing."""
        self.send({"warned": message})

    def heard(self, line: LogLine) -> None:
        """Pass a line of TensorRT's log on; it is with the parent before TensorRT goes on."""
        if line.severity == "V":
            return
        if line.severity != "I":  # for the step's log
            sys.stderr.write(f"{line}\n")
        self.lines.append(line)
        self.send({"log": [line.severity, line.text]})


def standard_output() -> TextIO:
    """Standard output for answers alone: what libraries print goes to standard error from here on."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return out


def call(function: str, *arguments: Any) -> Any:
    """Call a function by its name, `module:name`."""
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(module), name)(*arguments)


def main() -> None:
    """Do the one job that standard input names."""
    talk = JobChannel(standard_output())
    request = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    try:
        talk.send({"result": call(request["function"], request["job"], talk)})
    except EngineError as error:
        talk.send({"error": error.to_record()})
    except Exception as error:  # said to the parent, which knows what to do about it
        traceback.print_exc()
        what = f"{type(error).__name__}: {error}"
        talk.send({"error": messages.explained(what, talk.lines).to_record()})


def _end_with_the_parent() -> None:
    while os.read(0, 4096):
        pass
    # Not an exit: a build in native code would go on to its end first.
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))
