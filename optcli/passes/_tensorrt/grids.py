"""The grids that TensorRT quantizes to: signed and symmetric integers, or FP8, and weights on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optcli.models.onnx_graphs.graph import (
    add_initializer,
    argument,
    array,
    constant,
    remove_unread_initializers,
    set_array,
)
from optcli.models.onnx_graphs.quantized import integers, numbers, pairs, quantize, weight

if TYPE_CHECKING:
    import numpy as np
    from onnx_ir import Model, Node, Value

# The largest number of FLOAT8E4M3FN, and of INT8 as TensorRT uses it for weights.
FP8_LARGEST = 448.0
INT8_LARGEST = 127


def make_signed(model: Model) -> int:
    """Turn the grids of activations into symmetric ones of int8; returns how many were not.

    The largest value of the old grid is the largest of the new one: no value is clipped that was not,
    and steps are twice as wide where all values were on one side of zero.
    """
    import numpy as np
    from onnx_ir import DataType

    changed = 0
    for node in [node for node in pairs(model) if node.op_type == "QuantizeLinear"]:
        kind, scale, point = integers(node), array(node.inputs[1]), argument(node, 2)
        zero = array(point) if point is not None else np.zeros(())
        eight_bits = kind in (DataType.UINT8, DataType.INT8)
        if weight(node) is not None or not eight_bits or scale is None or zero is None:
            continue
        low, high = (0, 255) if kind == DataType.UINT8 else (-128, 127)
        middle = zero.astype(np.float64)
        if kind == DataType.INT8 and not middle.any():
            continue
        largest = np.maximum(middle - low, high - middle) * scale
        _regrid(model, node, (largest / INT8_LARGEST).astype(scale.dtype), np.int8)
        changed += 1
    return changed


def make_fp8(model: Model) -> int:
    """Turn grids of int8 into those of FLOAT8E4M3FN with the same largest value; returns how many.

    Weights must be in floating point (before a QuantizeLinear); `fold_weights` stores them. Needs
    opset 19.
    """
    import ml_dtypes

    nodes = [node for node in pairs(model) if node.op_type == "QuantizeLinear"]
    for node in nodes:
        scale = array(node.inputs[1])
        if scale is not None:
            wider = (scale * (INT8_LARGEST / FP8_LARGEST)).astype(scale.dtype)
            _regrid(model, node, wider, ml_dtypes.float8_e4m3fn)
    return len(nodes)


def fit_scales_to_half(model: Model) -> int:
    """Round scales up to numbers of fp16, and stored weights anew where that moves them; how many.

    Under strong typing scales have the type that the operators compute in. A scale below 6e-5 has few
    bits there: the weights would all be off by one factor.
    """
    import numpy as np
    from onnx_ir import DataType

    fitted: dict[Value, np.ndarray] = {}
    moved: list[Value] = []
    for value in dict.fromkeys(node.inputs[1] for node in pairs(model)):
        tensor = constant(value)
        if value is None or tensor is None or tensor.dtype != DataType.FLOAT:
            continue
        before = tensor.numpy()
        half = np.maximum(before.astype(np.float16), np.float16(2**-24))
        half = np.where(half < before, np.nextafter(half, np.float16(np.inf)), half)
        fitted[value] = half.astype(np.float32)
        moved += [value] if (half > before * 1.002).any() else []
    stored = {
        node.inputs[0]: (node, numbers(node.outputs[0]))
        for node in (reader for value in moved for reader in value.consumers())
        if node.op_type == "DequantizeLinear" and constant(node.inputs[0]) is not None
    }
    for value, scale in fitted.items():
        set_array(value, scale)
    for weights, (node, floats) in stored.items():
        scale_now = array(node.inputs[1])
        if weights is not None and floats is not None and scale_now is not None:
            axis = node.attributes.get_int("axis", 1)
            set_array(weights, quantize(floats, scale_now, None, axis, integers(node)))
    return len(moved)


def _regrid(model: Model, node: Node, scale: np.ndarray, kind: Any) -> None:
    """Give a QuantizeLinear, and the DequantizeLinear behind it, another scale, zero point and type."""
    import numpy as np

    initializers, output = model.graph.initializers, node.outputs[0]
    names = [f"{output.name}_{part}" for part in ("scale_symmetric", "zero")]
    names = [name if name not in initializers else f"{name}_{len(initializers)}" for name in names]
    arrays = (scale, np.zeros(scale.shape, kind))
    grid = [add_initializer(model.graph, *each) for each in zip(names, arrays, strict=True)]
    after = [reader for reader in output.consumers() if reader.op_type == "DequantizeLinear"]
    for each in (node, *after):
        each.resize_inputs(3)
        for position, value in enumerate(grid, 1):
            each.replace_input_with(position, value)
    output.type = output.shape = None  # which were noted for another type


def fold_weights(model: Model) -> int:
    """Store weights that QuantizeLinear would quantize as what comes out of it; returns how many."""
    folded = 0
    for node in [node for node in pairs(model) if node.op_type == "QuantizeLinear"]:
        output = node.outputs[0]
        values = numbers(output) if constant(node.inputs[0]) is not None else None
        if values is None or node.graph is None:
            continue
        stored = add_initializer(model.graph, str(output.name), values)
        output.replace_all_uses_with(stored, replace_graph_outputs=True)
        node.graph.remove(node, safe=True)
        folded += 1
    remove_unread_initializers(model)
    return folded


def declare_kernels(model: Model) -> int:
    """Say how large the kernels of convolutions are, where their weights are dequantized; how many.

    ONNX lets a convolution leave `kernel_shape` out. TensorRT 8.6 then takes the size from weights that
    are a constant, and refuses others: "The input tensor shape misaligns with the input kernel shape".
    """
    import onnx_ir

    declared = 0
    for node in model.graph.all_nodes():
        if node.op_type not in ("Conv", "ConvTranspose") or "kernel_shape" in node.attributes:
            continue
        values = numbers(node.inputs[1]) if constant(node.inputs[1]) is None else None
        if values is not None:
            node.attributes.add(onnx_ir.AttrInt64s("kernel_shape", values.shape[2:]))
            declared += 1
    return declared


def unfold_weights(model: Model) -> int:
    """Store quantized weights as floats before a QuantizeLinear: TensorRT 8 wants them so; how many.

    Exact: every number lies on its grid. Its parser refuses a DequantizeLinear of constants with "only
    activation types allowed as input to this layer" (NVIDIA/TensorRT issue 3360).
    """
    import onnx_ir

    unfolded = 0
    for node in [node for node in pairs(model) if node.op_type == "DequantizeLinear"]:
        stored, scale = node.inputs[0], array(node.inputs[1])
        values = numbers(node.outputs[0]) if constant(stored) is not None else None
        if stored is None or scale is None or values is None or node.graph is None:
            continue
        floats = add_initializer(model.graph, f"{stored.name}_floats", values.astype(scale.dtype))
        quantized = onnx_ir.Value(name=f"{node.outputs[0].name}_quantized")
        along = {"axis": node.attributes.get_int("axis", 1)} if scale.size > 1 else {}
        inputs = [floats, *node.inputs[1:]]
        before = onnx_ir.node("QuantizeLinear", inputs, along, outputs=[quantized], name=quantized.name)
        node.graph.insert_before(node, before)
        node.replace_input_with(0, quantized)
        unfolded += 1
    remove_unread_initializers(model)
    return unfolded
