"""Profiling: where the time of one artifact goes, by operator, by stage, and in words.

One file per runtime's own profiler (`profiling/openvino.py`). `measure` works in a process of its own;
nothing heavy is imported here.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from optcli import runners
from optcli.artifact import Artifact
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
    payload = {**request, "artifact": artifact.to_record(), "runner": runner, "options": options}
    environment = runners.find(runner).model_validate(options).environment()
    found = run(
        "optcli.profiling.process:profile",
        payload,
        log=log,
        environment=environment,
        timeout_s=_TIMEOUT_S,
        interpreter=interpreter or sys.executable,
    )
    effective = found.pop("effective")
    profile = Profile.model_validate(
        {
            **found,
            "variant": variant,
            "recipe": recipe,
            "artifact": summary,
            "runner": {"name": runner, "requested": options, **effective},
            "batch_size": request["batch_size"],
        }
    )
    return profile.model_copy(update={"findings": findings(profile)})
