"""Profile a variant of the last build: its artifact, its runner's settings, the recipe's samples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from optcli import profiling, runners
from optcli.artifact import UNPROVEN, Artifact, Format
from optcli.errors import OptcliError, UsageError, did_you_mean
from optcli.observer import Observer, Silent
from optcli.pipeline import quiet, view
from optcli.pipeline.trusting import brings_python, is_from_file, opened_as, require_trust
from optcli.profiling import Profile
from optcli.recipe import load
from optcli.results import ArtifactSummary, Report, VariantReport
from optcli.settings import TensorSpec, batch_range

_ROLES = ("evaluation", "calibration", "validation", "training")


def profile(
    variant: str,
    report: Report,
    path: Path,
    *,
    recipe: Path | None = None,
    batch_size: int | None = None,
    trace: Path | None = None,
    trust: bool = False,
    observer: Observer | None = None,
) -> Profile:
    """Where the time of a variant goes: see `profiling.Profile`.

    `path` is the report's file; the variant's files lie beside it. `recipe` is where the recipe lies:
    samples come by it, and inputs are random where it cannot be read. `batch_size` is the smallest
    that the model takes where none is given. The Chrome trace goes to `trace`, by default to
    `profiles/VARIANT.trace.json` beside the report. `trust` is that of a build. Raises
    `UsageError` for an unknown variant, one that was not built, files that are gone or changed, and a
    batch size that the model does not take, `TrustError` for what was made under `--trust`.
    """
    built = _built(variant, report, path)
    assert built.artifact is not None
    assert built.runner is not None
    artifact, made_by = _artifact(path.parent / built.artifact.path, built.artifact)
    require_trust(artifact.facts.get(UNPROVEN, ()), str(artifact.path), trust=trust)
    inputs = tuple(TensorSpec.model_validate(one) for one in made_by[0]["inputs"])
    size = _fitting(inputs, batch_size)
    fed, users, notes = _data(report, recipe or Path(report.recipe.path))
    name, requested = str(built.runner["name"]), built.runner.get("requested", {})
    options = {name: value for name, value in requested.items() if value is not None}
    runner = runners.find(name).model_validate(options)
    free = users or runner.starts_programs() or runner.requires().gpu
    artifact = opened_as(artifact, from_file=is_from_file(made_by) and not free, trust=trust)
    request = {
        "inputs": [spec.model_dump(mode="json") for spec in inputs],
        "batch_size": size,
        **fed,
        "trace": str(trace or path.parent / "profiles" / f"{variant}.trace.json"),
    }
    log = path.parent / "logs" / f"{variant}.profile.log"
    with quiet.alone(f"profile {variant}", observer or Silent()):
        found = profiling.measure(
            variant,
            report.recipe.name,
            built.artifact,
            artifact,
            name,
            options,
            request,
            log,
        )
    return found.model_copy(update={"notes": (*found.notes, *notes)})


def _built(variant: str, report: Report, path: Path) -> VariantReport:
    found = report.variants.get(variant)
    if found is None:
        raise UsageError(
            f"the last build of {report.recipe.name} has no variant {variant!r}",
            place=str(path),
            hint=did_you_mean(variant, list(report.variants)),
        )
    if found.artifact is None or found.runner is None:
        raise UsageError(
            f"the variant {variant} was not built: {found.status}, {found.reason or 'no reason given'}",
            place=str(path),
            hint=f"mend it and run `optcli build {report.recipe.path} --only {variant}`",
        )
    return found


def _artifact(folder: Path, summary: ArtifactSummary) -> tuple[Artifact, list[dict[str, Any]]]:
    """The artifact as it was built, and its steps. Raises `UsageError` where its files are others."""
    again = "run `optcli build` again: what is in the store is only copied"
    try:
        about, found = view.read(folder)
    except FileNotFoundError as error:
        raise UsageError("the artifact's files are gone", place=str(folder), hint=again) from error
    except (OSError, ValueError) as error:
        raise UsageError(
            f"the artifact cannot be read: {error}", place=str(folder), hint=again
        ) from error
    # Native code runs only where nothing of it was touched.
    if about.get("key") != summary.key or found != about.get("digest"):
        raise UsageError(
            "the artifact's files are not those that the report speaks of",
            place=str(folder),
            hint=again,
        )
    artifact = Artifact(
        key=summary.key,
        format=Format(summary.format),
        path=folder,
        precision=summary.precision,
        size_bytes=summary.size_bytes,
        digest=found,
        facts=about["facts"],
    )
    return artifact, list(about["made_by"])


def _fitting(inputs: tuple[TensorSpec, ...], wanted: int | None) -> int:
    allowed = batch_range(inputs)
    if wanted is None:
        return allowed.min
    if not allowed.min <= wanted <= allowed.max:
        takes = f"{allowed.min}" if allowed.min == allowed.max else f"{allowed.min} to {allowed.max}"
        raise UsageError(
            f"the model takes a batch of {takes}, found {wanted}",
            place="--batch-size",
            hint="widen the range under the recipe's `inputs` and build again, or choose one within",
        )
    return wanted


def _data(report: Report, path: Path) -> tuple[dict[str, Any], bool, list[str]]:
    """What to feed: settings of a role and of what follows the model, folder and seed.

    Then whether Python of the recipe's own is part of it, and doubts.
    """
    try:
        recipe = load(path)
    except (OptcliError, OSError) as error:
        why = error.message if isinstance(error, OptcliError) else str(error)
        note = f"inputs are random: the recipe cannot be read again ({why})"
        return {"data": None, "postprocess": None, "folder": "", "seed": 0}, False, [note]
    role = next((role for role in _ROLES if role in recipe.data), None)
    after = recipe.postprocess.model_dump(mode="json") if recipe.postprocess else None
    fed = {"data": None, "postprocess": after, "folder": str(recipe.folder), "seed": recipe.seed}
    if role is None:
        return fed, brings_python(recipe), []
    settings = recipe.data[role].model_dump(mode="json", by_alias=True, exclude_unset=True)
    changed = recipe.digest != report.recipe.digest
    notes = ["the recipe reads otherwise than it was built (changed, or built with --set)"]
    return {**fed, "data": settings}, brings_python(recipe), notes if changed else []
