"""Profile a variant of the last build: its artifact, its runner's settings, the recipe's samples."""

from __future__ import annotations

from pathlib import Path

from optcli.errors import UsageError
from optcli.measure import profiling
from optcli.measure.profiling import Profile
from optcli.observer import Observer, Silent
from optcli.pipeline import places
from optcli.pipeline.model_files.built_variant import open_built
from optcli.results import Report
from optcli.settings import TensorSpec, batch_range
from optcli.store import Store


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
