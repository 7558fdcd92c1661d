"""The types that an ONNX model stores and computes in."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

from optcli.models.onnx_graphs.interface import element_name, graphs
from optcli.models.onnx_graphs.operators import DYNAMIC, PAIR, is_static

if TYPE_CHECKING:
    from onnx import ModelProto

_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
FLOATS = frozenset(_SHORT.values())
_FP8 = ("float8e4m3fn", "float8e5m2")


def short_name(element: int) -> str:
    """The short name of an element type, as optcli reports it: `fp32`, `fp8`, `int8`."""
    name = element_name(element)
    return "fp8" if name in _FP8 else _SHORT.get(name, name)


def precision_of(model: ModelProto) -> str:
    """What the model computes in: the integers it quantizes to, else the type of most of its weights.

    `int8`, `fp8`: activations too; `int8-a16`: these with 16 bits; `int8-dynamic`: their ranges are
    found at run time; `int8-weights` and `int4-weights`: weights alone, computed in floating point.
    """
    inner = list(graphs(model.graph))
    operators = {node.op_type for graph in inner for node in graph.node}
    values: Counter[str] = Counter()
    for tensor in (tensor for graph in inner for tensor in graph.initializer):
        values[element_name(tensor.data_type)] += math.prod(tensor.dims)
    if "QuantizeLinear" in operators or any(map(is_static, operators)):
        if {"uint16", "int16"} & values.keys():
            return "int8-a16"
        return "fp8" if "float8e4m3fn" in values else "int8"
    if operators & DYNAMIC:
        return "int8-dynamic"
    if operators & {*PAIR, "MatMulNBits"}:
        has_four_bits = "MatMulNBits" in operators or {"int4", "uint4"} & values.keys()
        return "int4-weights" if has_four_bits else "int8-weights"
    floats = {short: values[name] for name, short in _SHORT.items() if name in values}
    return max(floats, key=lambda name: floats[name]) if floats else "fp32"
