"""The worker of a draft: it finds a model's inputs, checks that it takes them, and bounds the batch."""

from __future__ import annotations

import importlib
import math
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optcli.errors import InputsError
from optcli.models import sources
from optcli.models.formats import exported as exported_format
from optcli.models.formats import exporter_metadata, torch_calls
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import torch as torch_format
from optcli.models.formats import torchscript as script_format
from optcli.models.onnx_graphs.protobuf import element_name, inferred
from optcli.models.sources import Source, SourceFacts
from optcli.models.sources._file import FileSource
from optcli.models.sources._network import OutputsOfBatchError
from optcli.models.sources.hf import RANDOM
from optcli.outputs import Probe, decoding_options_of, probe_of
from optcli.scaffold import shapes
from optcli.scaffold.inspection import exported as exported_inspection
from optcli.scaffold.inspection import onnx as onnx_inspection
from optcli.scaffold.inspection import torch as torch_inspection
from optcli.scaffold.inspection import torchscript as script_inspection
from optcli.scaffold.inspection.findings import Tensor
from optcli.settings import TensorSpec
from optcli.workers import Channel

_MOST_INPUT_BYTES = 20e6  # 32 images of 3 x 224 x 224 in float32
_MOST_ACTIVATION_BYTES = 1e9
_AT_ONCE = 3  # tensors of the largest size that live together: what a layer reads, writes and skips


@dataclass(frozen=True)
class SourceLookRequest:
    """A source by its kind and settings; `inputs` are looked for where none are given."""

    kind: str
    source: dict[str, Any]
    inputs: tuple[TensorSpec, ...]


