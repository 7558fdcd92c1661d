"""What TensorRT wants of quantized models: said before a build, with the node named."""

import numpy as np
import pytest
from quantized_onnx import applied, layer

from optcli.errors import StepError
from optcli.passes._tensorrt.constraints import require_constraints, violations

TAKEN = {
    "convolution": {},
    "one scale for all weights": {"axis": None},
    "weights in floating point": {"stored": False},
    "weights alone": {"quantized_input": False},
    "the input alone": {"quantized_weight": False},
    "no bias": {"bias": ""},
    "in half precision": {"floats": np.float16},
    "a scale in a list of one": {"scales": [0.02]},
    "matrix product": {"operator": "MatMul", "axis": 1},
    "linear layer": {"operator": "Gemm", "axis": 1},
    "transposed convolution": {"operator": "ConvTranspose", "axis": 1},
    "transposed in groups": {"operator": "ConvTranspose", "axis": None, "group": 2},
}

REFUSED = {
    "asymmetric, unsigned": (
        {"integers": np.uint8, "zero": 128},
        "QuantizeLinear_xq",
        "zero point 128 (uint8), wanted 0",
    ),
    "asymmetric, signed": ({"zero": -5}, "QuantizeLinear_xq", "zero point -5 (int8), wanted 0"),
    "unsigned": ({"integers": np.uint8}, "QuantizeLinear_xq", "clips all above half of the range"),
    "sixteen bits": ({"integers": np.int16}, "QuantizeLinear_xq", "quantized to int16"),
    "unsigned weights": ({"weight_integers": np.uint8}, "DequantizeLinear_wd", "unsigned weights"),
    "asymmetric weights": ({"weight_zero": 3}, "DequantizeLinear_wd", "zero point 3 (int8)"),
    "activations by channel": ({"scales": [0.02] * 4}, "QuantizeLinear_xq", "4 scales, wanted one"),
    "wrong axis": (
        {"axis": 1},
        "DequantizeLinear_wd",
        "weights of Conv 'Conv_y' with scales along axis 1, wanted one for all or along axis 0",
    ),
    "wrong axis of a matrix": (
        {"operator": "MatMul", "axis": 0},
        "DequantizeLinear_wd",
        "scales along axis 0, wanted one for all or along axis 1",
    ),
    "wrong axis, floats in the file": ({"axis": 1, "stored": False}, "DequantizeLinear_wd", "axis 1"),
    "transposed in groups, by channel": (
        {"operator": "ConvTranspose", "axis": 1, "group": 2},
        "DequantizeLinear_wd",
        "in groups, wanted one",
    ),
    "quantized bias": ({"bias": "int32"}, "DequantizeLinear_bd", "a quantized bias (int32)"),
    "zero scale": ({"scales": 0.0}, "QuantizeLinear_xq", "a scale that is not positive"),
}


@pytest.mark.parametrize("changes", TAKEN.values(), ids=TAKEN)
def test_what_tensorrt_takes_passes(changes):
    assert applied(violations, layer(**changes)) == []
    applied(require_constraints, layer(**changes))


@pytest.mark.parametrize(("changes", "node", "text"), REFUSED.values(), ids=REFUSED)
def test_what_it_refuses_or_misreads_is_named(changes, node, text):
    model = layer(**changes)
    found = {each.node: str(each) for each in applied(violations, model)}
    assert text in found[node]
    with pytest.raises(StepError, match="TensorRT cannot take this quantized model") as error:
        applied(require_constraints, model)
    assert node in error.value.message or "more" in error.value.message
    assert error.value.hint


def test_the_right_way_is_the_hint():
    with pytest.raises(StepError) as error:
        applied(require_constraints, layer(integers=np.uint8, zero=128))
    assert "`target: tensorrt`" in error.value.hint


def test_no_zero_point_means_unsigned():
    model = layer()
    for node in model.graph.node[:2]:
        del node.input[2]
    first = applied(violations, model)[0]
    assert (first.node, first.operator) == ("QuantizeLinear_xq", "QuantizeLinear")
    assert "unsigned (uint8)" in first.message


def test_a_scale_that_is_computed():
    model = layer()
    scale = next(each for each in model.graph.initializer if each.name == "x_scale")
    model.graph.initializer.remove(scale)
    assert "a scale that is computed" in applied(violations, model)[0].message


def test_scales_in_constant_nodes():
    from onnx import helper

    model = layer(integers=np.uint8)
    for tensor in [each for each in model.graph.initializer if each.name.startswith("x_")]:
        model.graph.initializer.remove(tensor)
        model.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    assert [each.node for each in applied(violations, model)] == ["QuantizeLinear_xq"]


def test_weights_that_are_transposed_first():
    from onnx import helper

    model = layer(operator="MatMul", axis=1)
    product = model.graph.node[-1]
    model.graph.node.insert(3, helper.make_node("Transpose", ["wd"], ["turned"], perm=[1, 0]))
    product.input[1] = "turned"
    assert "along axis 0, wanted one for all or along axis 1" in applied(violations, model)[0].message


def test_operators_on_integers():
    from onnx import helper

    model = layer()
    for kind in ("QLinearConv", "MatMulInteger", "DynamicQuantizeLinear"):
        model.graph.node.append(helper.make_node(kind, ["a", "b"], [kind]))
    found = applied(violations, model)
    assert [each.node for each in found] == ["QLinearConv", "MatMulInteger", "DynamicQuantizeLinear"]
    assert "`format: qdq`" in found[0].hint


def test_the_first_are_told_and_the_others_counted():
    model = layer(integers=np.uint8, weight_zero=3, bias="int32", axis=1)
    with pytest.raises(StepError, match="and 1 more") as error:
        applied(require_constraints, model)
    assert error.value.message.count("Linear_xq") == 1


def test_inside_branches():
    from onnx import TensorProto, helper

    inner = layer(integers=np.uint8).graph
    branch = helper.make_graph(inner.node, "branch", [], list(inner.output), list(inner.initializer))
    choice = helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph([choice], "outer", [condition, *inner.input], list(inner.output))
    assert "QuantizeLinear_xq" in {each.node for each in applied(violations, helper.make_model(graph))}
