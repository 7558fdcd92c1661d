"""Behind Concat and the like, integers stay integers, and not a bit of the result changes."""

import numpy as np
import onnx
import pytest
from quantized_onnx import applied

from optcli.passes._quantization.integer_chains import close_integer_chains, leave_softmax_in_floats

pytestmark = pytest.mark.slow
node = onnx.helper.make_node


def graph(right_scale=0.05, last="Conv", output="y"):
    """Two quantized branches, joined, pooled and convolved."""
    weights = {
        "scale": np.float32(0.05), "right_scale": np.float32(right_scale), "zero": np.uint8(3),
        "weight": np.ones((2, 4, 1, 1), np.float32),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], ["xq"]),
        node("DequantizeLinear", ["xq", "scale", "zero"], ["left"]),
        node("Relu", ["x"], ["positive"]),
        node("QuantizeLinear", ["positive", "right_scale", "zero"], ["pq"]),
        node("DequantizeLinear", ["pq", "right_scale", "zero"], ["right"]),
        node("Concat", ["left", "right"], ["joined"], axis=1),
        node("MaxPool", ["joined"], ["pooled"], kernel_shape=[2, 2]),
        node("Conv", ["pooled", "weight"], ["y"]) if last == "Conv" else node(last, ["pooled"], ["y"]),
    ]
    value = onnx.helper.make_tensor_value_info
    made = onnx.helper.make_graph(
        nodes,
        "chain",
        [value("x", onnx.TensorProto.FLOAT, [1, 2, 4, 4])],
        [value(output, onnx.TensorProto.FLOAT, [None] * 4)],
        [onnx.numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()],
    )
    return onnx.helper.make_model(made, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)


def run(model):
    import onnxruntime

    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    values = np.random.default_rng(0).standard_normal((1, 2, 4, 4)).astype(np.float32)
    return session.run(None, {"x": values})[0]


def test_pairs_are_put_behind_what_only_moves_values_and_change_nothing():
    model = graph()
    before = run(model)
    assert applied(close_integer_chains, model) == 2
    operators = [each.op_type for each in model.graph.node]
    assert operators[5:] == [
        *("Concat", "QuantizeLinear", "DequantizeLinear"),
        *("MaxPool", "QuantizeLinear", "DequantizeLinear"),
        "Conv",
    ]
    assert np.array_equal(run(model), before)
    assert applied(close_integer_chains, model) == 0


def test_what_reorders_values_moves_them_too():
    model = graph()
    pooling = next(each for each in model.graph.node if each.op_type == "MaxPool")
    pooling.op_type = "SpaceToDepth"
    pooling.attribute[0].CopyFrom(onnx.helper.make_attribute("blocksize", 1))
    assert applied(close_integer_chains, model) == 2


@pytest.mark.parametrize(
    "other", [{"right_scale": 0.06}, {"last": "Sigmoid"}, {"output": "pooled"}], ids=str
)
def test_where_it_would_change_or_gain_nothing_it_is_left_alone(other):
    model = graph(**other)
    before = run(model)
    added = applied(close_integer_chains, model)
    assert added == (0 if "right_scale" in other else 1)  # the Concat before the MaxPool remains
    assert np.array_equal(run(model), before)


def test_softmax_of_a_small_range_is_not_zero():
    """ONNX Runtime's integer Softmax gives zeros there."""
    import onnxruntime

    values = {"s1": np.float32(4e-4), "z1": np.uint8(128), "s2": np.float32(1e-4), "z2": np.uint8(0)}
    nodes = [
        node("QuantizeLinear", ["x", "s1", "z1"], ["q"]),
        node("DequantizeLinear", ["q", "s1", "z1"], ["d"]),
        node("Softmax", ["d"], ["m"], axis=-1),
        node("QuantizeLinear", ["m", "s2", "z2"], ["p"]),
        node("DequantizeLinear", ["p", "s2", "z2"], ["y"]),
    ]
    ends = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, 64]) for name in "xy"
    ]
    weights = [onnx.numpy_helper.from_array(np.array(value), name) for name, value in values.items()]
    model = onnx.helper.make_model(
        onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], weights),
        opset_imports=[onnx.helper.make_opsetid("", 13)],
        ir_version=8,
    )
    assert applied(leave_softmax_in_floats, model) == 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    (found,) = session.run(None, {"x": np.linspace(-0.05, 0.05, 64, dtype=np.float32)[None]})
    assert np.abs(found - 1 / 64).max() < 2e-3
    assert applied(leave_softmax_in_floats, model) == 0
