"""The statistics that drift compares: of the data that calibrated a model, and of what a server saw."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from pydantic import Field, ValidationError

from optcli import data
from optcli.data import DataSettings, Preparation
from optcli.data.preset import resolved
from optcli.data.samples import layout_of
from optcli.errors import InputError, UsageError, counted
from optcli.files import folders
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.results.loadtest import DriftReference, Line
from optcli.results.outcomes import Result
from optcli.serving.loadtest import endpoint
from optcli.settings import TensorSpec, fed
from optcli.workers import Channel, run

if TYPE_CHECKING:
    from optcli.serving.drift.input_statistics import Statistics

# More rows make the comparison no finer where the traffic has as few.
MOST = 512
# What a recipe calibrates with comes first; of the others, what is nearest to it.
_ROLES = ("calibration", "training", "validation", "evaluation")
_MOST_FEATURES, _MOST_CHANNELS = 256, 16
_TIMEOUT_S = 600.0
_MOST_BYTES = 256 * 1024**2
# Beyond the year 5000, and as many rows, it is no server of ours.
_MOST_SEEN = 10**15
Seconds = Annotated[float, Field(ge=0, le=1e11, allow_inf_nan=False)]
_DEPLOY = "deploy it with --target ray --sample-inputs 512"


@dataclass(frozen=True)
class ReferenceRequest:
    """The data of a role, with paths relative to `folder`; `out` is the file to write."""

    model: str
    role: str
    data: DataSettings
    folder: Path
    inputs: tuple[TensorSpec, ...]
    out: Path
    most: int = MOST


def of_calibration(model: str, built: BuiltVariant, log: Path) -> tuple[bytes, str]:
    """The content of the reference's file, by a worker, and in words what it is of.

    Raises `UsageError` for a recipe without data, and as `data.open` does.
    """
    samples = built.samples
    role = next((each for each in _ROLES if each in samples.roles), None)
    if role is None:
        why = samples.notes[0].removeprefix("inputs are random: ") if samples.notes else "it names none"
        raise UsageError(
            f"the recipe has no data that inputs could be compared with: {why}",
            place="--sample-inputs",
            hint="add data: {calibration: ...} to the recipe and build again, or leave it out",
        )
    with folders.temporary("reference") as scratch:
        out = Path(scratch) / "reference.npz"
        request = ReferenceRequest(model, role, samples.roles[role], samples.folder, built.inputs, out)
        count = run(
            "optcli.serving.drift.compared:summarise",
            request,
            int,
            log=log,
            timeout_s=_TIMEOUT_S,
            reads=request.data.source,
        )
        of = f"{counted(count, 'sample')} of the {role} data ({request.data.source})"
        return out.read_bytes(), of


def summarise(request: ReferenceRequest, channel: Channel) -> int:
    """Write the statistics of up to `most` samples, drawn evenly at random; gives how many.

    Raises as `data.open` and samples do.
    """
    from optcli.serving.drift import input_statistics

    dataset = data.open(request.data, request.folder, request.inputs)
    order = np.random.default_rng(0).permutation(len(dataset))[: request.most]
    steps = resolved(request.data.prepare or Preparation())
    specs = fed(request.inputs)
    image = request.data.input or specs[0].name
    hows = [described(spec, steps if spec.name == image else None) for spec in specs]
    rows: list[list[np.ndarray]] = [[] for _ in hows]
    for index in sorted(order.tolist()):
        inputs = dataset[index].inputs
        for place, how in enumerate(hows):
            rows[place].append(input_statistics.of_row(np.asarray(inputs[how["name"]]), how))
    for place, how in enumerate(hows):
        ends = [input_statistics.columns_of(how, name) for name in _ends(how)]
        matrix = np.stack(rows[place])
        how["low"] = matrix[:, ends[0]].min(0).tolist()
        how["high"] = matrix[:, ends[1]].max(0).tolist()
        # What lies beyond the smallest and the largest of these rows is none of them.
        matrix[:, input_statistics.columns_of(how, "outside")] = 0.0
        rows[place] = list(matrix)
    reference = {
        "role": request.role,
        "source": request.data.source,
        "samples": len(order),
        "of": len(dataset),
    }
    about = {
        "schema": input_statistics.SCHEMA,
        "model": request.model,
        "inputs": hows,
        "reference": reference,
        "periods": [],
    }
    matrices = [np.stack(each).astype(np.float32) for each in rows]
    request.out.write_bytes(input_statistics.Statistics(about, matrices).packed())
    return len(order)


def described(spec: TensorSpec, steps: Preparation | None) -> dict[str, Any]:
    """How the rows of an input are summarised; `steps` are those that prepare it.

    The channels are those of an image, the features [batch, features], or an axis of 16 at most; else
    all values are one channel. Bounds are still to be found.
    """
    sizes = spec.shape[1:]
    how: dict[str, Any] = {
        "name": spec.name,
        "varies": any(isinstance(size, str) for size in sizes),
    }
    axis = _channel_axis(spec, (steps and steps.layout) or layout_of(spec))
    channels = 1 if axis is None else int(sizes[axis])
    single = len(sizes) == (0 if axis is None else 1)
    bounds = {"low": [0.0] * channels, "high": [0.0] * channels}
    return {**how, "axis": axis, "channels": channels, "single": single, **bounds}


def _channel_axis(spec: TensorSpec, layout: str) -> int | None:
    """The axis of a row that has the channels."""
    sizes = spec.shape[1:]
    if len(sizes) == 1:
        return 0 if isinstance(sizes[0], int) and sizes[0] <= _MOST_FEATURES else None
    axes: Sequence[int] = (0, len(sizes) - 1)
    if len(sizes) == 3:
        axes = (0,) if layout.endswith("chw") else (2,)
    for axis in axes:
        size = sizes[axis] if sizes else None
        if isinstance(size, int) and size <= _MOST_CHANNELS:
            return axis
    return None


def _ends(how: Mapping[str, Any]) -> tuple[str, str]:
    return ("mean", "mean") if how["single"] else ("min", "max")


class TensorSummary(Result):
    """How the rows of one input are summarised, as `input_statistics` has it."""

    name: Line
    varies: bool
    axis: int | None = None
    channels: int = Field(1, ge=1)
    single: bool = False
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()

    def raw(self) -> dict[str, Any]:
        """As `input_statistics` takes it."""
        return self.model_dump()


class SamplingPeriod(Result):
    """When a sample was begun (seconds since the epoch), and of how many rows it is."""

    begun: Seconds
    seen: int = Field(ge=0, le=_MOST_SEEN)


class About(Result):
    """What a file of statistics says of itself."""

    model: Line
    inputs: tuple[TensorSummary, ...]
    reference: DriftReference
    periods: tuple[SamplingPeriod, ...]
    written: Seconds = 0.0


def of_url(url: str, model: str | None) -> tuple[About, Statistics]:
    """What a running server gives.

    Raises as `endpoint.asked`; `UsageError` for one that keeps nothing, `InputError` for what is wrong.
    """
    served = endpoint.asked(url, model).served
    path = f"/v2/models/{urllib.parse.quote(served.model, safe='')}/inputs"
    status, content = endpoint.fetched(served.url, path, most_bytes=_MOST_BYTES)
    place = served.url + path
    if status == 404:
        raise UsageError("the server keeps no statistics of its inputs", place=place, hint=_DEPLOY)
    if status != 200:
        what = content.decode(errors="replace") if status is None else f"it says {status}"
        raise InputError(
            f"the server does not give its statistics: {what}", place=place, hint="try again"
        )
    return _read(content, place)


def _read(content: bytes, place: str) -> tuple[About, Statistics]:
    from optcli.serving.drift.input_statistics import unpacked

    again = "deploy the variant again with --sample-inputs, and start its server"
    try:
        stored = unpacked(content)
        about = About.model_validate(stored.about)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        message = f"this holds no statistics of inputs: {where}: {first['msg']}"
        raise InputError(message, place=place, hint=again) from error
    except ValueError as error:
        raise InputError(str(error), place=place, hint=again) from error
    return about, stored
