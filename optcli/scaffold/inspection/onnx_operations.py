"""Multiply-accumulates of an ONNX graph, counted exactly from its shapes.

A convolution does one per output value, input channel of its group and kernel place; a product of
matrices one per output value and inner size. Everything else is left out, as is usual
(e.g. torch.utils.flop_counter counts the same operators).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from optcli.models.onnx_graphs.operators import PRODUCT_OF, weight_position
from optcli.models.onnx_graphs.protobuf import Shape

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

_UNCOUNTED = frozenset(
    {
        *("LSTM", "GRU", "RNN", "Attention", "MultiHeadAttention", "Einsum", "DeformConv"),
        *("MatMulNBits", "FusedMatMul", "FusedGemm", "QAttention", "GroupQueryAttention"),
    }
)


@dataclass
class Count:
    """`unknown` counts operators whose shapes inference did not give, `uncounted` those left out."""

    macs: int = 0
    unknown: Counter[str] = field(default_factory=Counter)
    uncounted: Counter[str] = field(default_factory=Counter)


def count(graph: GraphProto, shapes: Mapping[str, Shape]) -> Count:
    """The multiply-accumulates of a graph whose shapes are known."""
    total = Count()
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
