"""What a server must know of an artifact: its inputs and outputs, asked from the files and by running.

`look` works in a worker of its own. It also writes the golden request and response: one call of the
artifact's own runner, as JSON of the Open Inference Protocol v2. For a load test it writes samples and
what that runner gives for each.

A golden image is the bytes of an evaluation sample, and the answer that belongs to them. What a
server's own modules make of the bytes is compared with the golden request, which optcli's own
preparation made of the same sample. So the two preparations cannot differ unseen.
"""

from __future__ import annotations

import importlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from optcli import data, runners
from optcli.artifact import SCANNED, Artifact
from optcli.data import DataSettings, Preparation, steps
from optcli.data.samples import PreparedSet
from optcli.errors import InputError
from optcli.files import regular_files
from optcli.measure.latency.feeds import make
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.runners import Runner
from optcli.sample import collate
from optcli.scaffold.inspection.findings import Tensor
from optcli.serving import targets
from optcli.serving.bundle import EXPECTED, SAMPLES
from optcli.serving.prediction.of_recipe import FORMATS, ImageServing
from optcli.settings import TensorSpec, batch_range, size_bytes
from optcli.workers import Channel

REQUEST, RESPONSE = "golden-request.json", "golden-response.json"
# Types of tensors, as the Open Inference Protocol writes them. Triton's own begin with TYPE_.
# Its JSON has no form for float16.
PROTOCOL_TYPES = {
    "bool": "BOOL",
    "float32": "FP32",
    "float64": "FP64",
    **{
        f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
    },
}
# Largest error of an output, over the largest magnitude in it: another processor or another release of
# the runtime rounds otherwise.
_TOLERANCE_FP32, _TOLERANCE_LOWER = 1e-3, 0.05
MOST_SAMPLES = 64
_MOST_BYTES = 64 * 1024**2
ANSWER = "golden-answer.json"
_LARGEST_IMAGE = 64 * 1024 * 1024
_NAME, _SUFFIXES = "golden-image", {"JPEG": "jpg", "PNG": "png"}


@dataclass(frozen=True)
class LookRequest:
    """An artifact with its runner and inputs; `out` is where the golden files go.

    `data` are the settings of a role, with paths relative to `folder`; None: random inputs. `runs` says
    whether the runner can run here: without it the artifact's files alone are read. `target` is the
    server's name, `samples` how many prepared samples to write, `profile` an engine's that is served.
    """

    model: str
    artifact: Artifact
    runner: str
    options: dict[str, Any]
    inputs: tuple[TensorSpec, ...]
    out: Path
    data: DataSettings | None = None
    folder: Path = Path()
    seed: int = 0
    runs: bool = True
    target: str = "triton"
    samples: int = 0
    profile: int = 0


@dataclass(frozen=True)
class Interface:
    """Inputs and outputs that the files declare, and what a call gave.

    `computed` are the outputs of a call of the smallest batch, with their true sizes. `follows_batch`
    says whether every output has as many rows as the inputs, at each batch size that was tried.
    `golden` says what the golden request holds; `tolerance` is the largest difference from the golden
    response, as a fraction of the largest magnitude in the output. All are None or empty where the
    artifact could not be run here; `golden` and `tolerance` also where JSON cannot hold the types.
    `settings` are those that a bundle's `model.py` needs. `samples` is how many were written. `rows`
    are the fewest and the most rows of a call where an engine says so itself, else empty.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    computed: tuple[Tensor, ...] = ()
    follows_batch: bool | None = None
    golden: str | None = None
    tolerance: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    samples: int = 0
    rows: tuple[int, ...] = ()


def look(request: LookRequest, channel: Channel) -> Interface:
    """Read the artifact's interface, run it and write the golden files. Raises as runners do."""
    artifact = request.artifact
    inspection = importlib.import_module(f"optcli.scaffold.inspection.{artifact.format.value}")
    trust = {"trust": artifact.trusted} if artifact.format in SCANNED else {}
    findings = inspection.look(artifact.path, request.inputs, **trust)
    files = targets.Declared(
        tuple(map(Tensor.model_validate, findings["inputs"] or ())),
        tuple(map(Tensor.model_validate, findings.get("outputs") or ())),
    )
    target = targets.find(request.target)
    declared = target.declared(artifact, request.inputs, files, request.profile)
    inputs, outputs, rows = declared.inputs, declared.outputs, declared.rows
    settings = declared.settings
    if not request.runs:
        return Interface(inputs, outputs, rows=rows)
    kind = runners.find(request.runner)
    allowed = batch_range(request.inputs)
    smallest = allowed.min
    feed, golden = _feed(request, smallest)
    with kind.model_validate(request.options).open(artifact, request.inputs) as runner:
        results = runner.run(feed)
        sizes = [smallest, smallest + 1] if allowed.max > smallest else [smallest]
        follows = all(array.ndim and array.shape[0] == smallest for array in results.values())
        if follows and len(sizes) > 1:
            more = runner.run(make(request.inputs, None, sizes[1:], request.seed)[sizes[1]][0])
            follows = all(array.ndim and array.shape[0] == sizes[1] for array in more.values())
        count = 0
        if request.samples and request.data is not None:
            count = write_samples(
                request.out, _opened(request), runner, request.inputs, request.samples
            )
    computed = tuple(
        Tensor(name=name, dtype=str(array.dtype), shape=array.shape) for name, array in results.items()
    )
    if any(PROTOCOL_TYPES.get(str(each.dtype)) is None for each in (*feed.values(), *results.values())):
        return Interface(
            inputs, outputs, computed, follows, settings=settings, samples=count, rows=rows
        )
    write_golden(request.out, request.model, feed, results)
    tolerance = _TOLERANCE_FP32 if artifact.precision == "fp32" else _TOLERANCE_LOWER
    return Interface(inputs, outputs, computed, follows, golden, tolerance, settings, count, rows)


