"""Graphs read with onnx_ir: constants, pairs looked through and computed, and messages written back."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from quantized_onnx import applied, layer

from optcli.models.onnx_graphs.graph import (
    array,
    constant,
    maker,
    read,
    remove_unread,
    remove_unread_initializers,
    set_array,
    written,
)
from optcli.models.onnx_graphs.quantized import behind, dequantizer, integers, numbers, pairs, weight

pytestmark = pytest.mark.slow


def model(nodes, weights, outputs=("y",), notes=()):
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 6]) for name in ("x", *outputs)]
    tensors = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(list(nodes), "net", ends[:1], ends[1:], tensors, value_info=list(notes))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def node(kind, inputs, output, **attributes):
    return helper.make_node(kind, inputs, [output], f"{kind}_{output}", **attributes)


def nodes_of(message):
    return {each.name: each for each in read(message).graph}


def test_what_is_read_is_written_again_without_notes_of_weights():
    notes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 6]) for name in ("w", "a")]
    message = model(
        [node("Add", ["x", "w"], "a"), node("Relu", ["a"], "y")],
        {"w": np.ones((4, 6), np.float32)},
        notes=notes,
    )
    again = written(read(message))
    assert [value.name for value in again.graph.value_info] == ["a"]
    assert [value.name for value in message.graph.value_info] == ["w", "a"]
    del message.graph.value_info[0]
    assert again.SerializeToString(deterministic=True) == message.SerializeToString(deterministic=True)


def test_constants_are_initializers_and_constant_nodes():
    two = numpy_helper.from_array(np.float32(2), "two")
    message = model(
        [
            node("Constant", [], "c", value=two),
            node("Mul", ["x", "c"], "m"),
            node("Add", ["m", "w"], "y"),
        ],
        {"w": np.float32(1)},
    )

    def changed(graph):
        inner = {each.name: each for each in graph.graph}
        factor, term = inner["Mul_m"].inputs[1], inner["Add_y"].inputs[1]
        assert array(factor) == 2
        assert array(term) == 1
        assert constant(inner["Mul_m"].inputs[0]) is None
        assert constant(inner["Add_y"].inputs[0]) is None
        assert constant(None) is None
        set_array(factor, np.float32(5))
        set_array(term, np.float32(7))

    applied(changed, message)
    (made,) = ReferenceEvaluator(message).run(None, {"x": np.ones((4, 6), np.float32)})
    assert (made == 12).all()


def test_what_nobody_reads_is_removed_and_nothing_else():
    branch = helper.make_graph(
        [node("Add", ["x", "inner"], "b")],
        "branch",
        [],
        [helper.make_tensor_value_info("b", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.float32(3), "idle_inside")],
    )
    message = model(
        [
            node("If", ["c"], "y", then_branch=branch, else_branch=branch),
            node("Relu", ["x"], "idle"),
            node("Relu", ["x"], "out"),
        ],
        {"c": np.array(True), "inner": np.float32(1), "idle_weight": np.float32(2)},
        ("y", "out"),
    )

    def clean(graph):
        for each in list(graph.graph):
            remove_unread(each)
        remove_unread_initializers(graph)

    applied(clean, message)
    assert [each.op_type for each in message.graph.node] == ["If", "Relu"]
    assert {tensor.name for tensor in message.graph.initializer} == {"c", "inner"}
    inside = message.graph.node[0].attribute
    assert [len(each.g.initializer) for each in inside] == [0, 0]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [({}, "INT8"), ({"integers": np.uint8}, "UINT8"), ({"bias": "int32"}, "INT32")],
)
def test_the_integers_of_pairs(changes, kind):
    found = [integers(each).name for each in pairs(read(layer(**changes)))]
    assert kind in found
    assert len(found) == 3 + ("bias" in changes)


def test_integers_without_a_zero_point():
    nodes = [
        node("QuantizeLinear", ["x", "s"], "q", output_dtype=TensorProto.INT8),
        node("DequantizeLinear", ["q", "s"], "d"),
        node("QuantizeLinear", ["d", "s"], "u"),
        node("DequantizeLinear", ["w", "s"], "y"),
    ]
    message = model(nodes, {"s": np.float32(0.1), "w": np.ones(3, np.int16)})
    found = [integers(each).name for each in pairs(read(message))]
    assert found == ["INT8", "INT8", "UINT8", "INT16"]


def test_pairs_are_looked_through():
    grid = ["s", "z"]
    nodes = [
        node("QuantizeLinear", ["x", *grid], "q"),
        node("DequantizeLinear", ["q", *grid], "d"),
        node("Split", ["d"], "moved", axis=0, num_outputs=1),
        node("Cast", ["moved"], "cast", to=TensorProto.FLOAT),
        node("Relu", ["cast"], "y"),
    ]
    inner = nodes_of(model(nodes, {"s": np.float32(0.1), "z": np.int8(0)}))
    last = inner["Relu_y"]
    assert dequantizer(last.inputs[0]) is inner["DequantizeLinear_d"]
    assert dequantizer(last.outputs[0]) is None
    assert dequantizer(inner["QuantizeLinear_q"].inputs[0]) is None
    assert behind(inner["Split_moved"].inputs[0]).name == "x"
    assert behind(last.inputs[0]).name == "cast"
    assert behind(last.inputs[0], "Cast", "Split").name == "x"
    assert weight(inner["DequantizeLinear_d"]) is None
    assert maker(last.inputs[0], "Relu") is None
    assert maker(last.inputs[0], "Relu", "Cast") is inner["Cast_cast"]


@pytest.mark.parametrize("stored", [True, False], ids=["integers", "floats"])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("axis", [None, 0, 1])
def test_numbers_are_those_that_a_runtime_computes(stored, kind, axis):
    message = layer(weight_integers=kind, weight_zero=3, axis=axis, stored=stored)
    (product,) = (each for each in read(message).graph if each.op_type == "Conv")
    copy = helper.make_tensor_value_info("wd", TensorProto.FLOAT, None)
    message.graph.output.append(copy)
    values = np.zeros((1, 4, 6, 6), np.float32)
    wanted = ReferenceEvaluator(message).run(["wd"], {"x": values})[0]
    np.testing.assert_allclose(numbers(product.inputs[1]), wanted, rtol=1e-6)
    assert numbers(product.inputs[0]) is None


def test_numbers_in_blocks_are_not_computed():
    weights = {"w": np.ones((4, 6), np.int8), "s": np.ones((2, 6), np.float32)}
    nodes = [node("DequantizeLinear", ["w", "s"], "y", axis=0, block_size=2)]
    assert numbers(nodes_of(model(nodes, weights))["DequantizeLinear_y"].outputs[0]) is None
