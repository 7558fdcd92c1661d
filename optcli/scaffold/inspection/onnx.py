"""Into ONNX files: operators by precision, weights, and multiply-accumulates by shape inference.

A convolution does one per output value, input channel of its group and kernel place; a product of
matrices one per output value and inner size. Everything else is left out, as is usual
(e.g. torch.utils.flop_counter counts the same operators).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.models.formats import exporter_metadata
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.operators import (
    DYNAMIC,
    PAIR,
    PRODUCT_OF,
    is_static,
    weight_position,
)
from optcli.models.onnx_graphs.protobuf import (
    FLOATS,
    Shape,
    described_foreign,
    element_name,
    foreign_operators,
    graphs,
    inferred,
    input_names,
    precision_of,
    refused_foreign,
    short_name,
    tensor_of,
    versions_of,
    with_sizes,
)
from optcli.scaffold.inspection.findings import operations, operators
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

_QUANTIZE = PAIR | {"DynamicQuantizeLinear"}
_UNCOUNTED = frozenset(
    {
        *("LSTM", "GRU", "RNN", "Attention", "MultiHeadAttention", "Einsum", "DeformConv"),
        *("MatMulNBits", "FusedMatMul", "FusedGemm", "QAttention", "GroupQueryAttention"),
    }
)


def look(path: Path, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Look into a file, or into the `model.onnx` of a folder; `inputs` gives sizes that vary.

    Raises `InputError` and `TrustError` where it is no sound model.
    """
    from onnx import inliner

    file = path / onnx_format.FILE if path.is_dir() else path
    model = onnx_format.parsed(file)
    others = foreign_operators(model)
    if any("." not in name for name in others):
        raise refused_foreign(others, str(file))
    onnx_format.check_file(file)
    model = inliner.inline_local_functions(model)
    external = (file.parent / name for name in onnx_format.external_files(model))
    smallest = {spec.name: spec.concrete(spec.batch_range().min) for spec in inputs}
    fixed, left = with_sizes(model, smallest)
    shapes, types = inferred(fixed)
    findings: dict[str, Any] = {
        "precision": precision_of(model),
        "size_bytes": sum(each.stat().st_size for each in (file, *external)),
        "inputs": [tensor_of(v) for v in model.graph.input if v.name in input_names(model)],
        "outputs": [tensor_of(value) for value in model.graph.output],
        "operators": operators(_precisions(model, types)),
        "metadata": exporter_metadata.of_onnx(model),
        "facts": versions_of(model),
        **_parameters(model),
    }
    notes = [described_foreign(others)] if others else []
    if left:
        note = f"operations are not counted: the size of {', '.join(left)} is not fixed"
        return {**findings, "notes": [*notes, note]}
    counted = _count_operations(fixed.graph, shapes)
    if counted.unknown:
        text = ", ".join(f"{count} {name}" for name, count in sorted(counted.unknown.items()))
        note = f"operations are not counted: shape inference gives no shape to {text}"
        return {**findings, "notes": [*notes, note]}
    at = {name: shapes[name] for name in input_names(model)}
    if len([*graphs(model.graph)]) > 1:
        notes.append("operators inside If, Loop and Scan are listed, and not counted in the operations")
    return {
        **findings,
        "operations": operations(counted.macs, at, counted.uncounted),
        "notes": notes,
    }


def _parameters(model: ModelProto) -> dict[str, Any]:
    """Values of the weights by type; scales, zero points and whole numbers for shapes left out."""
    scales: set[str] = set()
    for node in (node for graph in graphs(model.graph) for node in graph.node):
        if node.op_type in _QUANTIZE:
            scales.update(node.input[1:])
        elif node.op_type.startswith("QLinear"):
            scales.update(node.input[place] for place in (1, 2, 4, 5, 6, 7) if place < len(node.input))
    counts: Counter[str] = Counter()
    for graph in graphs(model.graph):
        constants = [
            each.t for node in graph.node if node.op_type == "Constant" for each in node.attribute
        ]
        for tensor in (*graph.initializer, *constants):
            kind = element_name(tensor.data_type)
            if tensor.name in scales or kind in ("int64", "bool", "string", "unknown"):
                continue
            counts[short_name(tensor.data_type)] += math.prod(tensor.dims)
    return {"parameters": sum(counts.values()), "parameters_by_type": dict(counts)}


def _precisions(model: ModelProto, types: dict[str, int]) -> Counter[tuple[str, str]]:
    """Operators by type and by what they compute in.

    An operator between DequantizeLinear and QuantizeLinear computes in integers: `int8`. One whose
    weights alone are stored as integers computes in floats: `fp32, int8 weights`.
    """
    weights = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    # Not by onnx_ir: files from elsewhere may have maps, which it does not read.
    nodes = [node for graph in graphs(model.graph) for node in graph.node]
    made_by = {name: node for node in nodes for name in node.output}
    counts: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        kinds = [types.get(name) or weights.get(name) for name in (*node.output[:1], *node.input[:1])]
        precision = short_name(next((each for each in kinds if each), 0))
        if is_static(node.op_type) or node.op_type in DYNAMIC - _QUANTIZE:
            precision = "int8"
        elif node.op_type not in _QUANTIZE and precision in FLOATS | {"fp8"}:
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
        stored.append(element_name(kind))
    if stored and stored[0] is not None:
        return stored[0].removeprefix("u")
    if len(stored) == 2 and stored[1] is not None:
        return f"{otherwise}, {stored[1].removeprefix('u')} weights"
    return otherwise


@dataclass
class _Count:
    """`unknown` counts operators whose shapes inference did not give, `uncounted` those left out."""

    macs: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    uncounted: Counter[str] = field(default_factory=Counter)


def _count_operations(graph: GraphProto, shapes: Mapping[str, Shape]) -> _Count:
    """The multiply-accumulates of a graph whose shapes are known."""
    total = _Count()
    for node in graph.node:
        if node.op_type in _UNCOUNTED:
            total.uncounted[node.op_type] += 1
        elif node.op_type in PRODUCT_OF:
            try:
                total.macs += _macs(node, shapes)
            except (KeyError, IndexError):
                total.unknown[node.op_type] += 1
    return total


def _macs(node: NodeProto, shapes: Mapping[str, Shape]) -> int:
    """Weights of a convolution are [out, in of one group, *kernel]; transposed, [in, out, *kernel]."""
    kind = PRODUCT_OF[node.op_type]
    second = shapes[node.input[weight_position(node.op_type)]]
    if kind in ("Conv", "ConvTranspose"):
        positions = shapes[node.output[0] if kind == "Conv" else node.input[0]]
        return math.prod(positions) * math.prod(second[1:])
    first = shapes[node.input[0]]
    turned = kind == "Gemm" and any(each.name == "transA" and each.i for each in node.attribute)
    inner = first[0 if turned else -1]
    if node.output[0] in shapes:
        return math.prod(shapes[node.output[0]]) * inner
    if len(second) == 2:  # ONNX Runtime's own operators, which shape inference does not know
        return math.prod(first) * math.prod(second) // inner
    raise KeyError(node.output[0])
