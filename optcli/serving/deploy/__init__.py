"""Deploying: a variant and a plan become what a serving engine reads."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from optcli import environment, folders, runners
from optcli.artifact import SCANNED
from optcli.errors import UsageError
from optcli.latency.measured_curve import MeasuredCurve
from optcli.model_files.built_variant import BuiltVariant, open_built
from optcli.observer import Observer, Silent
from optcli.pipeline.trusting import require_trust_without_wall
from optcli.results import Report
from optcli.results.outcomes import Result
from optcli.results.plan import Plan, Semantics
from optcli.serving import class_scores, own_bundles
from optcli.serving.deploy import (
    caching,
    ensemble,
    extras,
    golden_images,
    instructions,
    kserve,
    model_configuration,
    plans,
    ray_bundle,
    ray_config,
    ray_lanes,
    ray_runtimes,
    repository,
)
from optcli.serving.deploy import samples as samples_file
from optcli.serving.deploy.backends import Backend
from optcli.serving.deploy.instructions import Step
from optcli.serving.deploy.interface import Interface, LookRequest
from optcli.serving.deploy.ray_runtimes import Runtime
from optcli.store import Store
from optcli.workers import run

__all__ = ["Deployed", "deploy", "lines"]

_TIMEOUT_S = 600.0
_NO_WALL = "servers run it, which talk to others"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TITLES = {"triton": "Triton", "kserve": "KServe", "ray": "Ray Serve"}
Engine = Literal["triton", "kserve", "ray"]
PLAN, README = "plan.json", "README.md"


class Deployed(Result):
    """What was written: the model's name on the server, the folder, its files, and what to know.

    `sentence` is that of the plan; `commands` start the server, ask for its health and send a request.
    """

    schema_version: int = Field(1, alias="schema")
    variant: str
    engine: Engine
    model: str
    folder: str
    files: tuple[str, ...]
    sentence: str
    golden: str | None
    tolerance: float | None
    commands: tuple[str, ...]
    notes: tuple[str, ...]


def lines(deployed: Deployed) -> list[str]:
    """The same for people."""
    return [
        f"{deployed.variant} for {_TITLES[deployed.engine]}, as the model {deployed.model}:"
        f" {len(deployed.files)} files in {deployed.folder}",
        deployed.sentence,
        *(f"Note: {note}" for note in deployed.notes),
        f"{README} there has the commands that start it and send a request.",
    ]


def deploy(
    variant: str,
    report: Report,
    path: Path,
    out: Path,
    *,
    engine: Engine = "triton",
    plan: Path | None = None,
    recipe: Path | None = None,
    name: str | None = None,
    storage_uri: str | None = None,
    wait_ms: float | None = None,
    priorities: Mapping[str, float] | None = None,
    images: bool = False,
    cache: str | None = None,
    cache_ttl_s: float = caching.TTL_S,
    sample_inputs: int = 0,
    known_answers: str | None = None,
    force: bool = False,
    trust: bool = False,
    store: Store | None = None,
    observer: Observer | None = None,
) -> Deployed:
    """Write what a server reads for a variant of the build whose report lies at `path`.

    For `triton` that is a model repository; for `kserve` the repository with manifests that serve it,
    where `storage_uri` is the place from which the cluster fetches the repository. For `ray` it is a
    bundle: an app for Ray Serve with everything that it needs; `wait_ms` replaces the plan's wait.

    `priorities` are shares of the traffic by priority, the most urgent first, for a plan that is made
    here; a plan in a file has its own. In Ray each has replicas of its own, in Triton they share one
    queue.

    `images`: the server of `ray` or `triton` also takes JPEG and PNG, and answers classes or boxes.
    `cache`: that of `ray` keeps answers for `cache_ttl_s` seconds, in `memory` or in a Redis (its URL).
    `sample_inputs`: that of `ray` keeps statistics of so many inputs a day, for `loadtest --drift`.
    `known_answers`: the URI of answers that `optcli infer` wrote with this variant, which are hits of
    the cache from the start.

    `out` is a folder that is empty or not there yet; it is written whole or not at all. `plan` is what
    `optcli plan --json` wrote; without it the plan is made of the recipe's `slo` and the measured
    curve. `name` is the model's on the server, by default the variant's. `force` deploys a plan that
    rests on another curve, or on one of a busy machine, and a wait that is too short for sealed
    batches. `trust` is that of a build; programs from elsewhere always need it: no server is confined.

    Raises `UsageError` for a plan that this variant cannot carry out, `UnfitError` for one that decides
    nothing, `InputError` for a format that the server does not run and a configuration that does not
    fit the model, `MissingError` without tritonclient, or without Ray.
    """
    observer = observer or Silent()
    if engine == "ray":
        ray_config.schema()
    else:
        model_configuration.messages()
    name = _checked_name(name or variant, engine)
    cache = None if cache is None else caching.checked_place(cache)
    uri = kserve.checked_uri(storage_uri) if engine == "kserve" else ""
    _require_priorities(priorities, plan)
    _require_empty(out)
    built = open_built(variant, report, path, recipe=recipe, trust=trust, store=store)
    if built.artifact.foreign and built.artifact.format in SCANNED:
        require_trust_without_wall(_NO_WALL, str(built.artifact.path), trust=trust)
    runs_in = ray_runtimes.runtime_of(built) if engine == "ray" else repository.backend_for(built)
    semantics: Semantics = "sealed" if engine == "ray" else "oldest-age"
    if plan is None:
        made = plans.of_recipe(variant, report, path, recipe, observer, semantics, priorities)
        place = report.recipe.path
    else:
        made, place = plans.read(plan), str(plan)
    plans.require_usable(made, place, force=force, semantics=semantics)
    doubts = list(plans.doubts(made, variant, report, path, force=force))
    lanes = ray_lanes.lanes_of(made, wait_ms, force=force) if engine == "ray" else ()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise _unwritable(out, error) from error
    try:
        interface = _looked_at(built, name, fresh, path, ray=engine == "ray")
        if isinstance(runs_in, Runtime):
            more = extras.extras_of(
                built,
                interface,
                name,
                path.parent / "logs" / f"{built.name}.deploy.log",
                images=images,
                cache=cache,
                cache_ttl_s=cache_ttl_s,
                sample_inputs=sample_inputs,
                known=known_answers,
            )
            static = built.effective.get("shapes") == "static"
            known = plans.measured(variant, report, path) if static else None
            written = _bundle(fresh, name, built, report, interface, runs_in, made, lanes, more, known)
        else:
            written = _repository(fresh, name, built, interface, runs_in, made, uri, images=images)
        notes = [*doubts, *written.notes, *built.samples.notes]
        (fresh / PLAN).write_text(made.to_json() + "\n", encoding="utf-8")
        told = [*notes, *written.closing]
        text = instructions.text(name, interface, written.about, written.steps, told)
        (fresh / README).write_text(text, encoding="utf-8")
        files = tuple(sorted(p.relative_to(fresh).as_posix() for p in fresh.rglob("*") if p.is_file()))
        _place(fresh, out)
        if engine == "ray":
            own_bundles.remember(out, store or Store(Store.default_root()))
    except OSError as error:
        raise _unwritable(out, error) from error
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return Deployed.model_validate(
        {
            "variant": variant,
            "engine": engine,
            "model": name,
            "folder": str(out),
            "files": files,
            "sentence": made.sentence,
            "golden": interface.golden,
            "tolerance": interface.tolerance,
            "commands": tuple(step.command for step in written.steps),
            "notes": tuple(notes),
        }
    )


@dataclass(frozen=True)
class _Written:
    """What the README says of the files: what they are, how they are used, and sentences to know."""

    about: str
    steps: Sequence[Step]
    notes: Sequence[str]
    closing: Sequence[str]


def _repository(
    folder: Path,
    name: str,
    built: BuiltVariant,
    interface: Interface,
    backend: Backend,
    plan: Plan,
    uri: str,
    *,
    images: bool,
) -> _Written:
    """Write a repository for Triton; with a `uri` for KServe, and manifests beside it."""
    one = plan.recommended
    assert one is not None
    served = repository.served_of(name, built, interface, one, backend, plan.priorities)
    notes = list(repository.notes_of(built, served, one, backend, plan.priorities))
    if uri:
        notes += kserve.notes_of(served, plan)
        repository.write(folder / kserve.REPOSITORY, built, served, plan)
        kserve.write(folder / kserve.RUNTIME, kserve.runtime_of(served))
        inference = kserve.inference_of(served, plan, uri)
        kserve.write(folder / kserve.SERVICE, inference)
        manifests = (kserve.RUNTIME, kserve.SERVICE)
        steps = instructions.for_kserve(served, inference.metadata.name, manifests)
        about = f"Manifests for KServe, written by optcli. {plan.sentence} First copy the content of"
        about += f" `{kserve.REPOSITORY}/` to {uri}."
    else:
        repository.write(folder, built, served, plan)
        steps = instructions.for_triton(served)
        about = f"A model repository for Triton, written by optcli. {plan.sentence}"
        if images:
            serving = extras.images_of(built, interface)
            ensemble.write(folder, name, serving)
            notes += serving.notes
            golden = golden_images.write(folder, built, serving)
            steps = instructions.for_images(steps, ensemble.name_of(name), golden)
    runtime = f"{built.runner_name} {built.effective.get('version', '')}".strip()
    return _Written(about, steps, notes, instructions.of_triton(runtime))


def _bundle(
    folder: Path,
    name: str,
    built: BuiltVariant,
    report: Report,
    interface: Interface,
    runtime: Runtime,
    plan: Plan,
    lanes: tuple[ray_lanes.Lane, ...],
    more: extras.Extras,
    known: MeasuredCurve | None,
) -> _Written:
    """Write a bundle for Ray, with these deployments of the model."""
    prepared = ray_bundle.prepared(name, built, report.recipe, interface, runtime, plan, lanes, known)
    made = more.applied(prepared.bundle)
    outputs = [each.name for each in made.outputs]
    scores = class_scores.of_samples(built.samples, outputs, answers_classes=more.answers_classes)
    prepared = replace(prepared, bundle=made.model_copy(update={"class_scores": scores}))
    ray_bundle.write(folder, built, prepared, plan)
    golden = more.write(folder, built)
    notes = [*ray_bundle.notes_of(prepared, interface), *more.notes]
    about = f"A server for Ray Serve, written by optcli. {plan.sentence} It needs neither optcli nor a"
    about += " recipe: `pip install -r requirements.txt`, or build the Dockerfile."
    named = [each.name for each in prepared.bundle.priorities]
    steps = instructions.for_ray(name, interface, golden, named)
    return _Written(about, steps, notes, ray_bundle.closing(prepared))


def _looked_at(built: BuiltVariant, name: str, out: Path, path: Path, *, ray: bool) -> Interface:
    """The artifact's interface, by a worker of its own, which writes the golden files into `out`."""
    kind = runners.find(built.runner_name)
    samples = built.samples
    with folders.temporary("deploy") as scratch:
        interface = run(
            "optcli.serving.deploy.interface:look",
            LookRequest(
                model=name,
                artifact=built.artifact,
                runner=built.runner_name,
                options=built.options,
                inputs=built.inputs,
                out=Path(scratch),
                data=samples.data,
                folder=samples.folder,
                seed=samples.seed,
                runs=not environment.missing(built.runner.requires()),
                ray=ray,
                samples=samples_file.MOST if ray else 0,
            ),
            Interface,
            log=path.parent / "logs" / f"{built.name}.deploy.log",
            environment=kind.model_validate(built.options).environment(),
            timeout_s=_TIMEOUT_S,
            confined=(Path(scratch),) if built.artifact.foreign else None,
        )
        for file in Path(scratch).iterdir():
            shutil.copyfile(file, out / file.name, follow_symlinks=False)
    return interface


