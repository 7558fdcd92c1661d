"""What the worker of a draft does: find a model's inputs, and see that it takes them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from optcli import sources
from optcli.draft import shapes
from optcli.inspection import exported as exported_inspection
from optcli.inspection import onnx as onnx_inspection
from optcli.inspection import torch as torch_inspection
from optcli.inspection import torchscript as script_inspection
from optcli.settings import TensorSpec
from optcli.sources import Source
from optcli.workers import Channel


def look(payload: dict[str, Any], channel: Channel) -> dict[str, Any]:
    """Inputs, preparation, classes and whether there is attention; plain data.

    `prepare` is a preset's name or None, `classes` the size of the first output where it has two
    dimensions, `trained` whether weights are named or in the file.
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
    return {"prepare": None, "classes": None, "attention": False, "notes": [], "cached": None}


def _file(kind: str, source: Source, given: list[TensorSpec]) -> dict[str, Any]:
    module = onnx_inspection if kind == "onnx" else exported_inspection
    found = module.look(source.folder / source.target, [])
    bounds = found.get("facts", {}).get("bounds", {})
    operators = {each["type"].rpartition(".")[2] for each in found["operators"]}
    inputs = given or [shapes.from_file(each, bounds) for each in found["inputs"]]
    with tempfile.TemporaryDirectory() as folder:
        source.write(Path(folder), inputs)
    return {
        **_nothing(),
        "inputs": _records(inputs),
        "classes": _classes(found["outputs"]),
        "attention": bool(operators & {"Softmax", "softmax", "scaled_dot_product_attention"})
        and bool(operators & {"LayerNormalization", "layer_norm", "Erf", "gelu"}),
        "trained": True,
    }


def _script(source: Source, given: list[TensorSpec]) -> dict[str, Any]:
    notes: list[str] = []
    inputs = given or shapes.of_script(source.folder / source.target, notes)
    with tempfile.TemporaryDirectory() as folder:
        source.write(Path(folder), inputs)
        found = script_inspection.look(Path(folder), inputs)
    return {
        **_nothing(),
        "inputs": _records(inputs),
        "classes": _classes(found["outputs"]),
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
    modules = found["operators"]
    return {
        **_nothing(),
        "inputs": _records(inputs),
        "prepare": prepare if not given else None,
        "classes": _classes(found["outputs"]),
        "attention": any("softmax" in each["type"] or "attention" in each["type"] for each in modules),
        "trained": source.weights is not None,
        "cached": cached,
        "notes": notes,
    }


def _records(inputs: list[TensorSpec]) -> list[dict[str, Any]]:
    return [spec.model_dump(mode="json") for spec in inputs]


def _classes(outputs: list[dict[str, Any]]) -> int | None:
    shape = outputs[0]["shape"] if outputs else None
    return shape[1] if shape and len(shape) == 2 and isinstance(shape[1], int) else None
