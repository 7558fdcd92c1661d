"""A model repository for Triton: the model, its config.pbtxt, and the plan as Triton can say it."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from optcli.artifact import ABOUT, Format
from optcli.errors import InputError, counted
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.results.plan import Configuration, Plan
from optcli.serving.deploy import model_configuration
from optcli.serving.deploy.backends import Backend, backend_of
from optcli.serving.deploy.interface import Interface
from optcli.serving.deploy.model_configuration import ServedModel

_VERSION = "1"
# config.pbtxt holds 32 bits.
_LONGEST = 2**31 - 1


def served_of(
    name: str,
    built: BuiltVariant,
    interface: Interface,
    one: Configuration,
    backend: Backend,
) -> ServedModel:
    """What config.pbtxt is made of. Raises `UsageError` where the model cannot take the plan."""
    place = str(built.artifact.path)
    batching = model_configuration.batching_of(built.inputs, interface, one.batch, place)
    preferred: tuple[int, ...] = ()
    if built.artifact.format == Format.TENSORRT and batching.largest > 1:
        best = max(spec.batch_range().opt for spec in built.inputs)
        preferred = tuple(sorted({min(best, batching.largest), batching.largest}))
    return ServedModel(
        name=name,
        inputs=built.inputs,
        interface=interface,
        backend=backend,
        batching=batching,
        instances=model_configuration.instances_of(one),
        wait_ms=one.wait_ms,
        # A machine's part of the plan's queue; 0 would be a queue without end for Triton.
        queue=min(max(1, (one.queue_cap or 0) // one.machines), _LONGEST),
        late_ms=one.timeout_ms,
        preferred=preferred,
    )


def write(folder: Path, built: BuiltVariant, served: ServedModel, plan: Plan) -> None:
    """Write NAME/1/ and NAME/config.pbtxt below `folder`, and compare what was written with the model.

    Raises `InputError` where they do not fit each other.
    """
    one = plan.recommended
    assert one is not None
    place = folder / served.name / _VERSION
    ignored = shutil.ignore_patterns(ABOUT)
    shutil.copytree(built.artifact.path, place, ignore=ignored, copy_function=shutil.copyfile)
    if not (place / served.backend.file).is_file():
        raise InputError(
            f"the artifact has no {served.backend.file}",
            place=str(built.artifact.path),
            hint="build it again",
        )
    predicted = {"p50": one.p50_ms, "p95": one.p95_ms, "p99": one.p99_ms}
    figures = [f"{name} {ms:.4g} ms" for name, ms in predicted.items() if ms is not None]
    comments = [
        f"Written by optcli for the variant {built.name}. {plan.sentence}",
        f"Predicted at {plan.planned_rate_per_s:.4g} requests a second: {', '.join(figures)};"
        f" the promise holds up to {one.max_rate_per_s:.4g} on {counted(one.machines, 'machine')}.",
    ]
    path = folder / served.name / model_configuration.FILE
    model_configuration.write(model_configuration.message(served), path, comments)
    read_back = model_configuration.read(path)
    model_configuration.require_match(read_back, served.interface, str(built.artifact.path))


def notes_of(
    built: BuiltVariant,
    served: ServedModel,
    one: Configuration,
    backend: Backend,
) -> Sequence[str]:
    """What differs between the plan and what Triton will do, in sentences."""
    notes = [*backend.notes]
    if built.effective.get("shapes") == "static":
        notes.append(
            "the variant was measured with static shapes, and Triton runs the model for any batch size:"
            " build it with `runner: {shapes: dynamic}` to plan with what Triton runs"
        )
    if served.batching.why:
        notes.append(f"Triton does not batch this model: {served.batching.why}")
    if backend.pads and served.batching.largest > 1:
        notes.append(
            f"Triton's OpenVINO backend fills every call up to {served.batching.largest} rows: a call"
            " always takes the time of the largest batch, and the plan's prediction for light load is"
            " too low"
        )
    if one.machines > 1:
        notes.append(
            f"the plan has {one.machines} machines, each with a server of its own: spread the requests"
            " over them"
        )
    return tuple(note for note in notes if note)


def backend_for(built: BuiltVariant) -> Backend:
    """The backend for a variant, with its runner's options. Raises `InputError`."""
    return backend_of(
        built.artifact.format,
        built.runner_name,
        built.runner,
        built.effective,
        str(built.artifact.path),
    )
