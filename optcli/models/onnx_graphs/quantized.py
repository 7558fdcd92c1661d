"""Quantized graphs: QuantizeLinear and DequantizeLinear looked through, and what they compute.

The form is that of ONNX Runtime's "QDQ": a floating-point operator between pairs of the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from optcli.models.onnx_graphs.graph import argument, array, constant, maker
from optcli.models.onnx_graphs.operators import MOVES_VALUES, PAIR

if TYPE_CHECKING:
    import numpy as np
    from onnx_ir import DataType, Model, Node, TensorProtocol, Value


def pairs(model: Model) -> Iterator[Node]:
    """Every QuantizeLinear and DequantizeLinear."""
    return (node for node in model.graph.all_nodes() if node.op_type in PAIR)


def integers(node: Node) -> DataType:
    """The type that one of a pair quantizes to or dequantizes from."""
    from onnx_ir import DataType

    zero, stored = constant(argument(node, 2)), constant(node.inputs[0])
    if zero is not None:
        return zero.dtype
    if node.op_type == "QuantizeLinear":
        return DataType(node.attributes.get_int("output_dtype", 0) or DataType.UINT8)
    if stored is not None:
        return stored.dtype
    before = maker(node.inputs[0], "QuantizeLinear")
    return integers(before) if before is not None else DataType.UINT8


def weight(node: Node) -> TensorProtocol | None:
    """The constant that one of a pair quantizes or dequantizes; None for activations."""
    before = maker(node.inputs[0], "QuantizeLinear")
    return constant((before or node).inputs[0])


def dequantizer(value: Value | None) -> Node | None:
    """The DequantizeLinear that a value comes from, past what only moves values or casts them."""
    node = maker(value)
    while node is not None and node.op_type in MOVES_VALUES | {"Cast"}:
        node = maker(node.inputs[0])
    return node if node is not None and node.op_type == "DequantizeLinear" else None


def behind(value: Value | None, *operators: str) -> Value | None:
    """The value that another is made from, past pairs and past operators of the types."""
    while (node := maker(value, *PAIR, *operators)) is not None:
        value = node.inputs[0]
    return value


def channel_axis(node: Node, rank: int) -> int | None:
    """The axis of a product's second input that becomes the channels of its output.

    None where one scale for all is all there is: a transposed convolution in groups.
    """
    if node.op_type == "ConvTranspose":
        return 1 if node.attributes.get_int("group", 1) == 1 else None
    if node.op_type == "Gemm":
        return 0 if node.attributes.get_int("transB", 0) else 1
    return 0 if node.op_type == "Conv" else rank - 1


def along(scale: np.ndarray, rank: int, axis: int) -> np.ndarray:
    """A scale or zero point in the shape that multiplies a tensor of that rank along an axis."""
    if scale.size == 1:
        return scale.reshape(())
    shape = [1] * rank
    shape[axis % rank] = scale.size
    return scale.reshape(shape)


def quantize(
    values: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, axis: int, kind: DataType
) -> np.ndarray:
    """What QuantizeLinear makes of numbers: integers, or numbers of eight bits, of the type."""
    import numpy as np

    steps = values.astype(np.float32) / along(scale, values.ndim, axis).astype(np.float32)
    if kind.is_integer():
        steps = np.rint(steps)
    if zero is not None:
        steps = steps + along(zero, values.ndim, axis).astype(np.float32)
    return np.asarray(steps.clip(float(kind.min), float(kind.max)).astype(kind.numpy()))


def dequantize(
    values: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, axis: int
) -> np.ndarray | None:
    """What DequantizeLinear makes of numbers, in float32; None where its scales are those of blocks."""
    import numpy as np

    if scale.size > 1 and (scale.ndim > 1 or scale.size != values.shape[axis % values.ndim]):
        return None
    shifted = values.astype(np.float32)
    if zero is not None:
        shifted = shifted - along(zero, values.ndim, axis).astype(np.float32)
    return np.asarray(shifted * along(scale, values.ndim, axis).astype(np.float32))


def numbers(value: Value | None) -> np.ndarray | None:
    """The numbers of a constant, or of what pairs, casts and copies make of one; None for others.

    Also None where scales are those of blocks.
    """
    node = maker(value, *PAIR, "Cast", "Identity")
    if node is None:
        return array(value)
    if node.op_type not in PAIR:
        return numbers(node.inputs[0])
    values, scale, zero = (numbers(argument(node, position)) for position in range(3))
    if values is None or scale is None:
        return None
    axis = node.attributes.get_int("axis", 1)
    if node.op_type == "QuantizeLinear":
        return quantize(values, scale, zero, axis, integers(node))
    return dequantize(values, scale, zero, axis)
