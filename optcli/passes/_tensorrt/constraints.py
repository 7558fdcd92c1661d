"""What TensorRT wants of a quantized ONNX model, checked before a build.

TensorRT quantizes symmetrically to signed integers (or FP8): activations with one scale, weights with
one or with one per output channel, biases not at all. Its parser refuses some of what differs with a
text that does not help, and takes the rest without a word: an unsigned zero point of 0 is read as a
signed one, which clips everything above half of the range, and scales along a wrong axis cost the
integer kernel. NVIDIA's documentation: "Working with Quantized Types", "Explicit Quantization".

It wants pairs of QuantizeLinear and DequantizeLinear before products with weights. In front of anything
else they only round once more, and between a convolution and the addition behind it they keep TensorRT
from fusing the two. NVIDIA's documentation: "Q/DQ Layer-Placement Recommendations".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcli.errors import StepError
from optcli.models.onnx_graphs.graph import argument, array, constant, maker, remove_unread
from optcli.models.onnx_graphs.operators import DYNAMIC, MOVES_VALUES, PAIR, PRODUCTS, is_static
from optcli.models.onnx_graphs.quantized import channel_axis, dequantizer, integers, weight

if TYPE_CHECKING:
    from onnx_ir import Model, Node, Value

_TARGET = "quantize with `target: tensorrt`"

# How many one message lists; the others are counted.
_LISTED = 3


@dataclass(frozen=True)
class Violation:
    """A node that TensorRT would refuse or compute wrongly.

    `message` says what was found and what is wanted.
    """

    node: str
    operator: str
    message: str
    hint: str

    def __str__(self) -> str:
        return f"{self.operator} {self.node!r}: {self.message}"


def require_constraints(model: Model) -> None:
    """Raise `StepError` that names the nodes which TensorRT cannot take as they are quantized."""
    all_violations = violations(model)
    if not all_violations:
        return
    listed = "; ".join(str(each) for each in all_violations[:_LISTED])
    more = f"; and {len(all_violations) - _LISTED} more" if len(all_violations) > _LISTED else ""
    hint = all_violations[0].hint
    raise StepError(f"TensorRT cannot take this quantized model: {listed}{more}", hint=hint)


def violations(model: Model) -> list[Violation]:
    """Everything about the model's quantization that TensorRT refuses or misreads, in graph order."""
    return [violation for node in model.graph.all_nodes() for violation in _of_node(node)]


def _of_node(node: Node) -> Iterator[Violation]:
    def violation(message: str, hint: str = _TARGET) -> Violation:
        return Violation(str(node.name or node.outputs[0].name), node.op_type, message, hint)

    if node.op_type in DYNAMIC | {"MatMulNBits"} or is_static(node.op_type):
        yield violation(
            "an operator on integers, wanted QuantizeLinear and DequantizeLinear around the float one",
            f"{_TARGET} and `format: qdq`" if is_static(node.op_type) else _TARGET,
        )
    if node.op_type not in PAIR:
        return
    if node.domain not in ("", "ai.onnx"):
        yield violation(f"of the domain {node.domain}, wanted ONNX's own")
    scale = array(node.inputs[1])
    if scale is None:
        yield violation("a scale that is computed, wanted a constant one")
        return
    if maker(node.inputs[0], "QuantizeLinear") is None:  # else said of that one
        if not (scale.astype("float64") > 0).all():
            yield violation(
                "a scale that is not positive", "calibrate with samples that are not all zero"
            )
        if wrong := _integers(node):
            yield violation(wrong)
    per_channel = scale.size > 1 and (node.op_type == "DequantizeLinear" or weight(node) is None)
    if per_channel and (wrong := _channels(node)):
        yield violation(wrong)


def _integers(node: Node) -> str:
    """What is wrong with type and zero point; empty where nothing is."""
    from onnx_ir import DataType

    kind, point = integers(node), argument(node, 2)
    name, zero = kind.name.lower(), array(point)
    if point is not None and zero is None:
        return "a zero point that is computed, wanted 0"
    if kind == DataType.INT32:
        return "a quantized bias (int32), wanted one in floating point"
    if zero is not None and (zero.astype("float32") != 0).any():
        value = int(zero.reshape(-1)[zero.reshape(-1).astype("float32") != 0][0])
        return f"asymmetric: zero point {value} ({name}), wanted 0 (int8)"
    if kind == DataType.UINT8:
        if weight(node) is not None:
            return "unsigned weights (uint8), wanted int8"
        return (
            "unsigned (uint8), wanted int8: TensorRT reads its zero point as signed and clips all "
            "above half of the range"
        )
    allowed = (DataType.INT8, DataType.FLOAT8E4M3FN, DataType.INT4, DataType.FLOAT4E2M1)
    return "" if kind in allowed else f"quantized to {name}, wanted int8 or float8e4m3fn"


def _channels(node: Node) -> str:
    """What is wrong with a scale per channel; empty where nothing is."""
    stored = weight(node)
    if stored is None:
        quantizer = maker(node.inputs[0], "QuantizeLinear")
        is_reported = quantizer is not None and _scales(quantizer) != 1
        return "" if is_reported else f"activations with {_scales(node)} scales, wanted one"
    if node.attributes.get_int("block_size", 0):
        return ""
    rank = len(stored.shape)
    axis = node.attributes.get_int("axis", 1) % rank
    for reader, position in node.outputs[0].uses():
        lies_along: int = axis
        uses: Iterable[tuple[Node, int]] = [(reader, position)]
        if reader.op_type == "Transpose":
            order = reader.attributes.get_ints("perm", range(rank - 1, -1, -1))
            lies_along, uses = list(order).index(axis), reader.outputs[0].uses()
        for product, place in uses:
            if product.op_type not in PRODUCTS or place != 1:
                continue
            expected_axis = channel_axis(product, rank)
            if expected_axis is None:
                return f"scales per channel for {product.op_type} in groups, wanted one"
            if lies_along != expected_axis:
                return (
                    f"weights of {product.op_type} {product.name!r} with scales along axis "
                    f"{lies_along}, wanted one for all or along axis {expected_axis}"
                )
    return ""


def _scales(node: Node) -> int | None:
    """How many scales one of a pair has; None where they are computed."""
    scale = array(node.inputs[1])
    return None if scale is None else int(scale.size)


def keep_pairs_before_products(model: Model) -> int:
    """Take pairs out that no product with weights reads, past what moves values; returns how many.

    A pair that one does read is shared: a shortcut past the convolution is read as integers, too.
    """
    removed = 0
    for back in [node for node in model.graph if node.op_type == "DequantizeLinear"]:
        there, floats = maker(back.inputs[0], "QuantizeLinear"), back.outputs[0]
        if there is None or there.inputs[0] is None or weight(back) is not None:
            continue
        if floats.is_graph_output() or _leads_to_product(floats):
            continue
        floats.replace_all_uses_with(there.inputs[0])
        for node in (back, there):
            remove_unread(node)
        removed += 1
    return removed


def _leads_to_product(value: Value) -> bool:
    for reader, position in value.uses():
        if reader.op_type in PRODUCTS and _has_weights(reader):
            return True
        moves = reader.op_type == "Concat" or (reader.op_type in MOVES_VALUES and position == 0)
        if moves and any(_leads_to_product(output) for output in reader.outputs):
            return True
    return False


def _has_weights(node: Node) -> bool:
    backs = [dequantizer(value) for value in node.inputs[:2]]
    constants = [constant(value) for value in node.inputs[:2]]
    constants += [weight(back) for back in backs if back is not None]
    return any(tensor is not None for tensor in constants)
