"""Where the baseline comes from: a commit, a saved build, a file or a URL; and if it can run here."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import baselines, environment
from optcli.baselines import Baseline
from optcli.errors import InputError, MissingError
from optcli.observer import Observer
from optcli.pipeline.execute import Settings
from optcli.pipeline.gating import elsewhere
from optcli.pipeline.gating.side import Side
from optcli.store import Store

if TYPE_CHECKING:
    from optcli.pipeline.gating import Options

_GIT = "git:"


def saved(
    reference: str, recipe: Path, artifacts: Path, store: Store, *, trust: bool
) -> Baseline | None:
    """The saved baseline that a reference stands for; None for a commit, which is there.

    Asked before anything is built: a wrong name is found at once.
    """
    if reference.startswith(_GIT):
        baselines.commit_of(recipe, reference.removeprefix(_GIT))
        return None
    with baselines.fetch(reference, artifacts) as pack:
        return baselines.load(pack, reference, store, trust=trust)


def completed(
    before: Baseline, names: Sequence[str], packages: Sequence[str], python: Path | None
) -> Baseline:
    """A saved baseline that says which of these variants it lacks, and the Python to run it."""
    held = ", ".join(before.variants) or "nothing"
    absent = {
        name: f"the saved baseline does not hold it, only {held}"
        for name in names
        if name not in before.variants
    }
    if python is None:
        return replace(before, absent=absent)
    there = interpreter_of(python)
    around = {**before.environment, "versions": versions_in(there, packages)}
    return replace(before, absent=absent, environment=around, interpreter=there)


def of_commit(
    reference: str,
    recipe: Path,
    names: Sequence[str],
    store: Store,
    observer: Observer,
    settings: Settings,
    options: Options,
    logs: Path,
) -> Baseline:
    """The recipe as it was at a commit, built through the same store: what is alike costs nothing."""
    revision = reference.removeprefix(_GIT)
    with baselines.checked_out(recipe, revision, store) as (old, commit):
        origin = reference if revision.startswith(commit[:7]) else f"{reference} ({commit[:10]})"
        asked = elsewhere.Asked(str(old), tuple(options.overrides), tuple(names), str(store.root))
        if options.baseline_python is None:
            found = elsewhere.build(asked, settings, observer)
        else:
            python, log = interpreter_of(options.baseline_python), logs / "baseline.build.log"
            found = elsewhere.build_with(python, asked, settings, observer, log)
    absent = {
        name: f"it could not be built as it was at {origin}: {why}"
        for name, why in found.absent.items()
    }
    return replace(found, origin=origin, absent=absent)


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
        "import json, sys\nfrom optcli.environment import versions\n"
        "print(json.dumps(versions(json.loads(sys.argv[1]))))"
    )
    import json

    from optcli import __file__ as own

    path = str(Path(own).parents[1])
    done = subprocess.run(
        [
            interpreter,
            "-c",
            f"import sys; sys.path.append({path!r})\n{code}",
            json.dumps(list(packages)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise MissingError(
            f"the baseline's interpreter cannot run optcli: {said[-1] if said else done.returncode}",
            place=interpreter,
            hint="install optcli's requirements into that environment",
        )
    found: dict[str, str | None] = json.loads(done.stdout)
    return found


def cannot_run(side: Side, before: Baseline, now: dict[str, Any]) -> str | None:
    """Why the baseline's artifact cannot be run here; None where it can."""
    assert side.before is not None
    bound = any("device" in step for step in side.before.made_by)
    then, here = before.environment.get("cpu", {}), now["cpu"]
    if bound and (then.get("machine"), then.get("flags")) != (here["machine"], here["flags"]):
        lacking = sorted(set(then.get("flags", ())) - set(here["flags"]))
        what = f"this CPU lacks {', '.join(lacking[:4])}" if lacking else "it was made for another CPU"
        return f"the baseline's artifact is bound to the CPU it was made on: {what}"
    from optcli.runners import find

    missing = environment.missing(find(side.before.runner).needs)
    if missing:
        return f"the baseline cannot run here: {missing[0].what}"
    return None


def other_versions(side: Side, before: Baseline, now: dict[str, Any]) -> list[str]:
    """Libraries of the runner that had another version when the baseline was made."""
    then = before.environment.get("versions", {})
    return [
        f"{name} {then[name]} then, {now['versions'].get(name)} now"
        for name in side.packages
        if name in then and then[name] != now["versions"].get(name)
    ]
