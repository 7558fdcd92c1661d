"""Whether a baseline can run here: its interpreter, its libraries, the CPU that it was made for."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import optcli
from optcli import environment
from optcli.errors import InputError, MissingError
from optcli.gate.baselines import Baseline
from optcli.gate.side import Side

# The folder in which this very optcli lies.
_BESIDE = Path(optcli.__file__).parents[1]


def interpreter_of(place: Path) -> str:
    """The Python of a virtual environment's folder, or the one named itself."""
    if place.is_dir():
        for name in ("bin/python", "Scripts/python.exe"):
            if (place / name).exists():
                return str((place / name).absolute())
    if place.is_file():
        return str(place.absolute())
    raise InputError(
        "there is no Python interpreter here",
        place=str(place),
        hint="name a virtual environment's folder, or its bin/python",
    )


def versions_in(interpreter: str, packages: Sequence[str]) -> dict[str, str | None]:
    """Versions of packages that another interpreter has. Raises `MissingError` where it cannot say."""
    code = (
        f"import json, sys; sys.path[:] = [*filter(None, sys.path), {str(_BESIDE)!r}]\n"
        "from optcli.environment import versions\n"
        "print(json.dumps(versions(json.loads(sys.argv[1]))))"
    )
    command = [interpreter, "-c", code, json.dumps(list(packages))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise MissingError(
            f"the baseline's interpreter cannot run optcli: {lines[-1] if lines else done.returncode}",
            place=interpreter,
            hint="install optcli's requirements into that environment",
        )
    versions: dict[str, str | None] = json.loads(done.stdout)
    return versions


def cannot_run(side: Side, before: Baseline, now: dict[str, Any]) -> str | None:
    """Why the baseline's artifact cannot be run here; None where it can."""
    assert side.before is not None
    other_cpu = of_another_cpu(side, before, now)
    if other_cpu is not None:
        return other_cpu
    from optcli.runners import find

    missing = environment.missing(find(side.before.runner).needs)
    if missing:
        return f"the baseline cannot run here: {missing[0].what}"
    return None


def of_another_cpu(side: Side, before: Baseline, environment: dict[str, Any]) -> str | None:
    """Why a baseline does not run on the CPU of the machine `environment`; None where it does."""
    assert side.before is not None
    bound = any("device" in step for step in side.before.made_by)
    then, there = before.environment.get("cpu", {}), environment["cpu"]
    if bound and (then.get("machine"), then.get("flags")) != (there["machine"], there["flags"]):
        lacking = sorted(set(then.get("flags", ())) - set(there["flags"]))
        what = f"this CPU lacks {', '.join(lacking[:4])}" if lacking else "it was made for another CPU"
        return f"the baseline's artifact is bound to the CPU it was made on: {what}"
    return None


def other_versions(side: Side, before: Baseline, now: dict[str, Any]) -> list[str]:
    """Libraries of the runner that had another version when the baseline was made."""
    then = before.environment.get("versions", {})
    return [
        f"{name} {then[name]} then, {now['versions'].get(name)} now"
        for name in side.packages
        if name in then and then[name] != now["versions"].get(name)
    ]
