"""What the client sends: bodies of requests, made once before the load, and how answers are read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from optcli.data.layouts.npz import DAMAGED
from optcli.environment import pip_install
from optcli.errors import InputError, MissingError, UsageError, did_you_mean, excerpt
from optcli.files import regular_files
from optcli.outputs.ranges import scaled_parts
from optcli.serving.loadtest.messages import Setup, TensorAbout

# Bodies of a load are held in memory all together.
MOST_BYTES = 256 * 1024 * 1024
HEADER_LENGTH = "Inference-Header-Content-Length"
_KINDS = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg"}


@dataclass(frozen=True)
class Payload:
    """One request: where it is posted, its body, and which sample it holds."""

    path: str
    body: bytes
    headers: Mapping[str, str]
    sample: int


def samples_of(setup: Setup) -> dict[str, np.ndarray]:
    """The inputs by name, the first axis is the sample: from the file, else random.

    Raises `InputError` where the file and the model's metadata do not fit each other, and where random
    inputs cannot be made.
    """
    if setup.samples is None:
        random = np.random.default_rng(setup.seed)
        # Random values have eight bytes at most; a row that is large by itself is there once.
        row_bytes = sum(8 * math.prod(max(1, n) for n in each.shape[1:]) for each in setup.inputs)
        count = max(1, min(setup.random_samples, MOST_BYTES // max(1, row_bytes)))
        return {each.name: _random(each, count, random) for each in setup.inputs}
    arrays = _read(setup.samples)
    for each in setup.inputs:
        if each.name not in arrays:
            raise InputError(
                f"the model takes the input {each.name!r}, the samples have {_names(arrays)}",
                place=str(setup.samples),
                hint=did_you_mean(each.name, list(arrays)),
            )
        shape, expected_shape = arrays[each.name].shape[1:], each.shape[1:]
        if len(shape) != len(expected_shape) or any(
            size not in (-1, has) for has, size in zip(shape, expected_shape, strict=True)
        ):
            raise InputError(
                f"the samples of {each.name!r} have the shape {list(shape)}, the server takes"
                f" {list(expected_shape)}",
                place=str(setup.samples),
                hint="name the recipe that the model on the server was built from",
            )
    chosen = {each.name: arrays[each.name] for each in setup.inputs}
    if len({len(array) for array in chosen.values()}) != 1 or not len(next(iter(chosen.values()))):
        raise InputError(
            "the inputs have different numbers of samples, or none",
            place=str(setup.samples),
            hint="give each input one entry for every sample",
        )
    return chosen


def expected_of(setup: Setup, samples: int) -> list[dict[str, np.ndarray]]:
    """The expected outputs of each sample, as one request gives them; empty where none are known."""
    if setup.expected is None:
        return []
    arrays = _read(setup.expected)
    known = {name: array for name, array in arrays.items() if name in setup.outputs}
    if not known or min(map(len, known.values())) < samples:
        raise InputError(
            f"the expected outputs {_names(arrays)} are not those of {samples} samples of"
            f" {', '.join(setup.outputs)}",
            place=str(setup.expected),
            hint="deploy the variant again",
        )
    rows = _rows(setup.inputs)
    return [
        {name: array[_chosen(index, rows, samples)] for name, array in known.items()}
        for index in range(samples)
    ]


def expects_all(setup: Setup) -> bool:
    """Whether each output of the model has expected values."""
    return setup.expected is not None and set(setup.outputs) <= _read(setup.expected).keys()


def of_tensors(
    setup: Setup,
    samples: Mapping[str, np.ndarray],
    *,
    binary: bool,
    rows: int = 1,
) -> list[Payload]:
    """A request for each sample, as many as fit into memory; tensors are binary or JSON.

    Each has `rows` rows, the sample and those after it, or as many as the model is fixed to.
    """
    http = client_library()
    rows, count = max(rows, _rows(setup.inputs)), len(next(iter(samples.values())))
    outputs = [http.InferRequestedOutput(name, binary_data=binary) for name in setup.outputs]
    payloads: list[Payload] = []
    taken = 0
    for index in range(count):
        inputs = [_tensor(http, each, samples[each.name], index, rows, binary) for each in setup.inputs]
        made, length = http.InferenceServerClient.generate_request_body(inputs, outputs=outputs)
        body = made if isinstance(made, bytes) else made.encode()
        headers = {"Content-Type": "application/octet-stream" if length else "application/json"}
        if length:
            headers[HEADER_LENGTH] = str(length)
        payloads.append(Payload(f"/v2/models/{setup.model}/infer", body, headers, index))
        taken += len(body)
        if taken >= MOST_BYTES:
            break
    return payloads


def of_images(setup: Setup) -> list[Payload]:
    """A request for each image file, with its bytes as they are. Raises `UsageError`."""
    if not setup.images:
        raise UsageError(
            "there are no images to send", place="--encoding image", hint="name a folder with --images"
        )
    path = f"/v2/models/{setup.model}/images"
    return [
        Payload(path, file.read_bytes(), {"Content-Type": _KINDS[file.suffix.lower()]}, index)
        for index, file in enumerate(setup.images)
    ]


def image_files(folder: Path) -> tuple[Path, ...]:
    """The JPEG and PNG files of a folder, in order. Raises `UsageError` where there are none."""
    files = sorted(path for path in folder.rglob("*") if path.suffix.lower() in _KINDS)
    if not files:
        raise UsageError(
            "the folder has no JPEG or PNG files", place=str(folder), hint="name another with --images"
        )
    return tuple(files[:256])


def outputs_in(body: bytes, headers: Mapping[str, str]) -> dict[str, np.ndarray]:
    """The outputs of an answer with tensors. Raises ValueError for what is none."""
    http = client_library()
    from tritonclient.utils import triton_to_np_dtype

    length = headers.get(HEADER_LENGTH)
    try:
        result = http.InferenceServerClient.parse_response_body(
            body, header_length=int(length) if length else None
        )
        described = result.get_response()["outputs"]
        outputs = {each["name"]: result.as_numpy(each["name"]) for each in described}
        known = all(triton_to_np_dtype(each["datatype"]) is not None for each in described)
    except Exception as error:  # whatever a broken body makes the library raise
        raise ValueError(f"the answer cannot be read: {type(error).__name__}") from error
    for name, array in outputs.items():
        if not known or array is None or array.dtype.kind not in "biuf":
            raise ValueError(f"the answer has no numbers for {excerpt(str(name))!r}")
    return outputs


def golden_of(setup: Setup) -> Any:
    """The expected answer to the first image; None where it is not known. Raises `InputError`."""
    if setup.golden_answer is None:
        return None
    try:
        return regular_files.parsed_json(regular_files.read(setup.golden_answer))
    except (OSError, ValueError) as error:
        raise InputError(
            f"this is no answer to an image: {error}",
            place=str(setup.golden_answer),
            hint="deploy the variant again",
        ) from error


def client_library() -> Any:
    """`tritonclient.http`. Raises `MissingError`."""
    try:
        import tritonclient.http as http
    except ImportError as error:
        raise MissingError(
            "the load test needs tritonclient and aiohttp, which are not installed",
            place="optcli loadtest",
            hint=pip_install("serve"),
        ) from error
    return http


def _tensor(
    http: Any, about: TensorAbout, samples: np.ndarray, index: int, rows: int, binary: bool
) -> Any:
    from tritonclient.utils import triton_to_np_dtype

    kind = triton_to_np_dtype(about.datatype)
    if kind is None or about.datatype == "BYTES":
        raise InputError(
            f"the input {about.name!r} has the type {about.datatype}, which the load test cannot send",
            place=about.name,
            hint="serve a model that takes numbers",
        )
    chosen = samples[_chosen(index, rows, len(samples))]
    array = np.ascontiguousarray(chosen, dtype=kind)
    tensor = http.InferInput(about.name, list(array.shape), about.datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def _rows(inputs: Sequence[TensorAbout]) -> int:
    """Rows of one request: one, or the batch size that the model is fixed to."""
    return max(1, *(each.shape[0] for each in inputs if each.shape), 1)


def _chosen(index: int, rows: int, count: int) -> list[int]:
    return [(index + row) % count for row in range(rows)]


def _random(about: TensorAbout, count: int, random: np.random.Generator) -> np.ndarray:
    if -1 in about.shape[1:]:
        raise InputError(
            f"the input {about.name!r} has the shape {list(about.shape)}: random values need its sizes",
            place=about.name,
            hint="name the recipe of the model with --recipe, which has samples",
        )
    shape = (count, *about.shape[1:])
    if about.datatype.startswith("FP"):
        return random.standard_normal(shape, dtype=np.float32)
    most = 2 if about.datatype == "BOOL" else 128
    return random.integers(0, most, shape)


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    except (OSError, EOFError, *DAMAGED) as error:
        raise InputError(
            f"the arrays cannot be read: {error}", place=str(path), hint="deploy the variant again"
        ) from error


def _names(arrays: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, arrays)) or "none"


def difference(
    answer: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], tolerance: float
) -> str | None:
    """What is wrong with the outputs of an answer, in words; None where they are as expected.

    Floating-point outputs may differ by `tolerance` times the largest magnitude that is expected in
    each of their parts, such as boxes and scores; other types must be equal.
    """
    for name, wanted in expected.items():
        given = answer.get(name)
        if given is None:
            return f"the output {name!r} is missing"
        if given.size != wanted.size:
            return f"{name!r} has the shape {list(given.shape)}, wanted {list(wanted.shape)}"
        given = given.reshape(wanted.shape)
        if wanted.dtype.kind != "f":
            json_difference = int(np.count_nonzero(given != wanted))
            if json_difference:
                return f"{name!r} differs in {json_difference} of {wanted.size} values"
            continue
        finite = np.isfinite(wanted)
        if not np.array_equal(np.isfinite(given), finite):
            return f"{name!r} has values that are not finite"
        apart = np.abs(np.where(finite, given, 0) - np.where(finite, wanted, 0))
        for part, scale in scaled_parts(np.abs(np.where(finite, wanted, 0))):
            largest = float(apart[part].max(initial=0.0))
            if largest > tolerance * scale:
                return (
                    f"{name!r} is {largest:.3g} away from what is expected, at most"
                    f" {tolerance * scale:.3g} is allowed"
                )
    return None


def json_difference(answer: Any, expected: Any, tolerance: float) -> str | None:
    """The same of JSON values, such as classes or boxes: numbers may differ by the tolerance."""
    if isinstance(expected, bool) or isinstance(answer, bool):
        return None if answer is expected else f"found {answer!r}, wanted {expected!r}"
    if isinstance(expected, int | float) and isinstance(answer, int | float):
        near = math.isclose(answer, expected, rel_tol=tolerance, abs_tol=tolerance)
        return None if near else f"found {answer:g}, wanted {expected:g}"
    if isinstance(expected, list) and isinstance(answer, list):
        if len(answer) != len(expected):
            return f"found {len(answer)} entries, wanted {len(expected)}"
        pairs = list(zip(answer, expected, strict=True))
    elif isinstance(expected, dict) and isinstance(answer, dict):
        if answer.keys() != expected.keys():
            return f"found the keys {sorted(answer)}, wanted {sorted(expected)}"
        pairs = [(answer[key], expected[key]) for key in expected]
    else:
        return None if answer == expected else f"found {answer!r}, wanted {expected!r}"
    return next((why for one, other in pairs if (why := json_difference(one, other, tolerance))), None)
