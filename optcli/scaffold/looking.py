"""What the worker of a draft does: find a model's inputs, and see that it takes them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from optcli import sources
from optcli.formats import exported as exported_format
from optcli.formats import onnx as onnx_format
from optcli.formats import torch as torch_format
from optcli.formats import torch_calls
from optcli.formats import torchscript as script_format
from optcli.inspection import exported as exported_inspection
from optcli.inspection import onnx as onnx_inspection
from optcli.inspection import torch as torch_inspection
from optcli.inspection import torchscript as script_inspection
from optcli.scaffold import memory, shapes
from optcli.settings import TensorSpec
from optcli.sources import Source
from optcli.workers import Channel


def look(payload: dict[str, Any], channel: Channel) -> dict[str, Any]:
    """Inputs, outputs, preparation and whether there is attention; plain data.

    `prepare` is a preset's name or None, `outputs` are names and shapes, `trained` says whether weights
    are named or in the file, `largest_coordinate` is what an ONNX detector gave at most for noise. The
    batch of the inputs is one that memory holds.
    """
    kind = payload["kind"]
    source = sources.find(kind).model_validate(payload["source"])
    given = [TensorSpec.model_validate(spec) for spec in payload["inputs"]]
    if kind in ("onnx", "exported"):
        return _file(kind, source, given)
    if kind == "torchscript":
        return _script(source, given)
    return _network(kind, source, given)


def _nothing() -> dict[str, Any]:
    return {
        "prepare": None,
        "attention": False,
        "notes": [],
        "cached": None,
        "largest_coordinate": None,
    }


def _file(kind: str, source: Source, given: list[TensorSpec]) -> dict[str, Any]:
    path = source.folder / source.target
    module = onnx_inspection if kind == "onnx" else exported_inspection
    found = module.look(path, [], **({"trust": source.trust} if kind == "exported" else {}))
    bounds = found.get("facts", {}).get("bounds", {})
    operators = {each["type"].rpartition(".")[2] for each in found["operators"]}
    inputs = given or [shapes.from_file(each, bounds) for each in found["inputs"]]
    coordinate = None
    with tempfile.TemporaryDirectory() as folder:
        source.write(Path(folder), inputs)
        if kind == "onnx":
            largest = memory.of_onnx(path, inputs)
            coordinate = _largest_coordinate(Path(folder) / onnx_format.FILE, inputs, found["outputs"])
        else:
            program = exported_format.open(Path(folder), trust=source.trust).module()
            feed = _feed(inputs)
            largest = memory.of_call(lambda: program(*feed.values()), _batch(inputs))
    return {
        **_nothing(),
        "inputs": _records(memory.fitted(inputs, largest)),
        "outputs": found["outputs"],
        "attention": bool(operators & {"Softmax", "softmax", "scaled_dot_product_attention"})
        and bool(operators & {"LayerNormalization", "layer_norm", "Erf", "gelu"}),
        "trained": True,
        "largest_coordinate": coordinate,
    }


def _largest_coordinate(
    path: Path, inputs: Sequence[TensorSpec], outputs: Sequence[dict[str, Any]]
) -> float | None:
    """The largest of the first two numbers in the rows of a detector's output, for a noisy image."""
    if len(inputs) != 1 or not outputs or len(outputs[0]["shape"] or ()) != 3:
        return None
    import numpy as np
    import onnxruntime

    spec = inputs[0]
    noise = np.random.default_rng(0).uniform(0, 255, spec.concrete(_batch(inputs))).astype(spec.dtype)
    with suppress(Exception):  # whatever the runtime cannot do with it: then nothing is known
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        return float(session.run(None, {spec.name: noise})[0][..., :2].max())
    return None


def _script(source: Source, given: list[TensorSpec]) -> dict[str, Any]:
    notes: list[str] = []
    inputs = given or shapes.of_script(source.folder / source.target, notes, trust=source.trust)
    with tempfile.TemporaryDirectory() as folder:
        source.write(Path(folder), inputs)
        found = script_inspection.look(Path(folder), inputs, trust=source.trust)
        model = script_format.open(Path(folder), trust=source.trust)
        feed = _feed(inputs)
        largest = memory.of_call(lambda: model(*feed.values()), _batch(inputs))
    return {
        **_nothing(),
        "inputs": _records(memory.fitted(inputs, largest)),
        "outputs": found["outputs"],
        "attention": any("softmax" in each["type"] for each in found["operators"]),
        "trained": True,
        "notes": notes,
    }


def _network(kind: str, source: Source, given: list[TensorSpec]) -> dict[str, Any]:
    notes: list[str] = []
    prepare, cached = None, None
    if kind == "torchvision":
        size, prepare, cached = shapes.of_torchvision(source.target)
        inputs = given or [shapes.image(size)]
    elif kind == "timm":
        size, prepare, cached = shapes.of_timm(source.target)
        inputs = given or [shapes.image(size)]
    else:
        inputs = given or shapes.tried(source, notes)
    with tempfile.TemporaryDirectory() as folder:
        source.write(Path(folder), inputs)
        found = torch_inspection.look(Path(folder), inputs)
        model = torch_format.open(Path(folder))
        positional, keyword = torch_calls.arguments(model, inputs).split(_feed(inputs))
        largest = memory.of_call(lambda: model(*positional, **keyword), _batch(inputs))
    modules = found["operators"]
    return {
        **_nothing(),
        "inputs": _records(memory.fitted(inputs, largest)),
        "outputs": found["outputs"],
        "prepare": prepare if not given else None,
        "attention": any("softmax" in each["type"] or "attention" in each["type"] for each in modules),
        "trained": source.weights is not None,
        "cached": cached,
        "notes": notes,
    }


def _batch(inputs: Sequence[TensorSpec]) -> int:
    return max((spec.batch_range().min for spec in inputs if spec.batch_symbol), default=1)


def _feed(inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    return torch_calls.example_inputs(inputs, _batch(inputs))


def _records(inputs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    return [spec.model_dump(mode="json") for spec in inputs]
