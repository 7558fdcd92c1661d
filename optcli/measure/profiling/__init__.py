"""Profiling: where the time of one artifact goes, by operator, by stage, and in words.

One file per runtime's own profiler (`profiling/openvino.py`). `measure` works in a process of its own;
nothing heavy is imported here.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

from optcli import runners
from optcli.errors import InputError, raised_as, strerror
from optcli.files import folders, regular_files
from optcli.measure.profiling.findings import document, findings
from optcli.measure.profiling.record import Finding, OperatorTime, Profile, ProfileRequest, StageTime
from optcli.workers import run

_TIMEOUT_S = 900.0


def measure(request: ProfileRequest, log: Path, interpreter: str | None = None) -> Profile:
    """Profile an artifact in a runner, in a process of its own.

    `interpreter` is another Python to open it in. Raises `RunnerError`, `InputError`, and `StepError`
    where the process died.
    """
    environment = runners.find(request.runner).model_validate(request.options).environment()
    with folders.temporary("profile") as folder:
        written = Path(folder, "trace.json")
        profile = run(
            "optcli.measure.profiling.process:profile",
            replace(request, trace=written),
            Profile,
            log=log,
            environment=environment,
            timeout_s=_TIMEOUT_S,
            interpreter=interpreter or sys.executable,
            confined=(Path(folder),) if request.artifact.foreign else None,
            reads=request.variant,
        )
        if profile.trace:
            _place(written, request.trace)
            profile = profile.model_copy(update={"trace": str(request.trace)})
    return profile.model_copy(update={"findings": findings(profile)})


def _place(written: Path, destination: Path) -> None:
    """Bring the trace to where it was asked for: the process may be one that cannot write there."""
    message = "the trace cannot be written"
    hint = "name another file with --trace"
    with raised_as(InputError, message, of=OSError, reason=strerror, place=str(destination), hint=hint):
        regular_files.check(written)
        destination.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(written, destination)
