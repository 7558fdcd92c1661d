"""Deploying: a variant and a plan become what a serving engine reads."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import Field

from optcli import environment, runners
from optcli.errors import UsageError
from optcli.model_files.built_variant import BuiltVariant, open_built
from optcli.observer import Observer, Silent
from optcli.results import Report
from optcli.results.outcomes import Result
from optcli.results.plan import Plan
from optcli.serving.deploy import instructions, kserve, model_configuration, plans, repository
from optcli.serving.deploy.instructions import Step
from optcli.serving.deploy.interface import Interface, LookRequest
from optcli.serving.deploy.model_configuration import Served
from optcli.store import Store
from optcli.workers import run

__all__ = ["Deployed", "deploy", "lines"]

_TIMEOUT_S = 600.0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TITLES = {"triton": "Triton", "kserve": "KServe"}
PLAN, README = "plan.json", "README.md"


class Deployed(Result):
    """What was written: the model's name on the server, the folder, its files, and what to know.

    `sentence` is that of the plan; `commands` start the server, ask for its health and send a request.
    """

    schema_version: int = Field(1, alias="schema")
    variant: str
    engine: Literal["triton", "kserve"]
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
    engine: Literal["triton", "kserve"] = "triton",
    plan: Path | None = None,
    recipe: Path | None = None,
    name: str | None = None,
    storage_uri: str | None = None,
    force: bool = False,
    trust: bool = False,
    store: Store | None = None,
    observer: Observer | None = None,
) -> Deployed:
    """Write what a server reads for a variant of the build whose report lies at `path`.

    For `triton` that is a model repository; for `kserve` the repository with manifests that serve it,
    where `storage_uri` is the place from which the cluster fetches the repository.

    `out` is a folder that is empty or not there yet; it is written whole or not at all. `plan` is what
    `optcli plan --json` wrote; without it the plan is made of the recipe's `slo` and the measured
    curve. `name` is the model's on the server, by default the variant's. `force` deploys a plan that
    rests on another curve, or on one of a busy machine. `trust` is that of a build.

    Raises `UsageError` for a plan that this variant cannot carry out, `UnfitError` for one that decides
    nothing, `InputError` for a format that Triton does not serve and a configuration that does not fit
    the model, `MissingError` without tritonclient.
    """
    observer = observer or Silent()
    model_configuration.messages()
    name = _checked_name(name or variant)
    uri = kserve.checked_uri(storage_uri) if engine == "kserve" else ""
    _require_empty(out)
    built = open_built(variant, report, path, recipe=recipe, trust=trust, store=store)
    backend = repository.backend_for(built)
    if plan is None:
        made = plans.of_recipe(variant, report, path, recipe, observer)
        place = report.recipe.path
    else:
        made, place = plans.read(plan), str(plan)
    one = plans.require_usable(made, place, force=force)
    doubts = list(plans.doubts(made, variant, report, path, force=force))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise _unwritable(out, error) from error
    try:
        interface = _looked_at(built, name, fresh, path)
        served = repository.served_of(name, built, interface, one, backend)
        notes = [*doubts, *repository.notes_of(built, served, one, backend), *built.samples.notes]
        if engine == "kserve":
            notes += kserve.notes_of(served, made)
            repository.write(fresh / kserve.REPOSITORY, built, served, made)
            steps = _write_manifests(fresh, served, made, uri)
            about = (
                f"Manifests for KServe, written by optcli. {made.sentence} First copy the content of"
            )
            about += f" `{kserve.REPOSITORY}/` to {uri}."
        else:
            repository.write(fresh, built, served, made)
            steps = instructions.for_triton(served)
            about = f"A model repository for Triton, written by optcli. {made.sentence}"
        (fresh / PLAN).write_text(made.to_json() + "\n", encoding="utf-8")
        runtime = f"{built.runner_name} {built.effective.get('version', '')}".strip()
        text = instructions.text(served, about, steps, notes, runtime)
        (fresh / README).write_text(text, encoding="utf-8")
        files = tuple(sorted(p.relative_to(fresh).as_posix() for p in fresh.rglob("*") if p.is_file()))
        _place(fresh, out)
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
            "commands": tuple(step.command for step in steps),
            "notes": tuple(notes),
        }
    )


def _write_manifests(folder: Path, served: Served, plan: Plan, uri: str) -> list[Step]:
    """Write the manifests; gives the commands that use them."""
    kserve.write(folder / kserve.RUNTIME, kserve.runtime_of(served))
    inference = kserve.inference_of(served, plan, uri)
    kserve.write(folder / kserve.SERVICE, inference)
    manifests = (kserve.RUNTIME, kserve.SERVICE)
    return instructions.for_kserve(served, inference.metadata.name, manifests)


def _looked_at(built: BuiltVariant, name: str, out: Path, path: Path) -> Interface:
    """The artifact's interface, by a worker of its own, which writes the golden files into `out`."""
    kind = runners.find(built.runner_name)
    samples = built.samples
    with tempfile.TemporaryDirectory(prefix="optcli-deploy-") as scratch:
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


def _checked_name(name: str) -> str:
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"a model of Triton cannot be called {name!r}",
            place="--name",
            hint="take letters, digits, dots, dashes and underscores: they stand in its URL",
        )
    return name


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
