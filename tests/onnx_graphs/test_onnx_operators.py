"""The lists of operators, held to what ONNX says of them and to what its reference computes."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from optcli.models.onnx_graphs.operators import (
    DYNAMIC,
    KEEPS_VALUES,
    MOVES_VALUES,
    PAIR,
    PRODUCT_OF,
    PRODUCTS,
    is_static,
    weight_position,
)
from optcli.models.onnx_graphs.protobuf import element_name, precision_of, short_name

pytestmark = pytest.mark.slow

# Attributes and further inputs with which an operator takes a tensor of [1, 4, 2, 2].
CALLS = {
    "Identity": ({}, []),
    "Flatten": ({}, []),
    "Reshape": ({}, [[2, 8]]),
    "Transpose": ({}, []),
    "Squeeze": ({}, [[0]]),
    "Unsqueeze": ({}, [[0]]),
    "DepthToSpace": ({"blocksize": 2}, []),
    "SpaceToDepth": ({"blocksize": 2}, []),
    "MaxPool": ({"kernel_shape": [2, 2]}, []),
    "Slice": ({}, [[1], [3], [1]]),
    "Split": ({"axis": 1, "num_outputs": 2}, []),
    "Gather": ({"axis": 1}, [[2, 0]]),
}


def model(nodes, weights=(), outputs=("y",)):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("x", *outputs)]
    graph = helper.make_graph(list(nodes), "net", ends[:1], ends[1:], list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize("operator", sorted(MOVES_VALUES))
def test_what_moves_values_computes_none(operator):
    attributes, more = CALLS[operator]
    weights = [numpy_helper.from_array(np.array(each), f"i{n}") for n, each in enumerate(more)]
    outputs = ["y", "z"] if operator == "Split" else ["y"]
    node = helper.make_node(operator, ["x", *(w.name for w in weights)], outputs, **attributes)
    values = np.arange(16, dtype=np.float32).reshape(1, 4, 2, 2)
    made = ReferenceEvaluator(model([node], weights, outputs)).run(None, {"x": values})
    flat = np.concatenate([each.ravel() for each in made]).tolist()
    assert set(flat) <= set(range(16))
    assert (sorted(flat) == list(range(16))) is (operator in KEEPS_VALUES or operator == "Split")


def test_the_weights_are_where_onnx_has_them():
    names = {kind: onnx.defs.get_schema(kind) for kind in PRODUCT_OF if onnx.defs.has(kind)}
    assert set(names) >= PRODUCTS | {"QLinearConv", "QLinearMatMul", "ConvInteger", "MatMulInteger"}
    for kind, schema in names.items():
        assert schema.inputs[weight_position(kind)].name in ("W", "w", "B", "b"), kind


def test_the_lists_do_not_overlap():
    assert not PRODUCTS & (DYNAMIC | PAIR | MOVES_VALUES)
    assert not any(map(is_static, PRODUCTS | DYNAMIC | PAIR))
    assert is_static("QLinearAdd")
    assert is_static("QGemm")


@pytest.mark.parametrize(
    ("operators", "weights", "precision"),
    [
        (["Gemm"], [np.float32], "fp32"),
        (["Gemm"], [np.float16, np.float16, np.float32], "fp16"),
        (["QuantizeLinear", "DequantizeLinear", "Gemm"], [np.int8], "int8"),
        (["QGemm"], [np.int8], "int8"),
        (["QuantizeLinear"], ["float8e4m3fn"], "fp8"),
        (["DynamicQuantizeLinear", "MatMulInteger"], [np.int8], "int8-dynamic"),
        (["DynamicQuantizeMatMul"], [np.int8], "int8-dynamic"),
        (["DequantizeLinear", "Gemm"], [np.int8], "int8-weights"),
        (["DequantizeLinear", "Gemm"], ["int4"], "int4-weights"),
        (["MatMulNBits"], [np.uint8], "int4-weights"),
        (["Relu"], [], "fp32"),
    ],
)
def test_the_precision_of_a_model(operators, weights, precision):
    kinds = {"int4": TensorProto.INT4, "float8e4m3fn": TensorProto.FLOAT8E4M3FN}
    tensors = [
        helper.make_tensor(f"w{n}", kinds[kind], [2], [1, 1])
        if isinstance(kind, str)
        else numpy_helper.from_array(np.ones(2, kind), f"w{n}")
        for n, kind in enumerate(weights)
    ]
    nodes = [helper.make_node(each, ["x"], ["y"]) for each in operators]
    assert precision_of(model(nodes, tensors)) == precision


def test_names_of_types():
    kinds = [0, TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT8E5M2, TensorProto.UINT4]
    assert [element_name(each) for each in kinds] == [
        *("unknown", "float32", "float64", "float8e5m2", "uint4")
    ]
    assert [short_name(each) for each in kinds] == ["unknown", "fp32", "fp64", "fp8", "uint4"]