def _checked_name(name: str, engine: Engine) -> str:
    if not _NAME.fullmatch(name):
        server = _TITLES["ray" if engine == "ray" else "triton"]
        raise UsageError(
            f"a model of {server} cannot be called {name!r}",
            place="--name",
            hint="take letters, digits, dots, dashes and underscores: they stand in its URL",
        )
    return name


def _require_priorities(priorities: Mapping[str, float] | None, plan: Path | None) -> None:
    """Raise `UsageError` for priorities beside a plan, and for those that requests could not name."""
    if priorities and plan is not None:
        raise UsageError(
            "the plan decides which priorities there are",
            place="--priority",
            hint="leave it out, or plan again: optcli plan RECIPE --priority high=0.2,low=0.8",
        )
    for name in priorities or ():
        ray_lanes.require_name(name)


def _require_empty(out: Path) -> None:
    try:
        taken = out.exists() and (not out.is_dir() or any(out.iterdir()))
    except OSError as error:
        raise _unwritable(out, error) from error
    if taken:
        what = "this folder is not empty" if out.is_dir() else "this is a file"
        raise UsageError(what, place=str(out), hint="name a new folder with --out, or empty this one")


def _place(fresh: Path, out: Path) -> None:
    """Put the finished folder in its place, with the mode that the umask gives."""
    umask = os.umask(0)
    os.umask(umask)
    fresh.chmod(0o777 & ~umask)
    if out.is_dir():
        out.rmdir()
    fresh.rename(out)


def _unwritable(out: Path, error: OSError) -> UsageError:
    return UsageError(
        f"cannot be written: {error.strerror or error}",
        place=str(out),
        hint="name another folder with --out",
    )
