"""What TensorRT wants of a quantized ONNX model, checked before a build.

TensorRT quantizes symmetrically to signed integers (or FP8): activations with one scale, weights with
one or with one per output channel, biases not at all. Its parser refuses some of what differs with a
text that does not help, and takes the rest without a word: an unsigned zero point of 0 is read as a
signed one, which clips everything above half of the range, and scales along a wrong axis cost the
integer kernel. NVIDIA's documentation: "Working with Quantized Types", "Explicit Quantization".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcli.errors import StepError
from optcli.passes._quantization.quantized_graph import (
    PAIR,
    PRODUCTS,
    QuantizedGraph,
    channel_axis,
    option,
)

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_TARGET = "quantize with `target: tensorrt`"

# Operators on integers that are no pairs of QuantizeLinear and DequantizeLinear.
_INTEGER_OPERATORS = frozenset(
    {"ConvInteger", "MatMulInteger", "MatMulIntegerToFloat", "DynamicQuantizeLinear", "MatMulNBits"}
    | {"DynamicQuantizeMatMul", "DynamicQuantizeLSTM"}
)

# How many are told in one message; the others are counted.
_TOLD = 3


@dataclass(frozen=True)
class Violation:
    """A node that TensorRT would refuse or compute wrongly; `found` says what is there, and wanted."""

    node: str
    operator: str
    found: str
    hint: str

    def __str__(self) -> str:
        return f"{self.operator} {self.node!r}: {self.found}"


def require_constraints(model: ModelProto) -> None:
    """Raise `StepError` that names the nodes which TensorRT cannot take as they are quantized."""
    found = violations(model)
    if not found:
        return
    told = "; ".join(str(each) for each in found[:_TOLD])
    more = f"; and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
    hints = dict.fromkeys(each.hint for each in found)
    raise StepError(f"TensorRT cannot take this quantized model: {told}{more}", hint=next(iter(hints)))


def violations(model: ModelProto) -> list[Violation]:
    """Everything about the model's quantization that TensorRT refuses or misreads, in graph order."""
    graph = QuantizedGraph(model)
    return [violation for node in graph.nodes for violation in _of_node(graph, node)]


def _of_node(graph: QuantizedGraph, node: NodeProto) -> Iterator[Violation]:
    def violation(found: str, hint: str = _TARGET) -> Violation:
        return Violation(node.name or node.output[0], node.op_type, found, hint)

    if node.op_type in _INTEGER_OPERATORS or node.op_type.startswith("QLinear"):
        yield violation(
            "an operator on integers, wanted QuantizeLinear and DequantizeLinear around the float one",
            f"{_TARGET} and `format: qdq`" if node.op_type.startswith("QLinear") else _TARGET,
        )
    if node.op_type not in PAIR:
        return
    if node.domain not in ("", "ai.onnx"):
        yield violation(f"of the domain {node.domain}, wanted ONNX's own")
    scale = graph.array(node.input[1])
    if scale is None:
        yield violation("a scale that is computed, wanted a constant one")
        return
    there = graph.made_by.get(node.input[0])
    if there is None or there.op_type != "QuantizeLinear":  # else said of that one
        if not (scale.astype("float64") > 0).all():
            yield violation(
                "a scale that is not positive", "calibrate with samples that are not all zero"
            )
        found = _integers(graph, node)
        if found:
            yield violation(found)
    if scale.size > 1 and (node.op_type == "DequantizeLinear" or graph.weight(node) is None):
        found = _channels(graph, node)
        if found:
            yield violation(found)


def _integers(graph: QuantizedGraph, node: NodeProto) -> str:
    """What is wrong with type and zero point; empty where nothing is."""
    from onnx import TensorProto

    kind = graph.integers(node)
    name = TensorProto.DataType.Name(kind).lower()
    zero = graph.array(node.input[2]) if len(node.input) > 2 and node.input[2] else None
    if len(node.input) > 2 and node.input[2] and zero is None:
        return "a zero point that is computed, wanted 0"
    if kind == TensorProto.INT32:
        return "a quantized bias (int32), wanted one in floating point"
    if zero is not None and (zero.astype("float32") != 0).any():
        value = int(zero.reshape(-1)[zero.reshape(-1).astype("float32") != 0][0])
        return f"asymmetric: zero point {value} ({name}), wanted 0 (int8)"
    if kind == TensorProto.UINT8:
        if graph.weight(node) is not None:
            return "unsigned weights (uint8), wanted int8"
        return (
            "unsigned (uint8), wanted int8: TensorRT reads its zero point as signed and clips all "
            "above half of the range"
        )
    wanted = (TensorProto.INT8, TensorProto.FLOAT8E4M3FN, TensorProto.INT4, TensorProto.FLOAT4E2M1)
    return "" if kind in wanted else f"quantized to {name}, wanted int8 or float8e4m3fn"


def _channels(graph: QuantizedGraph, node: NodeProto) -> str:
    """What is wrong with a scale per channel; empty where nothing is."""
    weight = graph.weight(node)
    if weight is None:
        there = graph.made_by.get(node.input[0])
        said = there is not None and there.op_type == "QuantizeLinear" and graph.scales(there) != 1
        return "" if said else f"activations with {graph.scales(node)} scales, wanted one"
    if option(node, "block_size", 0):
        return ""
    rank = len(weight.dims)
    axis = int(option(node, "axis", 1)) % rank
    for reader in graph.readers[node.output[0]]:
        if reader.op_type == "Transpose":
            turned = list(option(reader, "perm", range(rank - 1, -1, -1)))
            readers, found = graph.readers[reader.output[0]], turned.index(axis)
            found_in = reader.output[0]
        else:
            readers, found, found_in = [reader], axis, node.output[0]
        for product in readers:
            if product.op_type not in PRODUCTS or list(product.input).index(found_in) != 1:
                continue
            wanted = channel_axis(product, rank)
            if wanted is None:
                return f"scales per channel for {product.op_type} in groups, wanted one"
            if found != wanted:
                return (
                    f"weights of {product.op_type} {product.name!r} with scales along axis {found}, "
                    f"wanted one for all or along axis {wanted}"
                )
    return ""