@dataclass(frozen=True, kw_only=True)
class Looked:
    """Inputs and outputs of a model, its preparation and whether there is attention.

    The batch of the inputs is one that memory holds. `trained` says whether weights are named or in
    the file, `prepare` is a preset's name, `cached` the weights that are here already, `metadata` what
    the exporter wrote into the file, `probe` what an ONNX detector gave for noise.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[Tensor, ...]
    attention: bool
    trained: bool
    prepare: str | None = None
    cached: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    probe: Probe | None = None
    notes: tuple[str, ...] = ()


def look(request: SourceLookRequest, channel: Channel) -> Looked:
    """Look into the model of a source."""
    kind, declared = request.kind, request.inputs
    source = sources.find(kind).model_validate(request.source)
    if kind in ("onnx", "exported"):
        return _file(kind, source, declared)
    if kind == "torchscript":
        return _script(source, declared)
    if isinstance(source, FileSource):
        return _finished(source, declared)
    return _network(kind, source, declared)


def _finished(source: Source, declared: Sequence[TensorSpec]) -> Looked:
    """A file for one runtime, which is taken as it is."""
    module = importlib.import_module(f"optcli.scaffold.inspection.{source.format}")
    findings = module.look(source.folder / source.target, declared)
    inputs = declared or [shapes.from_file(each, {}) for each in findings["inputs"]]
    return Looked(
        inputs=tuple(inputs),
        outputs=_tensors(findings),
        attention=_has_attention(findings),
        trained=True,
        metadata=findings.get("metadata", {}),
    )


def _has_attention(findings: Mapping[str, Any]) -> bool:
    """Whether the operators of a file are those of a transformer."""
    operators = {each["type"].rpartition(".")[2] for each in findings["operators"]}
    return bool(operators & {"Softmax", "softmax", "scaled_dot_product_attention"}) and bool(
        operators & {"LayerNormalization", "layer_norm", "Erf", "gelu", "Gelu", "MVN"}
    )


def _file(kind: str, source: Source, declared: Sequence[TensorSpec]) -> Looked:
    path = source.folder / source.target
    module = onnx_inspection if kind == "onnx" else exported_inspection
    findings = module.look(path, [], **({"trust": source.trust} if kind == "exported" else {}))
    bounds = findings.get("facts", {}).get("bounds", {})
    inputs = declared or [shapes.from_file(each, bounds) for each in findings["inputs"]]
    probe = None
    with tempfile.TemporaryDirectory() as folder:
        source.write(Path(folder), inputs)
        if kind == "onnx":
            largest = of_onnx(path, inputs)
            probe = _probed(Path(folder) / onnx_format.FILE, inputs, findings["outputs"])
        else:
            program = exported_format.open(Path(folder), trust=source.trust).module()
            feed = _feed(inputs)
            largest = _of_call(lambda: program(*feed.values()), _batch(inputs))
    return Looked(
        inputs=tuple(fitted(inputs, largest)),
        outputs=_tensors(findings),
        attention=_has_attention(findings),
        trained=True,
        metadata=findings.get("metadata", {}),
        probe=probe,
    )


def _probed(
    path: Path, inputs: Sequence[TensorSpec], outputs: Sequence[dict[str, Any]]
) -> Probe | None:
    """What the outputs of a detector hold for a noisy image."""
    if len(inputs) != 1 or not outputs or len(outputs[0]["shape"] or ()) != 3:
        return None
    import numpy as np
    import onnxruntime

    spec = inputs[0]
    noise = np.random.default_rng(0).uniform(0, 255, spec.concrete(_batch(inputs))).astype(spec.dtype)
    with suppress(Exception):  # whatever the runtime cannot do with it: then nothing is known
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        answers = session.run(None, {spec.name: noise})
        probe = probe_of(answers[0])
        return None if probe is None else replace(probe, decoding_options=decoding_options_of(answers))
    return None


def _script(source: Source, declared: Sequence[TensorSpec]) -> Looked:
    notes: list[str] = []
    inputs = declared or shapes.of_script(source.folder / source.target, notes, trust=source.trust)
    with tempfile.TemporaryDirectory() as folder:
        source.write(Path(folder), inputs)
        findings = script_inspection.look(Path(folder), inputs, trust=source.trust)
        model = script_format.open(Path(folder), trust=source.trust)
        feed = _feed(inputs)
        largest = _of_call(lambda: model(*feed.values()), _batch(inputs))
    return Looked(
        inputs=tuple(fitted(inputs, largest)),
        outputs=_tensors(findings),
        attention=any("softmax" in each["type"] for each in findings["operators"]),
        trained=True,
        notes=tuple(notes),
    )


def _network(kind: str, source: Source, declared: Sequence[TensorSpec]) -> Looked:
    notes: list[str] = []
    prepare, cached = None, None
    if kind == "torchvision":
        size, prepare, cached = shapes.of_torchvision(source.target)
        inputs = declared or [shapes.image(size)]
    elif kind == "timm":
        size, prepare, cached = shapes.of_timm(source.target)
        inputs = declared or [shapes.image(size)]
    elif kind == "hf":
        size, prepare, cached = shapes.of_hf(source, notes)
        inputs = declared or [shapes.image(size, "pixel_values")]
    else:
        inputs = declared or shapes.tried(source, notes)
    with tempfile.TemporaryDirectory() as folder:
        try:
            inputs, written = _written(source, inputs, Path(folder), notes, declared=bool(declared))
        except InputsError:
            if declared or kind not in ("torchvision", "timm"):
                raise
            inputs, prepare = shapes.tried(source, notes), None  # of videos, or of two images
            shutil.rmtree(folder)
            Path(folder).mkdir()
            inputs, written = _written(source, inputs, Path(folder), notes, declared=False)
        model = torch_format.open(Path(folder))
        own = shapes.of_own_transform(model)
        if own is not None:
            inputs = declared or [shapes.of_detector(inputs[0].name, own)]
            height, width = inputs[0].shape[-2:]
            prepare = f"{{resize: [{height}, {width}], channel_order: rgb, scale: 1/255}}"
        findings = torch_inspection.look(Path(folder), inputs)
        positional, keyword = torch_calls.arguments(model, inputs).split(_feed(inputs))
        largest = _of_call(lambda: model(*positional, **keyword), _batch(inputs))
    modules = findings["operators"]
    return Looked(
        inputs=tuple(fitted(inputs, largest)),
        outputs=_tensors(findings),
        prepare=prepare if own is not None or not declared else None,
        attention=any("attention" in each["type"] for each in modules)
        or all(any(part in each["type"] for each in modules) for part in ("softmax", "layer_norm")),
        trained=source.weights not in (None, RANDOM) or (kind == "hf" and source.weights is None),
        cached=cached,
        metadata=exporter_metadata.of_facts(written.facts or {}),
        notes=tuple(notes),
    )


def _written(
    source: Source, inputs: Sequence[TensorSpec], out: Path, notes: list[str], *, declared: bool
) -> tuple[Sequence[TensorSpec], SourceFacts]:
    """Write a network; its inputs have a batch of 1 where the outputs are others for another batch."""
    try:
        return inputs, source.write(out, inputs)
    except OutputsOfBatchError:
        if declared:
            raise
    shutil.rmtree(out)
    out.mkdir()
    inputs = [each.model_copy(update={"shape": (1, *each.shape[1:]), "ranges": {}}) for each in inputs]
    notes.append("the batch is fixed at 1: the outputs are others for another batch size")
    return inputs, source.write(out, inputs)


def _batch(inputs: Sequence[TensorSpec]) -> int:
    return max((spec.batch_range().min for spec in inputs if spec.batch_symbol), default=1)


def _feed(inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    return torch_calls.example_inputs(inputs, _batch(inputs))


def _tensors(findings: Mapping[str, Any]) -> tuple[Tensor, ...]:
    return tuple(Tensor.model_validate(each) for each in findings["outputs"])


def fitted(inputs: Sequence[TensorSpec], largest_bytes: int) -> list[TensorSpec]:
    """The inputs with a batch that memory holds; those whose batch is fixed stay as they are.

    Memory is reckoned by the bytes of the inputs and of what layers give.

    `largest_bytes` is the largest tensor inside of the network for one sample.
    """
    sample_bytes = sum(input_bytes(spec) for spec in inputs)
    by_inputs = _MOST_INPUT_BYTES / max(1, sample_bytes)
    by_layers = _MOST_ACTIVATION_BYTES / max(1, _AT_ONCE * largest_bytes)
    most = 2 ** int(math.log2(max(1.0, min(by_inputs, by_layers))))
    return [_narrowed(spec, most) for spec in inputs]


def input_bytes(spec: TensorSpec) -> int:
    """Bytes of one sample of an input; sizes that vary count with their usual value."""
    sizes = [spec.ranges[size].opt if isinstance(size, str) else size for size in spec.shape]
    return math.prod(sizes[1:]) * _item_bytes(spec.dtype)


def _item_bytes(dtype: str) -> int:
    """Bytes of one value: by the bits in the name of the type, `float32` or `bfloat16`; else 1."""
    bits = re.search(r"\d+$", dtype)
    return max(1, int(bits[0]) // 8) if bits else 1


def _narrowed(spec: TensorSpec, most: int) -> TensorSpec:
    symbol = spec.batch_symbol
    if symbol is None:
        return spec
    span = spec.ranges[symbol]
    high = max(span.min, min(span.max, most))
    narrower = span.model_copy(update={"opt": min(span.opt, high), "max": high})
    return spec.model_copy(update={"ranges": {**spec.ranges, symbol: narrower}})


def _of_call(call: Callable[[], Any], batch_size: int) -> int:
    """Bytes, for one sample, of the largest tensor that a call of PyTorch makes; 0 where unknown."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    largest = 0

    class Watching(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            result = func(*args, **(kwargs or {}))
            # Views, of weights above all, take no memory of their own.
            if all(each.alias_info is None for each in func._schema.returns):
                for value in tree_leaves(result):
                    if isinstance(value, torch.Tensor):
                        largest = max(largest, value.numel() * value.element_size())
            return result

    try:
        with torch.no_grad(), Watching():
            call()
    except Exception:  # an estimate is no reason to fail: the model itself was called before
        return 0
    return largest // max(1, batch_size)


def of_onnx(path: Path, inputs: Sequence[TensorSpec]) -> int:
    """Bytes, for one sample, of the largest tensor that an ONNX file computes; 0 where unknown."""
    import onnx

    sizes = {spec.name: spec.concrete(spec.batch_range().min) for spec in inputs}
    batch = max((spec.batch_range().min for spec in inputs), default=1)
    try:
        model = onnx.load(str(path), load_external_data=False)
        for value in model.graph.input:
            dims = value.type.tensor_type.shape.dim
            for dim, size in zip(dims, sizes.get(value.name, ()), strict=False):
                dim.dim_value = size
        shapes, types = inferred(model)
    except Exception:  # as above
        return 0
    outside = {value.name for value in (*model.graph.input, *model.graph.initializer)}
    inner = {name: shape for name, shape in shapes.items() if name not in outside}
    sizes_bytes = (
        math.prod(shape) * _item_bytes(element_name(types[name])) for name, shape in inner.items()
    )
    return max(sizes_bytes, default=0) // max(1, batch)