def write_golden(
    folder: Path, model: str, feed: Mapping[str, np.ndarray], results: Mapping[str, np.ndarray]
) -> None:
    """Write a call as a request and its response, in JSON of the Open Inference Protocol v2.

    Types of the arrays are those of `PROTOCOL_TYPES`. Raises `InputError` for infinite values and NaN.
    """
    for name, array in (*feed.items(), *results.items()):
        if not np.isfinite(array).all():
            raise InputError(
                f"{name!r} has values that are infinite or NaN in the golden request",
                place=model,
                hint="look at the model and the sample: `optcli verify-accuracy` shows what it gives",
            )
    request = {
        "inputs": [_tensor(name, array) for name, array in feed.items()],
        "outputs": [{"name": name} for name in results],
    }
    response = {
        "model_name": model,
        "model_version": "1",
        "outputs": [_tensor(name, array) for name, array in results.items()],
    }
    for name, content in ((REQUEST, request), (RESPONSE, response)):
        (folder / name).write_text(json.dumps(content) + "\n", encoding="utf-8")


def _tensor(name: str, array: np.ndarray) -> dict[str, Any]:
    # Flat: every server that speaks the protocol takes this form.
    kind = PROTOCOL_TYPES[str(array.dtype)]
    return {"name": name, "shape": list(array.shape), "datatype": kind, "data": array.ravel().tolist()}


def _feed(request: LookRequest, batch_size: int) -> tuple[dict[str, np.ndarray], str]:
    """One batch of real samples, else of seeded random values, and what it is in words."""
    if request.data is None:
        feed = make(request.inputs, None, [batch_size], request.seed)[batch_size][0]
        return dict(feed), f"random values of seed {request.seed}"
    dataset = _opened(request)
    rows = [dataset.prepared(dataset.read(row % len(dataset))) for row in range(batch_size)]
    batch = collate(rows)
    named = ", ".join(map(str, batch.ids[:3]))
    return dict(batch.inputs), f"sample {named} of {request.data.source}"


def _opened(request: LookRequest) -> PreparedSet:
    assert request.data is not None
    dataset = data.open(request.data, request.folder, request.inputs)
    if not len(dataset):
        raise InputError(
            "the data are empty", place=request.data.source, hint="check its `split` and `samples`"
        )
    return dataset


