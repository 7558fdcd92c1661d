"""How many operators of a quantized ONNX model compute on integers."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from optcli.models.onnx_graphs.graph import read
from optcli.passes._onnx.models import count_quantized


def model(last_is_quantized):
    """Relu and Add between pairs, a Sigmoid outside of them, and an Add whose result stays a float."""
    nodes = []

    def quantized(name):
        nodes.append(helper.make_node("QuantizeLinear", [name, "scale", "zero"], [f"{name}_q"]))
        nodes.append(
            helper.make_node("DequantizeLinear", [f"{name}_q", "scale", "zero"], [f"{name}_d"])
        )
        return f"{name}_d"

    x = quantized("x")
    nodes.append(helper.make_node("Relu", [x], ["a"]))
    a = quantized("a")
    nodes.append(helper.make_node("Add", [a, x], ["b"]))
    b = quantized("b")
    nodes.append(helper.make_node("Sigmoid", ["x"], ["c"]))
    nodes.append(helper.make_node("Add", [b, a], ["d"]))
    if last_is_quantized:
        quantized("d")
    graph = helper.make_graph(
        nodes,
        "counted",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("c", "d")],
        [
            numpy_helper.from_array(np.float32(0.1), "scale"),
            numpy_helper.from_array(np.uint8(0), "zero"),
        ],
    )
    return read(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))


def test_what_reads_and_gives_integers_counts():
    assert count_quantized(model(last_is_quantized=False)) == {"Relu": 1, "Add": 1}
    assert count_quantized(model(last_is_quantized=True)) == {"Relu": 1, "Add": 2}
