"""Keeping in floating point what was to stay there, whatever ONNX Runtime makes of the graph.

Where a Conv, ConvTranspose or Gemm with float weights stands between DequantizeLinear and
QuantizeLinear, ONNX Runtime (from 1.21) quantizes its weights as it loads the model, with one scale for
all channels (onnxruntime pull requests 22969 and 25673, `WeightBiasQuantization`). Layers that were
left out for their accuracy lose more of it so than if they had been quantized.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli.models.onnx_graphs.graph import (
    add_initializer,
    constant,
    maker,
    remove_unread,
    remove_unread_initializers,
)
from optcli.models.onnx_graphs.operators import PRODUCTS

if TYPE_CHECKING:
    from onnx_ir import Model, Node, TensorProtocol

# ONNX Runtime's WeightBiasQuantization looks at these alone.
_PRODUCTS = PRODUCTS - {"MatMul"}


def keep_floats(model: Model) -> int:
    """Give such operators a DequantizeLinear of their own, with the scale once per channel; how many.

    Exact: the scales are all the same. ONNX Runtime leaves alone what is not dequantized by one number.
    Needs opset 13, which brought scales per channel. What joins channels (Concat) is read before it is
    rounded: OpenVINO (2026.4) does not open a model with scales per channel behind it.
    """
    import numpy as np
    import onnx_ir

    changed = 0
    for node in list(model.graph):
        back = maker(node.inputs[0], "DequantizeLinear") if node.op_type in _PRODUCTS else None
        weight = constant(node.inputs[1]) if back is not None else None
        channels = _channels(node, weight) if weight is not None else None
        grid = [constant(value) for value in back.inputs[1:]] if back is not None else []
        tensors = [tensor for tensor in grid if tensor is not None and list(tensor.shape) in ([], [1])]
        if back is None or channels is None or len(tensors) < len(grid):
            continue
        rounding = maker(back.inputs[0], "QuantizeLinear")
        if rounding is not None and maker(rounding.inputs[0], "Concat") is not None:
            node.replace_input_with(0, rounding.inputs[0])
            remove_unread(back)
            remove_unread(rounding)
            changed += 1
            continue
        repeated = [
            add_initializer(
                model.graph, f"{tensor.name}_{channels}_times", np.repeat(tensor.numpy(), channels)
            )
            for tensor in tensors
        ]
        floats = onnx_ir.Value(name=f"{node.name or node.outputs[0].name}_input_floats")
        inputs = [back.inputs[0], *repeated]
        model.graph.insert_before(
            node,
            onnx_ir.node("DequantizeLinear", inputs, {"axis": 1}, outputs=[floats], name=floats.name),
        )
        node.replace_input_with(0, floats)
        remove_unread(back)  # ONNX Runtime fuses only what has one reader
        changed += 1
    if changed:
        remove_unread_initializers(model)
    return changed


def _channels(node: Node, weight: TensorProtocol) -> int | None:
    """How many channels (features) it reads along axis 1; None where it reads them along another."""
    dims, attributes = weight.shape.numpy(), node.attributes
    if node.op_type == "Conv":
        return dims[1] * attributes.get_int("group", 1)
    if node.op_type == "ConvTranspose":
        return dims[0]
    if attributes.get_int("transA", 0):
        return None
    return dims[1 if attributes.get_int("transB", 0) else 0]