def write_samples(
    out: Path, dataset: PreparedSet, runner: Runner, inputs: tuple[TensorSpec, ...], most: int
) -> int:
    """Write samples, drawn evenly, with their outputs, one sample a row. Gives how many: 0 for none.

    None are written where a sample is no single row of each input and output, or sizes differ.
    """
    if batch_range(inputs).min > 1 or any(
        spec.shape[0] not in (spec.batch_symbol, 1) for spec in inputs
    ):
        return 0
    count = min(most, MOST_SAMPLES, len(dataset), max(1, _MOST_BYTES // max(1, size_bytes(inputs, 1))))
    feeds: list[dict[str, np.ndarray]] = []
    results: list[dict[str, np.ndarray]] = []
    for index in range(count):
        sample = dataset.prepared(dataset.read(index * len(dataset) // count))
        feeds.append(dict(collate([sample]).inputs))
        results.append(runner.run(feeds[-1]))
    for rows in (feeds, results):
        for name in rows[0]:
            shapes = {row[name].shape for row in rows}
            if len(shapes) > 1 or shapes.pop()[:1] != (1,):
                return 0
    for file, rows in ((SAMPLES, feeds), (EXPECTED, results)):
        arrays = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
        np.savez(out / file, **arrays)  # type: ignore[arg-type]
    return count


def golden_image_in(folder: Path) -> tuple[Path, Path] | None:
    """The golden image of a deployment and its answer; None where it has none."""
    images = [folder / f"{_NAME}.{suffix}" for suffix in _SUFFIXES.values()]
    image = next((path for path in images if path.is_file()), None)
    answer = folder / ANSWER
    return (image, answer) if image is not None and answer.is_file() else None


def write_golden_image(folder: Path, built: BuiltVariant, serving: ImageServing) -> str | None:
    """Write a golden image and its answer beside the golden request; gives the image's name.

    None where there is no golden request of a sample, or no such image. Raises `InputError` where
    the bundle's modules prepare the sample otherwise than optcli does.
    """
    settings = built.samples.data
    if settings is None or not all((folder / name).is_file() for name in (REQUEST, RESPONSE)):
        return None
    samples = data.open(settings, built.samples.folder, built.inputs)
    item = samples.read(0)
    encoded = _bytes(item.raw[serving.images["input"]], item.place, settings)
    if encoded is None:
        return None
    kind, body = encoded
    inputs, outputs = (
        _golden_tensors(folder / REQUEST, "inputs"),
        _golden_tensors(folder / RESPONSE, "outputs"),
    )
    from optcli.data.images import Images
    from optcli.outputs.postprocess import Postprocess

    taking = Images(serving.images)
    try:
        array, placement = taking.prepared(body)
        answering = Postprocess(serving.postprocess)
        answer = answering.answer(outputs, placement, taking.size_of(array))
    except ValueError as error:
        raise InputError(
            f"the bundle's modules refuse a sample of the recipe: {error}",
            place=item.place,
            hint="look at `prepare` and `postprocess` in the recipe, or leave --images out",
        ) from error
    for tensor, made in taking.feed([array], [placement]).items():
        _require_equal(made, inputs[tensor], item.place)
    name = f"{_NAME}.{_SUFFIXES[kind]}"
    (folder / name).write_bytes(body)
    (folder / ANSWER).write_text(json.dumps(answer) + "\n", encoding="utf-8")
    return name


def _require_equal(array: np.ndarray, wanted: np.ndarray, place: str) -> None:
    if array.shape != wanted.shape or not np.array_equal(array, wanted.astype(array.dtype)):
        raise InputError(
            "the bundle's modules do not prepare this image as optcli does",
            place=place,
            hint="this is a bug: report it with the recipe's `prepare`, and leave --images out",
        )


def _bytes(raw: Any, place: str, settings: DataSettings) -> tuple[str, bytes] | None:
    """A sample as the bytes of an image: those of its file, or a PNG of its pixels.

    None where PNG has no form for the pixels.
    """
    from PIL import Image, ImageOps

    prepare = settings.prepare or Preparation()
    if hasattr(raw, "mode"):
        try:
            body = regular_files.read(place, _LARGEST_IMAGE)
            with Image.open(io.BytesIO(body), formats=FORMATS) as golden_image_in:
                return str(golden_image_in.format), body
        except OSError:  # an item of a data set that has no file, or one of another format
            image = ImageOps.exif_transpose(raw) if prepare.orient else raw
    else:
        pixels = steps.from_array(raw, prepare.array_layout)
        image = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    stream = io.BytesIO()
    try:
        image.save(stream, "PNG")
    except OSError:
        return None
    return "PNG", stream.getvalue()


def _golden_tensors(path: Path, key: str) -> dict[str, np.ndarray]:
    """The tensors of a golden file, by name. JSON holds float32 exactly."""
    tensors: Sequence[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))[key]
    return {each["name"]: np.array(each["data"]).reshape(each["shape"]) for each in tensors}
