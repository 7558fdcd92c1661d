"""A commit's recipe built by another interpreter, with the libraries it has, into the same store."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from optcli import environment, pipeline
from optcli.artifact import Artifact
from optcli.baselines import Baseline, Kept
from optcli.errors import MissingError, NoModuleError, OptcliError
from optcli.gate.choosing import suggested_by
from optcli.gate.side import kept_of, why_not_built
from optcli.observer import Observer, Silent
from optcli.pipeline.execute import Settings
from optcli.pipeline.making import make, planned
from optcli.pipeline.phases import Phases
from optcli.recipe import load
from optcli.settings import TensorSpec
from optcli.store import Store
from optcli.workers import Channel, run


@dataclass(frozen=True)
class Asked:
    """What to build: those of the variants `names` that the recipe, a path, has, and its float one.

    `artifacts` is where a report of the whole build is laid out, where one is asked for.
    """

    recipe: str
    overrides: tuple[str, ...]
    names: tuple[str, ...]
    store: str
    artifacts: str


def build(asked: Asked, settings: Settings, observer: Observer) -> Baseline:
    """The baseline, built here. Its `origin` is left to the caller."""
    recipe, store = Path(asked.recipe), Store(Path(asked.store))
    # A variant that was not there yet is new: there is nothing to compare it with.
    loaded = load(recipe, asked.overrides)
    there = [name for name in asked.names if name in loaded.variants]
    to_do = planned(recipe, store, asked.overrides, there or [loaded.baseline])
    made = make(to_do, store, observer, settings, Phases())
    kept = kept_of(made, [*there, to_do.baseline])
    absent = {name: why_not_built(made, name).message for name in there if name not in kept}
    packages = sorted({package for v in to_do.variants for package in v.runner.needs.packages})
    return Baseline("", kept, to_do.recipe.inputs, environment.describe(packages), None, absent)


def suggested(asked: Asked, settings: Settings, observer: Observer) -> tuple[str, ...]:
    """The variants that a whole build of the recipe, measured here, recommends."""
    report = pipeline.build(
        asked.recipe,
        store=Path(asked.store),
        artifacts=Path(asked.artifacts),
        overrides=asked.overrides,
        jobs=settings.jobs,
        timeout_s=settings.timeout_s,
        trust=settings.trust,
        observer=observer,
    )
    return suggested_by(report)


def suggested_with(interpreter: str, asked: Asked, settings: Settings, log: Path) -> tuple[str, ...]:
    """The same by another Python. Raises as `build_with` does."""
    return tuple(_run("serve_suggestion", interpreter, asked, settings, log))


def _run(function: str, interpreter: str, asked: Asked, settings: Settings, log: Path) -> Any:
    payload = {"asked": asdict(asked), "settings": asdict(settings)}
    try:
        return run(f"{__name__}:{function}", payload, interpreter=interpreter, log=log)
    except NoModuleError as error:
        raise MissingError(
            f"the baseline's interpreter cannot build the recipe: {error.message}",
            place=interpreter,
            hint="install optcli's requirements into that environment",
        ) from error


def build_with(
    interpreter: str, asked: Asked, settings: Settings, observer: Observer, log: Path
) -> Baseline:
    """The same by another Python. Raises `MissingError` where it lacks what the recipe needs."""
    step = f"baseline by {interpreter}"
    observer.started(step)
    began = time.monotonic()
    try:
        found = _run("serve", interpreter, asked, settings, log)
    except OptcliError as error:
        observer.failed(step, error.message)
        raise
    observer.finished(step, time.monotonic() - began)
    kept = {
        name: Kept(
            Artifact.from_record(one["artifact"]), one["runner"], one["options"], tuple(one["made_by"])
        )
        for name, one in found["variants"].items()
    }
    inputs = tuple(TensorSpec.model_validate(spec) for spec in found["inputs"])
    return Baseline("", kept, inputs, found["environment"], None, found["absent"], interpreter)


def serve(payload: dict[str, Any], channel: Channel) -> dict[str, Any]:
    """What the other interpreter does."""
    found = build(Asked(**payload["asked"]), Settings(**payload["settings"]), Silent())
    return {
        "variants": {
            name: {**vars(one), "artifact": one.artifact.to_record()}
            for name, one in found.variants.items()
        },
        "inputs": [spec.model_dump(mode="json") for spec in found.inputs],
        "environment": found.environment,
        "absent": dict(found.absent),
    }


def serve_suggestion(payload: dict[str, Any], channel: Channel) -> list[str]:
    """What the other interpreter does to say what its build recommends."""
    return list(suggested(Asked(**payload["asked"]), Settings(**payload["settings"]), Silent()))
