"""Linear layers of ONNX models: products and biases in one operator, with the same result and names."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, checker, helper, numpy_helper

from optcli.passes._quantization.static_quantization import merge_linear_layers

pytestmark = pytest.mark.slow
WIDTH, OUT = 8, 6
RNG = np.random.default_rng(0)


def layer(
    shape: list[int | str], *, left: bool = False, twice: bool = False, last: bool = False
) -> ModelProto:
    """`y = relu(x @ w + b)`; the bias on the left, the product read twice, or the sum given out."""
    weights = RNG.standard_normal((WIDTH, OUT)).astype(np.float32)
    bias = RNG.standard_normal(OUT).astype(np.float32)
    terms = ["b", "product"] if left else ["product", "b"]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], name="fc"),
        helper.make_node("Add", terms, ["y" if last else "sum"], name="fc_bias"),
    ]
    if not last:
        nodes.append(helper.make_node("Relu", ["sum"], ["y"], name="relu"))
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [*shape[:-1], OUT])]
    if twice:
        nodes.append(helper.make_node("Neg", ["product"], ["z"], name="neg"))
        outputs.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, [*shape[:-1], OUT]))
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        outputs,
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def operators(model: ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def computed(model: ModelProto, shape: list[int]) -> list[np.ndarray]:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    return list(session.run(None, {"x": x}))


@pytest.mark.parametrize(
    ("shape", "reshapes"),
    [
        (["batch", WIDTH], 0),
        ([3, WIDTH], 0),
        (["batch", 5, WIDTH], 2),
        ([5, "batch", WIDTH], 2),
        (["batch", 2, 5, WIDTH], 2),
    ],
)
@pytest.mark.parametrize("left", [False, True])
def test_a_layer_becomes_one_operator(shape, reshapes, left):
    model = layer(shape, left=left)
    found = merge_linear_layers(model)
    checker.check_model(found, full_check=True)
    assert operators(found) == Counter({"Gemm": 1, "Relu": 1, "Reshape": reshapes})
    for size in (1, 4):
        sizes = [size if isinstance(each, str) else each for each in shape]
        for mine, wanted in zip(computed(found, sizes), computed(model, sizes), strict=True):
            assert mine.shape == wanted.shape
            np.testing.assert_allclose(mine, wanted, rtol=1e-5, atol=1e-5)


def test_names_stay():
    found = merge_linear_layers(layer(["batch", 5, WIDTH]))
    assert "fc" in {node.name for node in found.graph.node if node.op_type == "Gemm"}
    assert next(node for node in found.graph.node if node.op_type == "Relu").input[0] == "sum"


@pytest.mark.parametrize(
    ("model", "kept"),
    [
        (layer(["batch", "rows", WIDTH]), ()),
        (layer(["batch", 5, WIDTH], twice=True), ()),
        (layer(["batch", 5, WIDTH], last=True), ()),
        (layer(["batch", 5, WIDTH]), ("fc_bias",)),
    ],
    ids=["two sizes unknown", "read twice", "given out", "named in the recipe"],
)
def test_others_stay_as_they_are(model, kept):
    assert operators(merge_linear_layers(model, kept)) == operators(model)
