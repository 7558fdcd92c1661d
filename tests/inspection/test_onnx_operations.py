"""Counts of small ONNX graphs, worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import onnx
import pytest

from optcli.errors import InputError
from optcli.scaffold.inspection.onnx import look

pytestmark = pytest.mark.slow

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

FLOAT = TensorProto.FLOAT


def tensor(name, *shape, kind=np.float32):
    return numpy_helper.from_array(np.ones(shape, kind), name)


def info(name, *shape, kind=FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def saved(folder, nodes, inputs, outputs, weights=(), opset=18, **more):
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(weights))
    imports = [helper.make_opsetid("", opset), *more.pop("imports", ())]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8, **more)
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


def counted(path, inputs=()):
    return look(path, inputs)["operations"]["macs"]


def test_a_convolution_with_groups_strides_and_a_symbolic_batch(tmp_path):
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=2, strides=[2, 2], pads=[1, 1, 1, 1])
    path = saved(
        tmp_path,
        [node],
        [info("x", "N", 4, 8, 8)],
        [info("y", "N", 6, 4, 4)],
        [tensor("w", 6, 2, 3, 3)],
    )
    found = look(path, [])
    assert found["operations"]["macs"] == 6 * 4 * 4 * (2 * 3 * 3)
    assert found["operations"]["flops"] == 2 * found["operations"]["macs"]
    assert found["operations"]["at"] == {"x": [1, 4, 8, 8]}
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["N", 4, 8, 8]}]
    assert found["parameters"] == 6 * 2 * 9


def test_a_transposed_convolution(tmp_path):
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2, 2])
    path = saved(
        tmp_path, [node], [info("x", 1, 3, 5, 5)], [info("y", 1, 7, 10, 10)], [tensor("w", 3, 7, 2, 2)]
    )
    assert counted(path) == 3 * 5 * 5 * 7 * 2 * 2


@pytest.mark.parametrize(
    ("operator", "first", "second", "made", "options", "macs"),
    [
        ("MatMul", (2, 5, 7), (7, 3), (2, 5, 3), {}, 2 * 5 * 3 * 7),
        ("MatMul", (2, 5, 7), (2, 7, 3), (2, 5, 3), {}, 2 * 5 * 3 * 7),
        ("Gemm", (4, 7), (3, 7), (4, 3), {"transB": 1}, 4 * 3 * 7),
        ("Gemm", (7, 4), (7, 3), (4, 3), {"transA": 1}, 4 * 3 * 7),
    ],
)
def test_products_of_matrices(tmp_path, operator, first, second, made, options, macs):
    node = helper.make_node(operator, ["a", "b"], ["y"], **options)
    path = saved(tmp_path, [node], [info("a", *first)], [info("y", *made)], [tensor("b", *second)])
    assert counted(path) == macs


def test_an_operator_of_onnx_runtime_that_inference_does_not_know(tmp_path):
    names = ["a", "b", "scale_a", "scale_b"]
    node = helper.make_node("MatMulIntegerToFloat", names, ["y"], domain="com.microsoft")
    weights = [tensor("b", 7, 3, kind=np.int8), tensor("scale_a"), tensor("scale_b")]
    path = saved(
        tmp_path,
        [node],
        [info("a", 4, 7, kind=TensorProto.UINT8)],
        [info("y", 4, 3)],
        weights,
        imports=[helper.make_opsetid("com.microsoft", 1)],
    )
    found = look(path, [])
    assert found["operations"]["macs"] == 4 * 7 * 3
    assert found["operators"][0]["type"] == "com.microsoft.MatMulIntegerToFloat"


def test_a_quantized_operator_of_onnx_runtime_computes_in_integers(tmp_path):
    names = ["a", "s", "z", "b", "s", "z", "", "s", "z"]
    node = helper.make_node("QGemm", names, ["y"], domain="com.microsoft")
    weights = [tensor("b", 7, 3, kind=np.uint8), tensor("s"), tensor("z", kind=np.uint8)]
    ends = [info("a", 4, 7, kind=TensorProto.UINT8)], [info("y", 4, 3, kind=TensorProto.UINT8)]
    imports = [helper.make_opsetid("com.microsoft", 1)]
    found = look(saved(tmp_path, [node], *ends, weights, imports=imports), [])
    assert found["precision"] == "int8"
    assert found["operations"]["macs"] == 4 * 7 * 3
    (operator,) = found["operators"]
    assert (operator["type"], operator["precision"]) == ("com.microsoft.QGemm", "int8")


def test_an_old_file_that_lists_its_weights_as_inputs(tmp_path):
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    path = saved(
        tmp_path,
        [node],
        [info("x", 1, 2, 4, 4), info("w", 3, 2, 1, 1)],
        [info("y", 1, 3, 4, 4)],
        [tensor("w", 3, 2, 1, 1)],
        opset=7,
    )
    found = look(path, [])
    assert [each["name"] for each in found["inputs"]] == ["x"]
    assert found["operations"]["macs"] == 3 * 16 * 2


def test_sizes_that_vary_are_taken_from_the_recipe_or_named(tmp_path):
    from optcli.settings import TensorSpec

    node = helper.make_node("Conv", ["x", "w"], ["y"])
    path = saved(
        tmp_path,
        [node],
        [info("x", "N", 2, "H", 4)],
        [info("y", "N", 3, "H", 4)],
        [tensor("w", 3, 2, 1, 1)],
    )
    found = look(path, [])
    assert "operations" not in found
    assert found["notes"] == ["operations are not counted: the size of x[2] (H) is not fixed"]
    spec = TensorSpec(name="x", shape=("n", 2, "h", 4), ranges={"h": {"min": 2, "opt": 6, "max": 8}})
    assert counted(path, [spec]) == 3 * 6 * 4 * 2


def test_operators_in_functions_and_branches(tmp_path):
    add = helper.make_node("MatMul", ["a", "b"], ["c"])
    function = helper.make_function(
        "own", "Twice", ["a", "b"], ["c"], [add], [helper.make_opsetid("", 18)]
    )
    branch = helper.make_graph(
        [helper.make_node("Identity", ["m"], ["t"])], "then", [], [info("t", 2, 2)]
    )
    other = helper.make_graph([helper.make_node("Neg", ["m"], ["e"])], "else", [], [info("e", 2, 2)])
    nodes = [
        helper.make_node("Twice", ["x", "w"], ["m"], domain="own"),
        helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=other),
    ]
    path = saved(
        tmp_path,
        nodes,
        [info("x", 2, 2), info("flag", kind=TensorProto.BOOL)],
        [info("y", 2, 2)],
        [tensor("w", 2, 2)],
        imports=[helper.make_opsetid("own", 1)],
        functions=[function],
    )
    found = look(path, [])
    assert {each["type"] for each in found["operators"]} == {"MatMul", "If", "Identity", "Neg"}
    assert found["operations"]["macs"] == 8
    assert found["notes"] == [
        "operators inside If, Loop and Scan are listed, and not counted in the operations"
    ]


def test_integers_between_quantize_and_dequantize(tmp_path):
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z8"], ["wd"]),
        helper.make_node("MatMul", ["xd", "wd"], ["y"]),
        helper.make_node("MatMul", ["y", "wd"], ["v"]),
    ]
    weights = [
        tensor("s"),
        tensor("z", kind=np.uint8),
        tensor("z8", kind=np.int8),
        tensor("w", 4, 4, kind=np.int8),
    ]
    path = saved(tmp_path, nodes, [info("x", 2, 4)], [info("v", 2, 4)], weights)
    found = look(path, [])
    counts = {(each["type"], each["precision"]): each["count"] for each in found["operators"]}
    assert counts["MatMul", "int8"] == 1
    assert counts["MatMul", "fp32, int8 weights"] == 1
    assert found["parameters_by_type"] == {"int8": 16}, "scales and zero points are no parameters"
    assert found["precision"] == "int8"


def test_what_is_not_counted_is_named(tmp_path):
    nodes = [helper.make_node("Einsum", ["a", "b"], ["y"], equation="ij,jk->ik")]
    path = saved(tmp_path, nodes, [info("a", 2, 3)], [info("y", 2, 4)], [tensor("b", 3, 4)])
    assert look(path, [])["operations"]["uncounted"] == ("1 Einsum",)


def test_a_damaged_file(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"not an onnx file at all")
    with pytest.raises(InputError, match="not an ONNX file"):
        look(tmp_path / "m.onnx", [])


def test_known_networks(shared):
    assert math.isclose(counted(shared / "models" / "squeezenet1_1.onnx"), 349.15e6, rel_tol=1e-3)
    assert math.isclose(2 * counted(shared / "models" / "yolox_nano.onnx"), 1.046e9, rel_tol=1e-2)
