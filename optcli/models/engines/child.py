"""The parent's side of TensorRT's work: a process of its own, with a time limit.

TensorRT ends the process, or returns None, where others raise; what its log said last is the only
explanation, and stands in the error.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from optcli.models.engines import EngineError, messages
from optcli.models.engines.messages import LogLine

PYTHON = "OPTCLI_TENSORRT_PYTHON"

# `optcli` is made known as a package without running anything of it: an interpreter of another
# version gets this folder's modules and its own libraries.
_START = (
    "import importlib, sys, types; "
    "sys.path[:] = [path for path in sys.path if path]; "
    "package = sys.modules['optcli'] = types.ModuleType('optcli'); "
    "package.__path__ = [sys.argv[1]]; "
    "importlib.import_module(sys.argv[2]).main()"
)
_PACKAGE = Path(__file__).resolve().parents[2]
# As in `optcli.errors`, which this room cannot import: other interpreters load its modules alone.
_DEATHS = {
    "SIGSEGV": "crashed with a segmentation fault",
    "SIGABRT": "aborted",
    "SIGKILL": "was killed, most likely because memory ran out",
    "SIGBUS": "crashed with a bus error",
    "SIGILL": "used an instruction this CPU does not have",
    "SIGFPE": "crashed with an arithmetic error",
}

OnEvent = Callable[[Mapping[str, Any]], None]


def interpreter(product: str, python: str | None = None) -> str | None:
    """The Python that holds a product: `python`, else OPTCLI_TENSORRT_PYTHON for TensorRT itself.

    None: this very interpreter.
    """
    if python is None and product == "tensorrt":
        python = os.environ.get(PYTHON) or None
    return python


def command(python: str | None, module: str) -> list[str]:
    """The command that runs `main()` of a module of this room in an interpreter; None: in this one."""
    return [python or sys.executable, "-c", _START, os.fspath(_PACKAGE), module]


def environment(python: str | None) -> dict[str, str]:
    """The environment of such a process: another interpreter must not get this one's packages."""
    variables = dict(os.environ, PYTHONDONTWRITEBYTECODE="1", PYTHONUTF8="1")
    # TensorRT 8.6 was built for a CUDA that loads every kernel at the start, wanted or not.
    variables.setdefault("CUDA_MODULE_LOADING", "LAZY")
    if python is not None:
        for name in ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"):
            variables.pop(name, None)
    return variables


def run(
    function: str,
    job: Mapping[str, Any],
    *,
    python: str | None = None,
    timeout_s: float = 3600.0,
    on_event: OnEvent | None = None,
) -> Any:
    """Call `function(job, talk)` (`module:name` of this room) in a process of its own.

    `job` and what it gives are JSON. `on_event` hears `{"progress": [fraction, message]}` and
    `{"warned": message}`; what it raises ends the process. Raises `EngineError`: the job's own, or that
    the process died or took more than `timeout_s` seconds, with TensorRT's last lines.
    """
    line = json.dumps({"function": function, "job": dict(job)}).encode() + b"\n"
    process = start(python, "optcli.models.engines.process")
    try:
        return _result(process, line, timeout_s, on_event)
    finally:
        end(process)


def start(python: str | None, module: str) -> subprocess.Popen[bytes]:
    """Start `main()` of a module of this room, with pipes to and from it. Raises `EngineError`."""
    try:
        return subprocess.Popen(
            command(python, module),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment(python),
        )
    except OSError as error:
        raise EngineError(
            f"the interpreter {python or sys.executable} cannot be started: {error.strerror}",
            hint=f"look at {PYTHON}, or the option `python`",
        ) from error


def end(process: subprocess.Popen[bytes]) -> None:
    """End it, whatever it does, and close the pipes."""
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()


def died(process: subprocess.Popen[bytes], lines: Sequence[LogLine]) -> EngineError:
    """What to say of a process that ended by itself, with what TensorRT logged last."""
    code = process.wait()
    # A script around the interpreter says 128 + n where a signal ended it.
    number = -code if code < 0 else code - 128
    if number in set(signal.Signals):
        name = signal.Signals(number).name
        what = f"{_DEATHS.get(name, 'was ended')} ({name}, exit {128 + number})"
    else:
        what = f"ended early with exit code {code}"
    return messages.explained(f"TensorRT's process {what}", lines)


def _result(
    process: subprocess.Popen[bytes], job: bytes, timeout_s: float, on_event: OnEvent | None
) -> Any:
    """What one job gives, listened to from its first line to its last."""
    deadline = time.monotonic() + timeout_s
    outputs: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    lines: list[LogLine] = []
    assert process.stdin is not None
    with suppress(BrokenPipeError):
        process.stdin.write(job)
        process.stdin.flush()
    threading.Thread(target=_listen, args=(process, outputs), daemon=True).start()
    while True:
        try:
            output = outputs.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise messages.explained(
                f"it took more than {timeout_s:g} seconds and was stopped",
                lines,
                hint="raise `max_seconds`, or lower `optimization_level`",
            ) from None
        if not output:
            raise died(process, lines)
        record = json.loads(output)
        if "result" in record:
            return record["result"]
        if "error" in record:
            raise EngineError.from_record(record["error"])
        if "log" in record:
            lines.append(LogLine(*record["log"]))
        elif on_event is not None:
            on_event(record)


def _listen(process: subprocess.Popen[bytes], outputs: queue.SimpleQueue[bytes]) -> None:
    assert process.stdout is not None
    with suppress(ValueError):  # closed by now: nobody waits for more
        for line in process.stdout:
            outputs.put(line)
    outputs.put(b"")
