"""Into OpenVINO models: operators by precision, weights, and multiply-accumulates from the shapes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.models.formats import exporter_metadata
from optcli.models.formats import openvino as openvino_format
from optcli.scaffold.inspection.findings import as_folder, most_of, operations, operators
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    from openvino import Model, Node

_SHORT = {"f32": "fp32", "f16": "fp16", "bf16": "bf16", "f64": "fp64"}
_NO_WORK = ("Parameter", "Result", "Constant")


def look(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Look into a `.xml` with its `.bin` beside it, or into a folder. Raises `InputError`."""
    files = {openvino_format.FILE: path, openvino_format.WEIGHTS: path.with_suffix(".bin")}
    with as_folder(path, files) as folder:
        model = openvino_format.open(folder)
    names = openvino_format.input_names(model)
    output_names = openvino_format.output_names(model)
    work = (op for op in model.get_ops() if op.get_type_name() not in _NO_WORK)
    findings: dict[str, Any] = {
        "size_bytes": None if path.is_dir() else sum(file.stat().st_size for file in files.values()),
        "inputs": [*map(openvino_format.tensor, names, model.inputs)],
        "outputs": [*map(openvino_format.tensor, output_names, model.outputs)],
        "operators": operators(Counter(map(_operator, work))),
        "metadata": exporter_metadata.of_openvino(model),
        **_parameters(model),
    }
    quantized = openvino_format.is_quantized(model)
    findings["precision"] = "int8" if quantized else most_of(findings["parameters_by_type"])
    left = _give_sizes(model, {spec.name: spec.concrete(spec.batch_range().min) for spec in inputs})
    if left:
        note = f"operations are not counted: the size of {', '.join(left)} is not fixed"
        return {**findings, "notes": [note]}
    at = {name: tuple(port.shape) for name, port in zip(names, model.inputs, strict=True)}
    unknown = [
        op for op in model.get_ops() if _multiplies(op) and op.output(0).partial_shape.is_dynamic
    ]
    if unknown:
        kinds = ", ".join(sorted({op.get_type_name() for op in unknown}))
        return {**findings, "notes": [f"operations are not counted: sizes of {kinds} depend on values"]}
    return {**findings, "operations": operations(sum(map(_macs, model.get_ops())), at)}


def _multiplies(op: Node) -> bool:
    return op.get_type_name() in openvino_format.PRODUCTS


def _operator(op: Node) -> tuple[str, str]:
    """Type and what it computes in: integers where its data comes from a FakeQuantize."""
    precision = _short(op.get_output_element_type(0).get_type_name())
    if _multiplies(op):
        data, weights = (_source(op, place) for place in (0, 1))
        if data == "FakeQuantize":
            precision = "int8"
        elif weights.startswith(("i", "u")):
            precision = f"{precision}, {openvino_format.DTYPES[weights].removeprefix('u')} weights"
    return op.get_type_name(), precision


def _source(op: Node, place: int) -> str:
    """What an input comes from: an operator's type, or the element type of stored weights."""
    node = op.input_value(place).get_node()
    while node.get_type_name() in ("Convert", "Multiply", "Subtract", "Reshape", "Transpose"):
        node = node.input_value(0).get_node()
    if node.get_type_name() == "Constant":
        return str(node.get_element_type().get_type_name())
    return str(node.get_type_name())


def _parameters(model: Model) -> dict[str, Any]:
    """Values of the constants by type; ranges, scales and whole numbers for shapes left out."""
    counts: Counter[str] = Counter()
    for op in model.get_ops():
        if op.get_type_name() != "Constant":
            continue
        kind = op.get_element_type().get_type_name()
        readers = [port.get_node() for port in op.output(0).get_target_inputs()]
        scale = any(
            each.get_type_name() == "FakeQuantize"
            or (
                each.get_type_name() in ("Multiply", "Subtract")
                and _source(each, 0).startswith(("i", "u"))
            )
            for each in readers
        )
        if kind in ("i64", "i32", "boolean") or scale:
            continue
        counts[_short(kind)] += math.prod(op.get_output_shape(0))
    return {"parameters": sum(counts.values()), "parameters_by_type": dict(counts)}


def _short(kind: str) -> str:
    return _SHORT.get(kind, openvino_format.DTYPES.get(kind, kind))


def _give_sizes(model: Model, sizes: dict[str, tuple[int, ...]]) -> list[str]:
    """Fix every size that varies, a batch at 1 by default; gives the names of sizes left open."""
    left: list[str] = []
    shapes = {}
    for name, port in zip(openvino_format.input_names(model), model.inputs, strict=True):
        shape = list(port.partial_shape)
        declared = sizes.get(name)
        fixed = []
        for index, size in enumerate(shape):
            if not size.is_dynamic:
                fixed.append(size.get_length())
            elif declared is not None and len(declared) == len(shape):
                fixed.append(declared[index])
            elif index == 0:
                fixed.append(1)
            else:
                left.append(f"{name}[{index}]")
        shapes[port] = fixed
    if not left:
        model.reshape(shapes)
    return left


def _macs(op: Node) -> int:
    """Weights are [out, in, *kernel], groups first; those of a transposed one [in, out, *kernel]."""
    if not _multiplies(op):
        return 0
    kind = op.get_type_name()
    output_values: int = math.prod(op.get_output_shape(0))
    first: list[int] = list(op.get_input_shape(0))
    second: list[int] = list(op.get_input_shape(1))
    if kind == "MatMul":
        turned = op.get_attributes()["transpose_a"]
        return output_values * (first[-2] if turned and len(first) > 1 else first[-1])
    grouped = kind.startswith("Group")
    if kind.endswith("BackpropData"):
        return math.prod(first) * math.prod(second[2 if grouped else 1 :])
    return output_values * math.prod(second[2 if grouped else 1 :])
