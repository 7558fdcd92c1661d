"""Whether weights have the 2:4 pattern that NVIDIA's sparse kernels want: two zeros in every four."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto

# Where the input channels of a weight lie.
_INPUT_AXES = {"Conv": 1, "Gemm": 0, "MatMul": -2}
_SEEN_THROUGH = ("DequantizeLinear", "QuantizeLinear", "Cast", "Identity")


def two_of_four(model: ModelProto) -> tuple[int, int]:
    """How many weights of convolutions and matrix products have the pattern, and how many there are."""
    import numpy as np
    from onnx import helper, numpy_helper

    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    made_by = {name: node for node in model.graph.node for name in node.output}
    sparse = total = 0
    for node in model.graph.node:
        if node.op_type not in _INPUT_AXES or len(node.input) < 2:
            continue
        name = node.input[1]
        while name in made_by and made_by[name].op_type in _SEEN_THROUGH:
            name = made_by[name].input[0]
        if name not in constants or len(constants[name].dims) < 2:
            continue
        axis = _INPUT_AXES[node.op_type]
        attributes = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type == "Gemm" and attributes.get("transB"):
            axis = 1
        weights = np.moveaxis(numpy_helper.to_array(constants[name]), axis, -1)
        total += 1
        if weights.shape[-1] % 4 == 0:
            fours = weights.reshape(-1, 4)
            sparse += bool(((fours != 0).sum(axis=1) <= 2).all())
    return sparse, total
