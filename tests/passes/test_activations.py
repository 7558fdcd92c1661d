"""Activations that are not symmetric about zero are known, as one operator or as several."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from optcli.passes._quantization import asymmetric_activations
from optcli.passes.quantize_nncf import QuantizeNncf

# What the nodes are called, and whose activation they make; `x` comes in, `y` goes out.
ONE = {
    "HardSwish": "hard swish",
    "Elu": "ELU",
    "LeakyRelu": "leaky ReLU",
    "Gelu": "GELU",
    "Mish": "Mish",
}
SEVERAL = {
    "swish": [("Sigmoid", ["x"], "s"), ("Mul", ["s", "x"], "y")],
    "hard swish": [("HardSigmoid", ["x"], "s"), ("Mul", ["x", "s"], "y")],
    "Mish": [("Softplus", ["x"], "a"), ("Tanh", ["a"], "b"), ("Mul", ["x", "b"], "y")],
    "GELU": [
        ("Div", ["x", "two"], "a"),
        ("Erf", ["a"], "b"),
        ("Add", ["b", "two"], "c"),
        ("Mul", ["x", "c"], "d"),
        ("Mul", ["d", "two"], "y"),
    ],
}
OLD_HARD_SWISH = [
    ("Add", ["x", "two"], "a"),
    ("Clip", ["a", "two", "two"], "b"),
    ("Mul", ["x", "b"], "c"),
    ("Div", ["c", "two"], "y"),
]


def network(nodes):
    made = [helper.make_node(kind, inputs, [output]) for kind, inputs, output in nodes]
    shape = [1, 4, 8, 8]
    weight = numpy_helper.from_array(np.ones((4, 4, 1, 1), np.float32), "weight")
    graph = helper.make_graph(
        made,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.float32(2), "two"), weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@pytest.mark.parametrize(("operator", "name"), ONE.items())
def test_activations_of_one_operator(operator, name):
    assert asymmetric_activations.in_onnx(network([(operator, ["x"], "y")])) == (name,)


@pytest.mark.parametrize(("name", "nodes"), [*SEVERAL.items(), ("hard swish", OLD_HARD_SWISH)])
def test_activations_of_several_operators(name, nodes):
    assert asymmetric_activations.in_onnx(network(nodes)) == (name,)


@pytest.mark.parametrize(
    "nodes",
    [
        [("Relu", ["x"], "y")],
        [("Sigmoid", ["x"], "y")],
        [("Clip", ["x", "two", "two"], "y")],
        [("Mul", ["x", "x"], "y")],
        # Squeeze and excitation: the factor is another layer's.
        [
            ("GlobalAveragePool", ["x"], "a"),
            ("Conv", ["a", "weight"], "b"),
            ("Sigmoid", ["b"], "c"),
            ("Mul", ["x", "c"], "y"),
        ],
    ],
)
def test_what_begins_at_zero_or_is_a_gate_is_none(nodes):
    assert asymmetric_activations.in_onnx(network(nodes)) == ()


class Told:
    """Hears what a pass says."""

    def __init__(self):
        self.said, self.warnings = [], []

    def progress(self, fraction, message):
        self.said.append(message)

    def warn(self, message):
        self.warnings.append(message)


@pytest.mark.parametrize(
    ("options", "attends", "activations", "preset", "said"),
    [
        ({}, False, ("swish",), "mixed", "preset mixed, for swish"),
        ({}, True, ("GELU",), "mixed", "preset mixed, for GELU, attention"),
        ({}, False, (), "performance", "preset performance"),
        ({"target": "tensorrt"}, False, ("swish",), "performance", "preset performance"),
        ({"preset": "mixed"}, False, (), "mixed", "preset mixed"),
        ({"model_type": "none"}, True, (), "performance", "preset performance"),
    ],
)
def test_the_preset_follows_from_the_activations(options, attends, activations, preset, said):
    told = Told()
    found = QuantizeNncf(**options)._resolved(attends, activations, told)
    assert (found.preset, told.said, told.warnings) == (preset, [said], [])


def test_a_preset_that_is_asked_for_stays_and_is_warned_of():
    told = Told()
    found = QuantizeNncf(preset="performance")._resolved(False, ("swish",), told)
    assert found.preset == "performance"
    assert "the model has swish: `preset: mixed` keeps more accuracy" in told.warnings[0]


@pytest.mark.slow
def test_the_same_are_known_in_openvino_models(tmp_path):
    import onnx
    import openvino

    for number, (name, nodes) in enumerate(SEVERAL.items()):
        onnx.save(network(nodes), tmp_path / f"{number}.onnx")
        assert asymmetric_activations.in_openvino(
            openvino.Core().read_model(tmp_path / f"{number}.onnx")
        ) == (name,)
    onnx.save(network([("Relu", ["x"], "y")]), tmp_path / "relu.onnx")
    assert asymmetric_activations.in_openvino(openvino.Core().read_model(tmp_path / "relu.onnx")) == ()


@pytest.mark.parametrize(
    ("nodes", "least"),
    [
        (SEVERAL["swish"], -7),
        (SEVERAL["Mish"], -7),
        ([("HardSwish", ["x"], "y")], -3),
        ([("Gelu", ["x"], "y")], -3),
        # They give something however far below zero.
        ([("LeakyRelu", ["x"], "y")], None),
        ([("Elu", ["x"], "y")], None),
        ([("Tanh", ["x"], "t"), ("Mul", ["x", "t"], "y")], None),
        # Others read the value as well.
        ([*SEVERAL["swish"][:1], ("Mul", ["s", "x"], "m"), ("Add", ["m", "x"], "y")], None),
    ],
)
def test_ranges_end_where_an_activation_gives_nothing(nodes, least):
    before = {"x": (-99.0, 25.0), "other": (-99.0, 25.0)}
    after = asymmetric_activations.without_vanishing(network(nodes), before)
    assert after["other"] == (-99, 25)
    assert after["x"] == ((-99, 25) if least is None else (pytest.approx(least, abs=0.3), 25))


def test_a_range_that_an_activation_does_not_shorten_stays():
    for own in ((-2.0, 3.0), (0.0, 3.0), (-99.0, -20.0)):
        assert asymmetric_activations.without_vanishing(network(SEVERAL["swish"]), {"x": own}) == {
            "x": own
        }
