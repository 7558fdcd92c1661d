"""A commit's recipe built by another interpreter, with the libraries it has, into the same store."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import optcli
from optcli import environment
from optcli.errors import InputError, MissingError, NoModuleError, OptcliError
from optcli.gate.baselines import Baseline
from optcli.gate.side import built_variants, why_not_built
from optcli.gate.terms import suggested_by
from optcli.observer import Observer, Silent
from optcli.pipeline import building
from optcli.pipeline.execute import BuildSettings
from optcli.pipeline.making import Phases, make, planned
from optcli.recipe import load
from optcli.store import Store
from optcli.store.remote_place import RemotePlace
from optcli.workers import Channel, run

T = TypeVar("T")

# The folder in which this very optcli lies.
_INSTALLED_IN = Path(optcli.__file__).parents[1]


@dataclass(frozen=True)
class BuildRequest:
    """What to build: of the variants `names` those that the recipe has, and its float one.

    `artifacts` is where a report of the whole build is laid out, where one is asked for. `remote` is
    the remote store beside `store`.
    """

    recipe: Path
    overrides: tuple[str, ...]
    names: tuple[str, ...]
    store: Path
    artifacts: Path
    settings: BuildSettings
    remote: RemotePlace | None = None


def build(request: BuildRequest, observer: Observer) -> Baseline:
    """The baseline, built here. Its `origin` is left to the caller."""
    store = Store(request.store, request.remote)
    with store.connected(observer.warned):
        # A variant that was not there yet is new: there is nothing to compare it with.
        loaded = load(request.recipe, request.overrides)
        there = [name for name in request.names if name in loaded.variants]
        to_do = planned(request.recipe, store, request.overrides, there or [loaded.baseline])
        made = make(to_do, store, observer, request.settings, Phases())
        variants = built_variants(made, [*there, to_do.baseline])
        absent = {name: why_not_built(made, name).message for name in there if name not in variants}
        packages = sorted({package for v in to_do.variants for package in v.runner.needs.packages})
        return Baseline("", variants, to_do.recipe.inputs, environment.describe(packages), None, absent)


def suggested(request: BuildRequest, observer: Observer) -> tuple[str, ...]:
    """The variants that a whole build of the recipe, measured here, recommends."""
    report = building.build(
        request.recipe,
        store=Store(request.store, request.remote),
        artifacts=request.artifacts,
        overrides=request.overrides,
        settings=replace(request.settings, at_home=True),
        observer=observer,
    )
    return suggested_by(report)


def suggested_with(interpreter: str, request: BuildRequest, log: Path) -> tuple[str, ...]:
    """What `suggested` gives, by another interpreter. Raises as `build_with` does."""
    return _run("serve_suggestion", interpreter, request, tuple[str, ...], log)


def _run(function: str, interpreter: str, request: BuildRequest, gives: type[T], log: Path) -> T:
    try:
        return run(f"{__name__}:{function}", request, gives, interpreter=interpreter, log=log)
    except NoModuleError as error:
        raise MissingError(
            f"the baseline's interpreter cannot build the recipe: {error.message}",
            place=interpreter,
            hint="install optcli's requirements into that environment",
        ) from error


def build_with(interpreter: str, request: BuildRequest, observer: Observer, log: Path) -> Baseline:
    """What `build` gives, by another interpreter.

    Raises `MissingError` where that lacks what the recipe needs.
    """
    step = f"baseline by {interpreter}"
    observer.started(step)
    began = time.monotonic()
    try:
        baseline = _run("serve", interpreter, request, Baseline, log)
    except OptcliError as error:
        observer.failed(step, error.message)
        raise
    observer.finished(step, time.monotonic() - began)
    return replace(baseline, interpreter=interpreter)


def serve(request: BuildRequest, channel: Channel) -> Baseline:
    """Build the baseline; runs in the other interpreter."""
    return build(request, Silent())


def serve_suggestion(request: BuildRequest, channel: Channel) -> tuple[str, ...]:
    """Say what the baseline's build recommends; runs in the other interpreter."""
    return suggested(request, Silent())


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
        f"import json, sys; sys.path[:] = [*filter(None, sys.path), {str(_INSTALLED_IN)!r}]\n"
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
