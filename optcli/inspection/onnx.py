"""Into ONNX files: operators by precision, weights, and multiply-accumulates by shape inference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.formats import onnx as onnx_format
from optcli.inspection import onnx_operations as counting
from optcli.inspection.findings import operations, operators
from optcli.onnx_graphs.interface import input_names
from optcli.onnx_graphs.precision import precision_of
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

_SHORT = {
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float64": "fp64",
    "float8e4m3fn": "fp8",
    "float8e5m2": "fp8",
}
_QUANTIZE = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")


def look(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Look into a file, or into the `model.onnx` of a folder; `inputs` gives sizes that vary.

    Raises `InputError` and `TrustError` where it is no sound model.
    """
    from onnx import inliner

    file = path / onnx_format.FILE if path.is_dir() else path
    onnx_format.check_file(file)
    model = inliner.inline_local_functions(_outline(file))
    sizes = {spec.name: spec.concrete(spec.batch_range().min) for spec in inputs}
    fixed, left = counting.with_sizes(model, sizes)
    shapes, types = counting.inferred(fixed)
    found: dict[str, Any] = {
        "precision": precision_of(model),
        "size_bytes": _size_bytes(model, file),
        "inputs": [_tensor(v) for v in model.graph.input if v.name in input_names(model)],
        "outputs": [_tensor(value) for value in model.graph.output],
        "operators": operators(_precisions(model, types)),
        **_parameters(model),
    }
    if left:
        note = f"operations are not counted: the size of {', '.join(left)} is not fixed"
        return {**found, "notes": [note]}
    counted = counting.count(fixed.graph, shapes)
    if counted.unknown:
        text = ", ".join(f"{count} {name}" for name, count in sorted(counted.unknown.items()))
        note = f"operations are not counted: shape inference gives no shape to {text}"
        return {**found, "notes": [note]}
    at = {name: shapes[name] for name in input_names(model)}
    notes = ["operators inside If, Loop and Scan are in the list, not in the operations"]
    return {
        **found,
        "operations": operations(counted.macs, at, counted.uncounted),
        "notes": notes if any(_inner(node) for node in model.graph.node) else [],
    }


def _outline(file: Path) -> ModelProto:
    import onnx

    return onnx.load(str(file), load_external_data=False)


def _size_bytes(model: ModelProto, file: Path) -> int:
    beside = onnx_format.external_files(model)
    return file.stat().st_size + sum((file.parent / name).stat().st_size for name in beside)


def _tensor(value: ValueInfoProto) -> dict[str, Any]:
    tensor = value.type.tensor_type
    shape = [
        dim.dim_value if dim.HasField("dim_value") else (dim.dim_param or None)
        for dim in tensor.shape.dim
    ]
    known = shape if tensor.HasField("shape") else None
    return {"name": value.name, "dtype": counting.dtype(tensor.elem_type), "shape": known}


def _parameters(model: ModelProto) -> dict[str, Any]:
    """Values of the weights by type; scales, zero points and whole numbers for shapes left out."""
    scales: set[str] = set()
    for node in _nodes(model.graph):
        if node.op_type in _QUANTIZE:
            scales.update(node.input[1:])
        elif node.op_type.startswith("QLinear"):
            scales.update(node.input[place] for place in (1, 2, 4, 5, 6, 7) if place < len(node.input))
    counts: Counter[str] = Counter()
    for graph in [model.graph, *_graphs(model.graph)]:
        constants = [
            each.t for node in graph.node if node.op_type == "Constant" for each in node.attribute
        ]
        for tensor in (*graph.initializer, *constants):
            kind = counting.dtype(tensor.data_type)
            if tensor.name in scales or kind in ("int64", "bool", "string", "unknown"):
                continue
            size = 1
            for dim in tensor.dims:
                size *= dim
            counts[_SHORT.get(kind, kind)] += size
    return {"parameters": sum(counts.values()), "parameters_by_type": dict(counts)}


def _precisions(model: ModelProto, types: dict[str, int]) -> Counter[tuple[str, str]]:
    """Operators by type and by what they compute in.

    An operator between DequantizeLinear and QuantizeLinear computes in integers: `int8`. One whose
    weights alone are stored as integers computes in floats: `fp32, int8 weights`.
    """
    weights = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    made_by = {name: node for node in _nodes(model.graph) for name in node.output}
    counts: Counter[tuple[str, str]] = Counter()
    for node in _nodes(model.graph):
        known = [types.get(name) or weights.get(name) for name in (*node.output[:1], *node.input[:1])]
        kind = counting.dtype(next((each for each in known if each), 0))
        precision = _SHORT.get(kind, kind)
        if node.op_type.startswith("QLinear") or node.op_type.endswith("Integer"):
            precision = "int8"
        elif node.op_type not in _QUANTIZE and precision in _SHORT.values():
            precision = _between(node, made_by, weights, types, precision)
        name = f"{node.domain}.{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        counts[name, precision] += 1
    return counts


def _between(
    node: NodeProto,
    made_by: dict[str, NodeProto],
    weights: dict[str, int],
    types: dict[str, int],
    otherwise: str,
) -> str:
    stored: list[str | None] = []
    for name in node.input[:2]:
        maker = made_by.get(name)
        if maker is None or maker.op_type != "DequantizeLinear":
            stored.append(None)
            continue
        kind = types.get(maker.input[0]) or weights.get(maker.input[0]) or 0
        stored.append(counting.dtype(kind))
    if stored and stored[0] is not None:
        return stored[0].removeprefix("u")
    if len(stored) == 2 and stored[1] is not None:
        return f"{otherwise}, {stored[1].removeprefix('u')} weights"
    return otherwise


def _nodes(graph: GraphProto) -> Iterator[NodeProto]:
    yield from graph.node
    for inner in _graphs(graph):
        yield from inner.node


def _graphs(graph: GraphProto) -> Iterator[GraphProto]:
    for node in graph.node:
        for inner in _inner(node):
            yield inner
            yield from _graphs(inner)


def _inner(node: NodeProto) -> list[GraphProto]:
    attributes = node.attribute
    return [each.g for each in attributes if each.HasField("g")] + [
        g for each in attributes for g in each.graphs
    ]
