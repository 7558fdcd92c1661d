"""What the tests of the comparison have worker processes do."""

import json
import os
import signal
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from optcli.errors import StepError
from optcli.passes.export_onnx import ExportOnnx
from optcli.pipeline import check
from optcli.pipeline.comparison_process import ComparisonProcess, comparing
from optcli.pipeline.messages import PassRequest
from optcli.workers import lifetime


def copies() -> list[int]:
    """The processes that this one has started."""
    return [int(pid) for pid in Path("/proc/thread-self/children").read_text().split()]


def outcome(compare) -> dict[str, Any]:
    try:
        return {"checked": compare()}
    except StepError as error:
        return {"error": error.message, "hint": error.hint}


def compared(request: PassRequest, channel) -> dict[str, Any]:
    """What a process beside finds, and what this one does: of one child after the other."""
    paths = json.loads((request.folder / "children.json").read_text())
    children = [replace(request.parent, path=Path(path)) for path in paths]
    process = ComparisonProcess(request, 1e-3)
    found = []
    for child in children:
        process.begin(child)
        found.append(outcome(process.result))
    process.close()
    arguments = (request.parent, request.inputs, request.probe, 1e-3, 1)
    alone = [outcome(lambda child=child: check.against_parent(child, *arguments)) for child in children]
    return {"beside": found, "alone": alone, "left": copies()}


def lost(request: PassRequest, channel) -> dict[str, Any]:
    """What is found where the process is killed, where its parent has a bad model, and asked twice."""
    found = {}
    process = ComparisonProcess(request, 1e-3)
    os.kill(copies()[0], signal.SIGKILL)
    time.sleep(0.1)
    process.begin(request.parent)
    found["killed"] = process.result()
    process.close()
    process = ComparisonProcess(request, 1e-3)
    process.begin(request.parent)
    process.begin(request.parent)
    found["asked twice"] = process.result()
    process.close()
    bad = replace(request, parent=replace(request.parent, path=request.folder / "nothing"))
    process = ComparisonProcess(bad, 1e-3)
    process.begin(request.parent)
    found["cannot run its parent"] = process.result()
    process.close()
    found["left"] = copies()
    return found


def imported_ahead(request: PassRequest, channel) -> dict[str, Any]:
    """What a process beside has imported before there is a child, and what it finds where it cannot."""
    sys.path.insert(0, str(request.folder))
    mark = request.folder / "imported"
    found: dict[str, Any] = {}
    for runtime in ("noted_runtime", "no_such_runtime"):
        process = ComparisonProcess(request, 1e-3, (runtime,))
        deadline = time.monotonic() + 60
        while runtime == "noted_runtime" and not mark.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
        process.begin(request.parent)
        found[runtime] = outcome(process.result)
        process.close()
    return {**found, "marked": mark.exists()}


def _refused() -> int:
    raise OSError("too many processes")


def worth_it(request: PassRequest, channel) -> dict[str, bool]:
    """Where a process is started at all."""
    heavy = replace(request, parent=replace(request.parent, size_bytes=10**15))
    cases = {
        "usually": (request, ExportOnnx()),
        "on one core": (replace(request, threads=1), ExportOnnx()),
        "where memory is scarce": (heavy, ExportOnnx()),
    }
    found = {}
    for name, (asked, configured) in cases.items():
        with comparing(asked, (configured,)) as process:
            found[name] = process is not None
    fork, os.fork = os.fork, _refused
    with comparing(request, (ExportOnnx(),)) as process:
        found["where the system refuses"] = process is not None
    os.fork = fork
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    found["with two threads"] = lifetime.can_fork()
    stop.set()
    thread.join()
    return found
