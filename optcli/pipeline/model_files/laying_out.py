"""What the worker of `optcli bench` does: look into one model file, and lay it out as an artifact."""

from __future__ import annotations

import importlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli.artifact import OUTPUT_TENSORS, SCANNED, Format
from optcli.data.layouts import npz
from optcli.errors import InputError, first_line
from optcli.models import sources
from optcli.models.formats import aoti as aoti_format
from optcli.models.formats import exporter_metadata
from optcli.models.formats import ort as ort_format
from optcli.scaffold import shapes
from optcli.scaffold.inspection import ort as ort_inspection
from optcli.settings import TensorSpec, batch_range
from optcli.workers import Channel


@dataclass(frozen=True)
class LayoutRequest:
    """A model file and where its artifact goes; `inputs` are looked for where none are given."""

    path: Path
    format: Format
    out: Path
    inputs: tuple[TensorSpec, ...]
    trust: bool


@dataclass(frozen=True)
class LaidOut:
    """What is known of an artifact that was laid out; `facts` holds the names of its outputs."""

    inputs: tuple[TensorSpec, ...]
    precision: str
    notes: tuple[str, ...]
    facts: dict[str, Any]


@dataclass(frozen=True)
class SamplesRequest:
    """An .npz that should hold samples for some of these inputs."""

    path: Path
    inputs: tuple[TensorSpec, ...]


def lay_out(request: LayoutRequest, channel: Channel) -> LaidOut:
    """Write the artifact of a model file. Raises `InputError`, `TrustError`, `MissingError`."""
    path, out, given, format = request.path, request.out, request.inputs, request.format
    notes: list[str] = []
    outputs: Sequence[str]
    file_facts: dict[str, Any] = {}
    if format == Format.AOTI:
        inputs, outputs, precision = given, _package(path, out, given), "unknown"
    elif format == Format.ORT:
        inputs, outputs, precision = _ort(path, out, given)
    else:
        inputs = given or _inputs(format, path, notes, request.trust)
        source = sources.named(f"{format}:{path}", path.parent)
        source = source.model_copy(update={"trust": request.trust})
        written = source.write(out, inputs)
        outputs, precision = written.outputs, written.precision
        facts = written.facts or {}
        file_facts = {OUTPUT_TENSORS: facts.get(OUTPUT_TENSORS)}
        file_facts |= exporter_metadata.fact(exporter_metadata.of_facts(facts))
    return LaidOut(tuple(inputs), precision, tuple(notes), {"outputs": list(outputs), **file_facts})


def check_samples(request: SamplesRequest, channel: Channel) -> tuple[str, ...]:
    """The names of the inputs that an .npz has samples for. Raises `InputError`."""
    import numpy as np

    inputs, place = request.inputs, str(request.path)
    hint = f"name its arrays {', '.join(spec.name for spec in inputs)}, each [samples, ...]"
    try:
        with np.load(place, allow_pickle=False) as archive:
            arrays = {spec.name: archive[spec.name].shape for spec in inputs if spec.name in archive}
            names = ", ".join(archive)
    except (OSError, EOFError, *npz.DAMAGED) as error:
        raise InputError("this is no .npz of arrays", place=place, hint=hint) from error
    if not arrays:
        raise InputError(f"the file has {names}, none of the inputs", place=place, hint=hint)
    for spec in inputs:
        wanted = spec.concrete(1)[1:]
        if spec.name in arrays and (not arrays[spec.name] or arrays[spec.name][1:] != wanted):
            raise InputError(
                f"samples of {spec.name!r} have shape {list(arrays[spec.name])}, wanted [n, "
                f"{', '.join(map(str, wanted))}]",
                place=place,
                hint="prepare the samples as the model takes them, or say the size with --input",
            )
    return tuple(arrays)


def _inputs(format: Format, path: Path, notes: list[str], trust: bool) -> tuple[TensorSpec, ...]:
    if format == Format.TORCHSCRIPT:
        return tuple(shapes.of_script(path, notes, trust=trust))
    look = importlib.import_module(f"optcli.scaffold.inspection.{format}").look
    findings = look(path, [], **({"trust": trust} if format in SCANNED else {}))
    bounds = findings.get("facts", {}).get("bounds", {})
    return tuple(shapes.from_file(each, bounds) for each in findings["inputs"])


def _ort(
    path: Path, out: Path, given: tuple[TensorSpec, ...]
) -> tuple[tuple[TensorSpec, ...], Sequence[str], str]:
    os.symlink(path, out / ort_format.FILE)
    findings = ort_inspection.look(out, given)
    inputs = given or tuple(shapes.from_file(each, {}) for each in findings["inputs"])
    # The format tells types of operators, not what its weights are stored as.
    return (
        inputs,
        [str(each["name"]) for each in findings["outputs"]],
        findings["precision"] or "unknown",
    )


def _package(path: Path, out: Path, inputs: tuple[TensorSpec, ...]) -> list[str]:
    """Names for a package's outputs, as many as it gives: it says neither inputs nor outputs."""
    from optcli.models.formats.torch_calls import example_inputs, flatten_outputs

    shutil.copyfile(path, out / aoti_format.FILE)
    aoti_format.check(out)
    import torch

    try:
        package = aoti_format.open(out)
    except Exception as error:
        raise InputError(
            f"torch cannot load the package: {first_line(error)}",
            place=str(path),
            hint="compile it again here: it needs the processor and the torch that it was made with",
        ) from error
    feed = example_inputs(inputs, batch_range(inputs).min)
    try:
        with torch.inference_mode():
            results = package(*(feed[spec.name] for spec in inputs))
    except Exception as error:
        raise InputError(
            f"the package does not run on these inputs: {first_line(error)}",
            place=str(path),
            hint="say them as it was compiled: --input NAME:DTYPE[SIZES], in their order",
        ) from error
    return list(flatten_outputs(results))
