"""Whether weights have the 2:4 pattern that NVIDIA's sparse kernels want: two zeros in every four."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli.onnx_graphs.graph import array, read
from optcli.onnx_graphs.quantized import behind

if TYPE_CHECKING:
    from onnx import ModelProto

# Where the input channels of a weight lie.
_INPUT_AXES = {"Conv": 1, "Gemm": 0, "MatMul": -2}


def two_of_four(model: ModelProto) -> tuple[int, int]:
    """How many weights of convolutions and matrix products have the pattern, and how many there are."""
    import numpy as np

    sparse = total = 0
    for node in read(model).graph:
        if node.op_type not in _INPUT_AXES or len(node.inputs) < 2:
            continue
        weights = array(behind(node.inputs[1], "Cast", "Identity"))
        if weights is None or weights.ndim < 2:
            continue
        turned = node.op_type == "Gemm" and bool(node.attributes.get_int("transB", 0))
        weights = np.moveaxis(weights, 1 if turned else _INPUT_AXES[node.op_type], -1)
        total += 1
        if weights.shape[-1] % 4 == 0:
            fours = weights.reshape(-1, 4)
            sparse += bool(((fours != 0).sum(axis=1) <= 2).all())
    return sparse, total
