"""Profiling: where the time of one artifact goes, by operator, by stage, and in words.

One file per runtime's own profiler (`profiling/openvino.py`). `measure` works in a process of its own;
nothing heavy is imported here.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from optcli import regular_files, runners
from optcli.artifact import Artifact
from optcli.errors import InputError
from optcli.profiling.findings import findings
from optcli.profiling.record import Finding, OperatorTime, Profile, StageTime
from optcli.profiling.text import lines
from optcli.results import ArtifactSummary
from optcli.workers import run

__all__ = ["Finding", "OperatorTime", "Profile", "StageTime", "findings", "lines", "measure"]

_TIMEOUT_S = 900.0


def measure(
    variant: str,
    recipe: str,
    summary: ArtifactSummary,
    artifact: Artifact,
    runner: str,
    options: dict[str, Any],
    request: dict[str, Any],
    log: Path,
    interpreter: str | None = None,
) -> Profile:
    """Profile an artifact in a runner with these options, in a process of its own.

    `interpreter` is another Python to open it in. `request` says what to feed and where the trace
    goes: `inputs`, `batch_size`, `seed`, `data` and `folder`, `trace`; see `process.profile`. Raises
    `RunnerError`, `InputError`, and `StepError` where the process died.
    """
    environment = runners.find(runner).model_validate(options).environment()
    with tempfile.TemporaryDirectory(prefix="optcli-profile-") as folder:
        written = Path(folder, "trace.json")
        payload = {**request, "artifact": artifact.to_record(), "runner": runner, "options": options}
        record = run(
            "optcli.profiling.process:profile",
            {**payload, "trace": str(written)},
            log=log,
            environment=environment,
            timeout_s=_TIMEOUT_S,
            interpreter=interpreter or sys.executable,
            confined=(Path(folder),) if artifact.foreign else None,
        )
        if record.pop("trace"):
            _place(written, Path(request["trace"]))
            record["trace"] = request["trace"]
    effective = record.pop("effective")
    profile = Profile.model_validate(
        {
            **record,
            "variant": variant,
            "recipe": recipe,
            "artifact": summary,
            "runner": {"name": runner, "requested": options, **effective},
            "batch_size": request["batch_size"],
        }
    )
    return profile.model_copy(update={"findings": findings(profile)})


def _place(written: Path, wanted: Path) -> None:
    """Bring the trace to where it was asked for: the process may be one that cannot write there."""
    try:
        regular_files.check(written)
        wanted.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(written, wanted)
    except OSError as error:
        raise InputError(
            f"the trace cannot be written: {error.strerror or error}",
            place=str(wanted),
            hint="name another file with --trace",
        ) from error
