"""Multiply-accumulates of an ONNX graph, counted exactly from its shapes.

A convolution does one per output value, input channel of its group and kernel place; a product of
matrices one per output value and inner size. Everything else is left out, as is usual
(e.g. torch.utils.flop_counter counts the same operators).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from optcli.onnx_graphs.interface import input_names

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto

# Operator: positions of its data and of its weights among the inputs.
_CONVOLUTIONS = {"Conv": (0, 1), "QLinearConv": (0, 3), "ConvInteger": (0, 1), "FusedConv": (0, 1)}
_PRODUCTS = {
    "MatMul": (0, 1),
    "QLinearMatMul": (0, 3),
    "MatMulInteger": (0, 1),
    "Gemm": (0, 1),
    "QGemm": (0, 3),
    "MatMulIntegerToFloat": (0, 1),
    "DynamicQuantizeMatMul": (0, 1),
}
_UNCOUNTED = frozenset(
    {
        *("LSTM", "GRU", "RNN", "Attention", "MultiHeadAttention", "Einsum", "DeformConv"),
        *("MatMulNBits", "FusedMatMul", "FusedGemm", "QAttention", "GroupQueryAttention"),
    }
)

Shape = tuple[int, ...]


@dataclass
class Count:
    """`unknown` counts operators whose shapes inference did not give, `uncounted` those left out."""

    macs: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    uncounted: Counter[str] = field(default_factory=Counter)


def dtype(element: int) -> str:
    """The name of an ONNX element type: `float32`, `int4`; `unknown` where nothing is known."""
    from onnx import TensorProto

    if not element:
        return "unknown"
    name = str(TensorProto.DataType.Name(element)).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def with_sizes(model: ModelProto, sizes: Mapping[str, Sequence[int]]) -> tuple[ModelProto, list[str]]:
    """A copy whose inputs have these sizes, and the names of sizes that are still not known.

    A first dimension that varies is a batch, and is 1 where nothing else is said.
    """
    import onnx

    fixed = onnx.ModelProto()
    fixed.CopyFrom(model)
    left: list[str] = []
    for value in fixed.graph.input:
        if value.name not in input_names(model):
            continue
        wanted = sizes.get(value.name)
        for index, dim in enumerate(value.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                continue
            if wanted is not None and len(wanted) == len(value.type.tensor_type.shape.dim):
                dim.dim_value = wanted[index]
            elif index == 0:
                dim.dim_value = 1
            else:
                left.append(f"{value.name}[{index}]" + (f" ({dim.dim_param})" if dim.dim_param else ""))
    # What the file says of shapes further on speaks of the sizes that varied.
    del fixed.graph.value_info[:]
    for value in fixed.graph.output:
        value.type.tensor_type.ClearField("shape")
    return fixed, left


def inferred(model: ModelProto) -> tuple[dict[str, Shape], dict[str, int]]:
    """Shapes, where all sizes are known, and element types of every value, by name."""
    from onnx import shape_inference

    graph = shape_inference.infer_shapes(model, data_prop=True).graph
    shapes: dict[str, Shape] = {}
    types: dict[str, int] = {}
    for value in (*graph.input, *graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        types[value.name] = tensor.elem_type
        dims = tensor.shape.dim
        if tensor.HasField("shape") and all(dim.HasField("dim_value") for dim in dims):
            shapes[value.name] = tuple(dim.dim_value for dim in dims)
    for weight in graph.initializer:
        shapes[weight.name] = tuple(weight.dims)
        types[weight.name] = weight.data_type
    return shapes, types


def count(graph: GraphProto, shapes: Mapping[str, Shape]) -> Count:
    """The multiply-accumulates of a graph whose shapes are known."""
    found = Count()
    for node in graph.node:
        macs = None
        try:
            if node.op_type in _CONVOLUTIONS:
                macs = _convolution(node, shapes)
            elif node.op_type == "ConvTranspose":
                weights = shapes[node.input[1]]
                macs = math.prod(shapes[node.input[0]]) * math.prod(weights[1:])
            elif node.op_type in _PRODUCTS:
                macs = _product(node, shapes)
            else:
                found.uncounted[node.op_type] += node.op_type in _UNCOUNTED
                continue
        except (KeyError, IndexError):
            found.unknown[node.op_type] += 1
            continue
        found.macs += macs
    found.uncounted = +found.uncounted
    return found


def _convolution(node: NodeProto, shapes: Mapping[str, Shape]) -> int:
    """Weights are [out, in of one group, *kernel]."""
    weights = shapes[node.input[_CONVOLUTIONS[node.op_type][1]]]
    return math.prod(shapes[node.output[0]]) * math.prod(weights[1:])


def _product(node: NodeProto, shapes: Mapping[str, Shape]) -> int:
    first, second = (shapes[node.input[place]] for place in _PRODUCTS[node.op_type])
    flags = {each.name: each.i for each in node.attribute}
    inner = first[0] if node.op_type in ("Gemm", "QGemm") and flags.get("transA") else first[-1]
    if node.output[0] in shapes:
        return math.prod(shapes[node.output[0]]) * inner
    if len(second) == 2:  # ONNX Runtime's own operators, which shape inference does not know
        return math.prod(first) * math.prod(second) // inner
    raise KeyError(node.output[0])
