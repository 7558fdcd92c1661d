"""A variant of a build, opened and profiled: its artifact as the report has it, its runner, samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import runners
from optcli.artifact import SCANNED, Artifact
from optcli.data import DataSettings
from optcli.errors import OptcliError, TrustError, UsageError, did_you_mean, first_line
from optcli.observer import Observer, Silent
from optcli.pipeline import view
from optcli.pipeline.decoding import UNKNOWN, Decoding, decoding_of
from optcli.pipeline.model_files.opening import (
    Opened,
    of_folder,
    require_trust_to_run,
    silent,
    trusting,
)
from optcli.pipeline.trusting import (
    USERS,
    brings_python,
    require_trust_without_wall,
    why_runner_is_free,
)
from optcli.recipe import load
from optcli.results import ArtifactSummary, Report, VariantReport
from optcli.runners import Runner
from optcli.scaffold.inspection import Target
from optcli.settings import TensorSpec, batch_range
from optcli.store import Store

if TYPE_CHECKING:
    from optcli.measure.profiling import Profile

_ROLES = ("evaluation", "calibration", "validation", "training")


@dataclass(frozen=True)
class Samples:
    """Where real inputs come from: `data` of a role, with paths relative to `folder`; None: random.

    `roles` are the data of every role of the recipe, none where `data` is None.
    `decoding` is what follows the model, `metric` the recipe's and `output` the one that it reads,
    `class_names` what the recipe says under that key. `notes` say why inputs are random. `runs_python`
    says that reading or post-processing runs Python of the recipe's own.
    """

    data: DataSettings | None = None
    decoding: Decoding = UNKNOWN
    metric: str | None = None
    output: str | None = None
    class_names: str | tuple[str, ...] | None = None
    folder: Path = Path()
    seed: int = 0
    notes: tuple[str, ...] = ()
    runs_python: bool = False
    roles: Mapping[str, DataSettings] = field(default_factory=dict)


@dataclass(frozen=True)
class BuiltVariant:
    """A variant of a build: the runner with the `options` that the report has, and real inputs."""

    name: str
    summary: ArtifactSummary
    artifact: Artifact
    inputs: tuple[TensorSpec, ...]
    runner: Runner
    runner_name: str
    options: dict[str, Any]
    effective: Mapping[str, Any]
    samples: Samples


def open_built(
    variant: str,
    report: Report,
    path: Path,
    *,
    recipe: Path | None = None,
    trust: bool = False,
    store: Store | None = None,
) -> BuiltVariant:
    """Open a variant of the build whose report lies at `path`, its files beside it.

    `recipe` is where the recipe lies: samples come by it, and inputs are random where it cannot be
    read. `trust` is that of a build: what `store` does not hold as it lies there is taken as from
    elsewhere. Raises `UsageError` for an unknown variant, one that was not built, and files that are
    gone or changed, `TrustError` for code from elsewhere and for what was made under `--trust`.
    """
    built = _built(variant, report, path)
    assert built.artifact is not None
    assert built.runner is not None
    target = _target(variant, path.parent / built.artifact.path, built.artifact)
    target = trusting(target, store or Store(Store.default_root()), trust=trust)
    require_trust_to_run(target)
    ours = target.own or trust
    opened = of_folder(target, variant)
    if not opened.inputs:
        raise silent(opened)
    samples = _samples(report, recipe, opened.artifact, ours=ours)
    name, options, runner, left_out = _runner(built.runner, opened, own=target.own)
    if left_out:
        note = f"of the runner's options, those of one machine are left out: {', '.join(left_out)}"
        samples = replace(samples, notes=(*samples.notes, note))
    if runner.starts_programs() and not ours:
        raise TrustError(
            f"the runner {name} starts programs on the artifact, which is not from this store",
            place=str(target.path),
            hint="add --trust where you know who made it, or name the --store that it was built in",
        )
    free = why_runner_is_free(runner) or (USERS if samples.runs_python else "")
    free = free if ours and opened.artifact.foreign else ""
    if opened.artifact.format in SCANNED:
        require_trust_without_wall(free, str(target.path), trust=trust)
    artifact = replace(opened.artifact, foreign=opened.artifact.foreign and not free)
    return BuiltVariant(
        name=variant,
        summary=built.artifact,
        artifact=artifact,
        inputs=tuple(opened.inputs),
        runner=runner,
        runner_name=name,
        options=options,
        effective=built.runner,
        samples=samples,
    )


def _built(variant: str, report: Report, path: Path) -> VariantReport:
    built = report.variants.get(variant)
    if built is None:
        raise UsageError(
            f"the last build of {report.recipe.name} has no variant {variant!r}",
            place=str(path),
            hint=did_you_mean(variant, list(report.variants)),
        )
    if built.artifact is None or built.runner is None:
        raise UsageError(
            f"the variant {variant} was not built: {built.status}, {built.reason or 'no reason given'}",
            place=str(path),
            hint=f"fix the cause and run `optcli build {report.recipe.path} --only {variant}`",
        )
    return built


def _target(name: str, folder: Path, summary: ArtifactSummary) -> Target:
    """The artifact's folder. Raises `UsageError` where it is not the one that the report speaks of."""
    wrong = "the artifact's files are not those that the report speaks of"
    try:
        about, digest = view.read(folder)
        same = (about["key"], about["format"]) == (summary.key, summary.format)
        if same and digest == about["digest"]:
            return Target(name, "artifact", summary.format, folder, about)
    except FileNotFoundError:
        wrong = "the artifact's files are gone"
    except (OSError, ValueError) as error:
        wrong = f"the artifact cannot be read: {error}"
    again = "run `optcli build` again: it copies what the store has"
    raise UsageError(wrong, place=str(folder), hint=again)


