"""Deploying: a variant and a plan become what a serving engine reads."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from optcli import environment, runners
from optcli.artifact import SCANNED
from optcli.errors import UsageError, strerror
from optcli.files import folders
from optcli.observer import Observer, Silent
from optcli.pipeline.model_files.built_variant import BuiltVariant, open_built
from optcli.pipeline.trusting import require_trust_without_wall
from optcli.results import Report
from optcli.results.document import Document, Items, Section
from optcli.results.outcomes import Result
from optcli.serving import targets
from optcli.serving.deploy import instructions, plans, ray_config
from optcli.serving.deploy.interface import Interface, LookRequest
from optcli.serving.targets import Deployment, DeployOptions, ServingTarget
from optcli.store import Store
from optcli.workers import run

_TIMEOUT_S = 600.0
_NO_WALL = "servers run it, which talk to others"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
PLAN, README = "plan.json", "README.md"


class Deployed(Result):
    """What was written: the model's name on the server, the folder, its files, and what to know.

    `sentence` is that of the plan; `commands` start the server, ask for its health and send a request.
    """

    schema_version: int = Field(1, alias="schema")
    variant: str
    engine: str
    model: str
    folder: str
    files: tuple[str, ...]
    sentence: str
    golden: str | None
    tolerance: float | None
    commands: tuple[str, ...]
    notes: tuple[str, ...]


def document(deployed: Deployed) -> Document:
    """The same for people."""
    return Document(
        title=f"{deployed.variant} for {targets.find(deployed.engine).title}",
        sections=[Section("Notes", [Items(deployed.notes)])],
        answer=f"The model {deployed.model} lies in {deployed.folder}, {len(deployed.files)} files:"
        f" {README} has the commands that start the server and send a request.",
        reasons=[deployed.sentence],
        outcome="accept",
    )


def deploy(
    variant: str,
    report: Report,
    path: Path,
    out: Path,
    *,
    engine: str = "triton",
    plan: Path | None = None,
    recipe: Path | None = None,
    name: str | None = None,
    options: DeployOptions | None = None,
    trust: bool = False,
    store: Store | None = None,
    observer: Observer | None = None,
) -> Deployed:
    """Write what a server reads for a variant of the build whose report lies at `path`.

    For `triton` that is a model repository; for `kserve` the repository with manifests that serve it.
    For `ray` it is a bundle: an app for Ray Serve with everything that it needs.

    `out` is a folder that is empty or not there yet; it is written whole or not at all. `plan` is what
    `optcli plan --json` wrote, and is made again where it was for another server; without it the plan
    is made of the recipe's `slo` and the measured curve. `name` is the model's on the server, by
    default the variant's. `trust` is that of a build; programs from elsewhere always need it: no server
    is confined.

    Raises `UsageError` for a plan that this variant cannot carry out, `UnfitError` for one that decides
    nothing, `InputError` for a format that the server does not run and a configuration that does not
    fit the model, `MissingError` without tritonclient, or without Ray.
    """
    observer = observer or Silent()
    options = options or DeployOptions()
    target = targets.find(engine)(options)
    name = _checked_name(name or variant, target)
    _require_priorities(options.priorities, plan)
    _require_empty(out)
    built = open_built(variant, report, path, recipe=recipe, trust=trust, store=store)
    if built.artifact.foreign and built.artifact.format in SCANNED:
        require_trust_without_wall(_NO_WALL, str(built.artifact.path), trust=trust)
    target.take(built)
    if plan is None:
        made = plans.of_recipe(variant, report, path, recipe, observer, engine, options.priorities)
        place, again = report.recipe.path, ""
    else:
        read, place = plans.read(plan), str(plan)
        made, again = plans.for_target(read, engine, variant, report, path, observer)
    plans.require_usable(made, place, force=options.force)
    doubts = list(plans.doubts(made, variant, report, path, force=options.force))
    target.require(made)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise _unwritable(out, error) from error
    try:
        interface = _looked_at(built, name, fresh, path, engine, target)
        written = target.write(fresh, Deployment(name, built, report, path, interface, made))
        notes = [*([again] if again else ()), *doubts, *written.notes, *built.samples.notes]
        (fresh / PLAN).write_text(made.to_json() + "\n", encoding="utf-8")
        notes_shown = [*notes, *written.closing]
        text = instructions.text(name, interface, written.about, written.steps, notes_shown)
        (fresh / README).write_text(text, encoding="utf-8")
        files = tuple(sorted(p.relative_to(fresh).as_posix() for p in fresh.rglob("*") if p.is_file()))
        _place(fresh, out)
        target.finish(out, store or Store(Store.default_root()))
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


def _looked_at(
    built: BuiltVariant, name: str, out: Path, path: Path, engine: str, target: ServingTarget
) -> Interface:
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
                target=engine,
                samples=target.samples,
                profile=target.profile,
            ),
            Interface,
            log=path.parent / "logs" / f"{built.name}.deploy.log",
            environment=kind.model_validate(built.options).environment(),
            timeout_s=_TIMEOUT_S,
            confined=(Path(scratch),) if built.artifact.foreign else None,
            reads=built.name,
        )
        for file in Path(scratch).iterdir():
            shutil.copyfile(file, out / file.name, follow_symlinks=False)
    return interface


def _checked_name(name: str, target: ServingTarget) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a model of {target.server} cannot be called {name!r}",
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
        ray_config.require_name(name)


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
        f"cannot be written: {strerror(error)}",
        place=str(out),
        hint="name another folder with --out",
    )
