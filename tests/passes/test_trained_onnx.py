"""Trained ONNX graphs: weights become integers and batch norms are folded, and nothing else changes."""

from collections import Counter

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from optcli.models.onnx_graphs.graph import read, written
from optcli.passes._torch.fake_quantizers import fold_batch_norms, keep_integer_weights

pytestmark = pytest.mark.slow


def model(nodes, tensors, shape):
    initializers = [numpy_helper.from_array(array, name) for name, array in tensors.items()]
    image = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * len(shape))
    graph = helper.make_graph(nodes, "graph", [image], [output], initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(made)
    return made


def computed(made, values):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(made.SerializeToString(), options)
    return session.run(None, {"x": values})[0]


def operators(made):
    return Counter(node.op_type for node in made.graph.node)


def changed(made, *steps):
    graph = read(made)
    counts = [step(graph) for step in steps]
    result = written(graph)
    onnx.checker.check_model(result)
    return counts, result


def norm(channels, generator):
    return {
        "gamma": np.where(np.arange(channels) % 3 == 0, -1, 1).astype(np.float32)
        * generator.uniform(0.5, 2, channels).astype(np.float32)
        * (np.arange(channels) != 1),
        "beta": generator.standard_normal(channels).astype(np.float32),
        "mean": generator.standard_normal(channels).astype(np.float32),
        "variance": generator.uniform(0.1, 3, channels).astype(np.float32),
    }


@pytest.mark.parametrize(
    ("kind", "shape", "axis", "bias"),
    [
        ("Conv", (6, 4, 3, 3), 0, False),
        ("Conv", (6, 4, 3, 3), 0, True),
        ("ConvTranspose", (4, 6, 3, 3), 1, True),
        ("Gemm", (6, 4), 0, True),
    ],
)
def test_a_batch_norm_becomes_part_of_the_scales(kind, shape, axis, bias):
    generator = np.random.default_rng(0)
    tensors = {
        "w": np.clip(generator.standard_normal(shape), -1, 1).astype(np.float32),
        "scale": generator.uniform(0.01, 0.02, 6).astype(np.float32),
        "zero": np.zeros(6, np.int8),
        **({"bias": generator.standard_normal(6).astype(np.float32)} if bias else {}),
        **norm(6, generator),
    }
    attributes = {"transB": 1} if kind == "Gemm" else {}
    nodes = [
        helper.make_node("QuantizeLinear", ["w", "scale", "zero"], ["wq"], axis=axis),
        helper.make_node("DequantizeLinear", ["wq", "scale", "zero"], ["wd"], axis=axis),
        helper.make_node(kind, ["x", "wd", *(["bias"] if bias else [])], ["z"], **attributes),
        helper.make_node(
            "BatchNormalization", ["z", "gamma", "beta", "mean", "variance"], ["n"], epsilon=0.01
        ),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    size = (2, 4) if kind == "Gemm" else (2, 4, 8, 8)
    made = model(nodes, tensors, size)
    counts, folded = changed(made, keep_integer_weights, fold_batch_norms)
    assert counts == [1, 1]
    assert operators(folded) == {"DequantizeLinear": 1, kind: 1, "Relu": 1}
    values = generator.standard_normal(size).astype(np.float32)
    np.testing.assert_allclose(computed(folded, values), computed(made, values), atol=1e-4)


def test_what_others_read_and_what_lies_otherwise_is_left_alone():
    generator = np.random.default_rng(0)
    tensors = {
        "w": np.clip(generator.standard_normal((6, 6)), -1, 1).astype(np.float32),
        "scale": np.full(6, 0.02, np.float32),
        "zero": np.zeros(6, np.int8),
        **norm(6, generator),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["w", "scale", "zero"], ["wq"], axis=0),
        helper.make_node("DequantizeLinear", ["wq", "scale", "zero"], ["wd"], axis=0),
        helper.make_node("Transpose", ["wd"], ["wt"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "wt"], ["z"]),
        helper.make_node("BatchNormalization", ["z", "gamma", "beta", "mean", "variance"], ["n"]),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    made = model(nodes, tensors, (2, 6, 6))
    counts, result = changed(made, keep_integer_weights, fold_batch_norms)
    # A batch norm over the second dimension does not multiply the columns of a product.
    assert counts == [1, 0]
    assert operators(result) == {
        "DequantizeLinear": 1, "MatMul": 1, "BatchNormalization": 1, "Relu": 1,
    }  # fmt: skip
    values = generator.standard_normal((2, 6, 6)).astype(np.float32)
    np.testing.assert_allclose(computed(result, values), computed(made, values), atol=1e-5)