def _runner(
    record: Mapping[str, Any], opened: Opened, *, own: bool
) -> tuple[str, dict[str, Any], Runner, list[str]]:
    """The runner as the report has it, and the names of options that are left out.

    The report lies beside the artifact: where that is not our `own`, anybody may have written both.
    Raises `UsageError` where it is no runner that runs the artifact.
    """
    name, requested = str(record.get("name")), record.get("requested") or {}
    kind = runners.find(name)
    try:
        given = {name: value for name, value in requested.items() if value is not None}
        options = given if own else runners.options_from_elsewhere(name, given)
        left_out = [name for name, value in given.items() if options.get(name) != value]
        runner = kind.model_validate(options)
    except (AttributeError, ValueError) as error:
        raise UsageError(
            f"the report names options that the runner {name} does not have: {first_line(error)}",
            place=str(opened.path),
            hint="run `optcli build` again",
        ) from error
    # Another runner might take the files for what they are not said to be, code among it.
    if opened.artifact.format not in kind.runs:
        raise UsageError(
            f"the runner {name} runs {', '.join(kind.runs)}, found {opened.artifact.format}",
            place=str(opened.path),
            hint="run `optcli build` again",
        )
    return name, options, runner, left_out


def _samples(report: Report, named: Path | None, artifact: Artifact, *, ours: bool) -> Samples:
    """Where real inputs come from.

    Where only the report names the recipe, its Python is not run for an artifact that is not `ours`.
    """
    try:
        recipe = load(named or Path(report.recipe.path))
    except (OptcliError, OSError) as error:
        why = error.message if isinstance(error, OptcliError) else str(error)
        return Samples(notes=(f"inputs are random: the recipe cannot be read again ({why})",))
    users = brings_python(recipe)
    if named is None and not ours and users:
        why = "Python of the recipe, and the artifact is not from this store (--trust runs it)"
        note = f"inputs are random: reading or post-processing samples would run {why}"
        return Samples(notes=(note,))
    role = next((role for role in _ROLES if role in recipe.data), None)
    notes: tuple[str, ...] = ()
    if role is not None and recipe.digest != report.recipe.digest:
        notes = ("the recipe differs from the one that was built (changed, --set or --no-latency)",)
    return Samples(
        data=recipe.data[role].for_model(artifact.facts) if role else None,
        decoding=decoding_of(recipe, artifact),
        metric=recipe.accuracy.metric if recipe.accuracy else None,
        output=recipe.accuracy.output if recipe.accuracy else None,
        class_names=recipe.class_names,
        folder=recipe.folder,
        seed=recipe.seed,
        notes=notes,
        runs_python=users,
        roles=recipe.data,
    )


def profile(
    variant: str,
    report: Report,
    path: Path,
    *,
    recipe: Path | None = None,
    batch_size: int | None = None,
    trace: Path | None = None,
    trust: bool = False,
    store: Store | None = None,
    observer: Observer | None = None,
) -> Profile:
    """Where the time of a variant goes: see `profiling.Profile`.

    `path` is the report's file; the variant's files lie beside it. `recipe` is where the recipe lies:
    samples come by it, and inputs are random where it cannot be read. `batch_size` is the smallest
    that the model takes where none is given. The Chrome trace goes to `trace`, by default to
    `profiles/VARIANT.trace.json` beside the report. `trust` is that of a build: what `store` does not
    hold as it lies there is taken as from elsewhere. Raises `UsageError` for an unknown variant, one
    that was not built, files that are gone or changed, and a batch size that the model does not take,
    `TrustError` for code from elsewhere and for what was made under `--trust`.
    """
    # Imported here: who only opens a variant has no use for it.
    from optcli.measure import profiling
    from optcli.pipeline import places

    built = open_built(variant, report, path, recipe=recipe, trust=trust, store=store)
    size = _fitting(built.inputs, batch_size)
    request = profiling.ProfileRequest(
        variant=variant,
        recipe=report.recipe.name,
        summary=built.summary,
        artifact=built.artifact,
        runner=built.runner_name,
        options=built.options,
        inputs=built.inputs,
        batch_size=size,
        trace=trace or path.parent / "profiles" / f"{variant}.trace.json",
        seed=built.samples.seed,
        data=built.samples.data,
        folder=built.samples.folder,
        postprocess=built.samples.decoding.known,
    )
    log = path.parent / "logs" / f"{variant}.profile.log"
    with places.holding_measurement_lock(f"profile {variant}", observer or Silent()):
        measured = profiling.measure(request, log)
    return measured.model_copy(update={"notes": (*measured.notes, *built.samples.notes)})


def _fitting(inputs: tuple[TensorSpec, ...], batch_size: int | None) -> int:
    allowed = batch_range(inputs)
    if batch_size is None:
        return allowed.min
    if not allowed.min <= batch_size <= allowed.max:
        takes = f"{allowed.min}" if allowed.min == allowed.max else f"{allowed.min} to {allowed.max}"
        raise UsageError(
            f"the model takes a batch of {takes}, found {batch_size}",
            place="--batch-size",
            hint="widen the range under the recipe's `inputs` and build again, or choose one within",
        )
    return batch_size
