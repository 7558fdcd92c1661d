"""Where the client's inputs are from: a recipe's data, a golden request, files of arrays."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import data
from optcli.artifact import EMBEDDED_STEPS, pixels_name
from optcli.data import DataSettings
from optcli.errors import InputError, UsageError, counted
from optcli.files import regular_files
from optcli.recipe import load
from optcli.sample import collate
from optcli.serving.loadtest import payloads
from optcli.serving.loadtest.messages import TensorAbout
from optcli.settings import TensorSpec, size_bytes
from optcli.workers import Channel, run

if TYPE_CHECKING:
    import numpy as np

REQUEST, RESPONSE = "golden-request.json", "golden-response.json"
# Samples that a load sends over and over, and those on which a canary compares two servers: each server
# is asked for them one by one.
MOST, MOST_COMPARED = 64, 2000
# Which role of a recipe is sent: what the accuracy was found on comes first.
_ROLES = ("evaluation", "calibration", "validation", "training")
_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Inputs:
    """Files of inputs and of expected outputs by name, and in words where they are from."""

    samples: Path
    expected: Path | None
    source: str


@dataclass(frozen=True)
class TakeRequest:
    """Prepare samples of a role's data, drawn evenly, and write them as arrays into `out`."""

    data: DataSettings
    folder: Path
    inputs: tuple[TensorSpec, ...]
    out: Path
    most: int


def of_recipe(recipe: Path, taken: Sequence[TensorAbout], scratch: Path, most: int = MOST) -> Inputs:
    """Prepared samples of a recipe's data for a server of the inputs `taken`, by a worker.

    Raises `UsageError` without data, and for a model that takes photographs of any size.
    """
    read = load(recipe)
    role = next((role for role in _ROLES if role in read.data), None)
    if role is None:
        raise UsageError(
            "the recipe has no data",
            place=str(recipe),
            hint="add data: evaluation, or leave --recipe out",
        )
    out = scratch / "samples.npz"
    settings, specs = _for_server(read.data[role], read.inputs, taken)
    request = TakeRequest(settings, read.folder, specs, out, most)
    count = run(
        "optcli.serving.loadtest.inputs:take",
        request,
        int,
        log=scratch / "samples.log",
        timeout_s=_TIMEOUT_S,
    )
    return Inputs(out, None, f"{counted(count, 'sample')} of {read.data[role].source}")


def _for_server(
    settings: DataSettings, inputs: Sequence[TensorSpec], taken: Sequence[TensorAbout]
) -> tuple[DataSettings, tuple[TensorSpec, ...]]:
    """Data and inputs for a server, whose model may prepare its images itself: it takes pixels then."""
    asked = {each.name: each for each in taken}
    specs = []
    for spec in inputs:
        pixels = asked.get(pixels_name(spec.name))
        if pixels is None:
            specs.append(spec)
            continue
        if -1 in pixels.shape[1:]:
            raise UsageError(
                f"the server takes photographs of any size as {pixels.name!r}",
                place="--recipe",
                hint="send image files with --encoding image --images FOLDER, or leave --recipe out",
            )
        resized = math.prod(pixels.shape[1:]) == math.prod(spec.concrete(1))
        settings = settings.for_model({EMBEDDED_STEPS: "values" if resized else "all"})
        shape = ("batch", *pixels.shape[1:])
        specs.append(TensorSpec(name=pixels.name, dtype="uint8", shape=shape))
    return settings, tuple(specs)


def take(request: TakeRequest, channel: Channel) -> int:
    """Write the samples as arrays by input name, the first axis is the sample; gives their number."""
    import numpy as np

    dataset = data.open(request.data, request.folder, request.inputs)
    fitting = max(1, payloads.MOST_BYTES // max(1, size_bytes(request.inputs, 1)))
    count = min(request.most, len(dataset), fitting)
    if not count:
        raise InputError(
            "the data are empty", place=request.data.source, hint="check its `split` and `samples`"
        )
    rows = (index * len(dataset) // count for index in range(count))
    batch = collate([dataset.prepared(dataset.read(row)) for row in rows])
    np.savez(request.out, **batch.inputs)  # type: ignore[arg-type]
    return count


def of_golden(folder: Path, scratch: Path) -> Inputs:
    """The golden request and response of a deployment as samples with expected outputs.

    Raises `UsageError` where the folder has none, `InputError` for files that are none.
    """
    import numpy as np

    request, response = (_tensors(folder / name, part) for name, part in _PARTS)
    if {len(array) for array in (*request.values(), *response.values())} - {_count(request)}:
        raise InputError(
            "the golden request and response have different numbers of rows",
            place=str(folder),
            hint="deploy the variant again",
        )
    samples, expected = scratch / "golden-samples.npz", scratch / "golden-expected.npz"
    np.savez(samples, **request)  # type: ignore[arg-type]
    np.savez(expected, **response)  # type: ignore[arg-type]
    return Inputs(samples, expected, f"the golden request of {folder}")


_PARTS = ((REQUEST, "inputs"), (RESPONSE, "outputs"))


def has_golden(folder: Path) -> bool:
    """Whether a folder has a golden request with its response."""
    return all((folder / name).is_file() for name, _ in _PARTS)


def _tensors(path: Path, part: str) -> Mapping[str, np.ndarray]:
    import numpy as np
    from tritonclient.utils import triton_to_np_dtype

    again = "name the folder that `optcli deploy` wrote with --golden"
    try:
        content: Any = regular_files.json_of(path)
        tensors: Sequence[Any] = content[part]
        return {
            str(each["name"]): np.array(each["data"], triton_to_np_dtype(each["datatype"])).reshape(
                each["shape"]
            )
            for each in tensors
        }
    except FileNotFoundError as error:
        raise UsageError("there is no such file", place=str(path), hint=again) from error
    except (OSError, ValueError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise InputError(f"this holds no tensors: {error}", place=str(path), hint=again) from error


def _count(arrays: Mapping[str, np.ndarray]) -> int:
    return len(next(iter(arrays.values())))
