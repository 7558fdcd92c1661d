"""What a server must know of an artifact: its inputs and outputs, asked from the files and by running.

`look` works in a worker of its own. It also writes the golden request and response: one call of the
artifact's own runner, as JSON of the Open Inference Protocol v2. For a load test it writes samples and
what that runner gives for each.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import data, runners
from optcli.artifact import SCANNED, Artifact, Format
from optcli.data import DataSettings
from optcli.errors import InputError
from optcli.inspection.findings import Tensor
from optcli.latency.feeds import make
from optcli.sample import collate
from optcli.serving.deploy import ray_runtimes, samples
from optcli.settings import TensorSpec, batch_range
from optcli.workers import Channel

if TYPE_CHECKING:
    import numpy as np

    from optcli.data.samples import PreparedSet

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
# How an engine's sidecar writes the types of its inputs and outputs.
_SHORT = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
# Largest error of an output, over the largest magnitude in it: another processor or another release of
# the runtime rounds otherwise.
_TOLERANCE_FP32, _TOLERANCE_LOWER = 1e-3, 0.05


@dataclass(frozen=True)
class LookRequest:
    """An artifact with its runner and inputs; `out` is where the golden files go.

    `data` are the settings of a role, with paths relative to `folder`; None: random inputs. `runs` says
    whether the runner can run here: without it the artifact's files alone are read. `ray` says that
    a bundle for Ray serves it, not Triton. `samples` is how many prepared samples to write. `profile`
    is the one of an engine that is served.
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
    ray: bool = False
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
    inspection = importlib.import_module(f"optcli.inspection.{artifact.format.value}")
    trust = {"trust": artifact.trusted} if artifact.format in SCANNED else {}
    findings = inspection.look(artifact.path, request.inputs, **trust)
    inputs = tuple(map(Tensor.model_validate, findings["inputs"] or ()))
    outputs = tuple(map(Tensor.model_validate, findings.get("outputs") or ()))
    settings = ray_runtimes.found_in(artifact, request.inputs) if request.ray else {}
    if artifact.format == Format.TORCHSCRIPT and not request.ray:
        _require_flat_outputs(artifact)
        # The file names none, and both this runner and Triton go by their order.
        names = artifact.facts["outputs"]
        outputs = tuple(
            tensor.model_copy(update={"name": str(name)})
            for tensor, name in zip(outputs, names, strict=True)
        )
    rows: tuple[int, ...] = ()
    if artifact.format == Format.TENSORRT:
        rows = _rows_of_engine(artifact, request.inputs, request.profile)
        inputs, outputs = _of_engine(inputs), _of_engine(outputs)
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
            count = samples.write(
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
    import numpy as np

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


def _require_flat_outputs(artifact: Artifact) -> None:
    """Raise `InputError` where TorchScript gives what Triton's LibTorch backend cannot hand out."""
    from optcli.formats import torchscript

    model = torchscript.open(artifact.path, trust=artifact.trusted)
    kinds: Sequence[Any] = [value.type for value in model.forward.schema.returns]
    inner = [each for kind in kinds for each in (kind.elements() if _is_tuple(kind) else [kind])]
    for kind in inner:
        if kind.kind() != "TensorType":
            raise InputError(
                f"the network gives {kind.annotation_str}, and Triton takes tensors or a tuple of them",
                place=str(artifact.path),
                hint="let forward() give tensors, or deploy a variant with export_onnx",
            )


def _rows_of_engine(artifact: Artifact, specs: Sequence[TensorSpec], number: int) -> tuple[int, ...]:
    """The fewest and the most rows of a call in the profile of an engine that Triton is told.

    Raises `InputError` for an engine whose weights lie beside it: Triton has no way to add them.
    """
    from optcli.formats import tensorrt

    engine = tensorrt.open(artifact.path)
    if engine.stripped:
        raise InputError(
            "the engine holds no weights, and Triton cannot add them",
            place=str(artifact.path),
            hint="build it without stripping the weights",
        )
    profile = engine.profiles[number] if number < len(engine.profiles) else {}
    batched = [spec.name for spec in specs if spec.batch_symbol is not None and spec.name in profile]
    if not batched:
        return ()
    fewest, most = ([profile[name][end][0] for name in batched] for end in ("min", "max"))
    return max(fewest), min(most)


def _of_engine(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Tensors of an engine's sidecar, which writes types in short and -1 for a size that varies."""
    return tuple(
        Tensor(
            name=each.name,
            dtype=_SHORT.get(each.dtype, each.dtype),
            shape=None
            if each.shape is None
            else tuple(None if size == -1 else size for size in each.shape),
        )
        for each in tensors
    )


def _is_tuple(kind: Any) -> bool:
    return bool(kind.kind() == "TupleType")
