"""Which trials are proposed: the groups of a small graph, and what follows from what was found."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optcli.artifact import OUTPUT_TAIL, Artifact, Format
from optcli.results import Estimate
from optcli.results.tuning import Trial
from optcli.tuning.layers import (
    NetworkOperator,
    calibrations,
    groups,
    layers_of,
    onnx_layers,
    openvino_layers,
    worst,
)
from optcli.tuning.repairing import Proposals

# in -> first -> swish -> (left, right depthwise) -> concat -> middle -> head1 -> head2 -> out
GRAPH = [
    NetworkOperator("first", "Conv", ("in",), ("a",), range=1.0),
    NetworkOperator("gate", "Sigmoid", ("a",), ("b",), range=1.0),
    NetworkOperator("swish", "Mul", ("a", "b"), ("c",), range=1.0),
    NetworkOperator("left", "Conv", ("c",), ("d",), range=1.0),
    NetworkOperator("right", "Conv", ("c",), ("e",), depthwise=True, range=9.0),
    NetworkOperator("join", "Concat", ("d", "e"), ("f",), range=1.0),
    NetworkOperator("middle", "Conv", ("f",), ("g",), range=1.0),
    NetworkOperator("head1", "Conv", ("g",), ("h",), range=1.0),
    NetworkOperator("head2", "Conv", ("h",), ("out",), range=1.0),
]
BY_LABEL = {
    "only convolutions and products quantized": {"gate", "swish", "join"},
    "the head in float": {"head1", "head2"},
    "the first 2 layers in float": {"first", "gate", "swish", "left", "right"},
    "the first layer in float": {"first"},
    "concatenated branches in float": {"left", "right", "join"},
    "depthwise convolutions in float": {"right"},
    "swish and similar activations in float": {"gate", "swish"},
    "the last layers in float": {"head2"},
    "tensors of wide range in float": {"right"},
}


def proposals(**more: Any) -> Proposals:
    ranking = ["middle", "right", "head2", "first", "left", "head1"]
    options = {"method": "minmax", "percentile": None, "per_channel": True, "ignored_names": ["left"]}
    given = {"options": options, "layers": GRAPH, "ranking": ranking}
    return Proposals(**{"quantizer": "quantize_onnxruntime", **given, **more})


def trial(number: int, value: float, inside: bool = False, speedup: float | None = None) -> Trial:
    ratio = Estimate(value=speedup, low=speedup - 0.1, high=speedup + 0.1) if speedup else None
    return Trial(
        number=number, label="", options={}, inside=inside, value=value, speedup=ratio, seconds=1.0
    )


def test_the_groups_of_a_network() -> None:
    assert {each.label: set(each.floats) for each in groups(GRAPH)} == BY_LABEL


def test_a_group_that_a_network_does_not_have_is_not_tried() -> None:
    labels = [each.label for each in groups(GRAPH[6:])]
    assert labels
    assert not any("concat" in label or "swish" in label or "depthwise" in label for label in labels)


def test_layers_of_a_quantized_file_have_the_names_of_the_float_one_and_their_ranges() -> None:
    import numpy as np
    from onnx import TensorProto, helper, numpy_helper

    weight = numpy_helper.from_array(np.zeros((4, 1, 3, 3), np.int8), "w_q")
    constants = [numpy_helper.from_array(np.float32(x), f"s{i}") for i, x in enumerate((0.5, 2.0))]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s0"], ["x_q"], "q"),
        helper.make_node("DequantizeLinear", ["x_q", "s0"], ["x_d"], "d"),
        helper.make_node("DequantizeLinear", ["w_q", "s0"], ["w_d"], "dw"),
        helper.make_node("Conv", ["x_d", "w_d"], ["y"], "conv", group=4),
        helper.make_node("QuantizeLinear", ["y", "s1"], ["y_q"], "q2"),
        helper.make_node("DequantizeLinear", ["y_q", "s1"], ["y_d"], "d2"),
        helper.make_node("Relu", ["y_d"], ["z"], "relu"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 8, 8])]
    outputs = [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 4, 6, 6])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, [weight, *constants])
    assert onnx_layers(helper.make_model(graph)) == [
        NetworkOperator("conv", "Conv", ("x",), ("y",), depthwise=True, range=510.0),
        NetworkOperator("relu", "Relu", ("y",), ("z",), range=510.0),
    ]


def test_layers_of_an_openvino_file(tmp_path: Path) -> None:
    (tmp_path / "model.xml").write_text(
        '<net><layers><layer id="0" name="x" type="Parameter"/><layer id="1" name="w" type="Const"/>'
        '<layer id="2" name="conv" type="GroupConvolution"/><layer id="3" name="y" type="Result"/>'
        '</layers><edges><edge from-layer="0" to-layer="2"/><edge from-layer="1" to-layer="2"/>'
        '<edge from-layer="2" to-layer="3"/></edges></net>'
    )
    found = openvino_layers(tmp_path / "model.xml")
    assert found == [NetworkOperator("conv", "GroupConvolution", ("0",), ("2",), depthwise=True)]
    floats = Artifact("", Format.OPENVINO, tmp_path, "fp32", 0, "")
    assert layers_of(floats, floats) == found
    assert layers_of(replace(floats, facts={OUTPUT_TAIL: ["conv"]}), floats) == []


def test_only_other_calibrations_than_the_one_at_hand_are_tried() -> None:
    labels = [c.label for c in calibrations("quantize_onnxruntime", proposals().options)]
    assert labels == ["ranges by percentile", "ranges by entropy"]
    nncf = calibrations("quantize_nncf", {"preset": "mixed", "fast_bias_correction": True})
    assert [c.options for c in nncf] == [{"fast_bias_correction": False}]
    engines = calibrations("quantize_nncf", {"target": "tensorrt"})
    assert [c.options for c in engines] == [{"fast_bias_correction": False}]


def test_options_as_a_recipe_would_have_them() -> None:
    by_label = {each.label: each for each in groups(GRAPH)}
    products = by_label["only convolutions and products quantized"]
    head = by_label["the head in float"]
    assert proposals().changed((products,)) == {"types": ["Conv"]}
    assert proposals().changed((products, head)) == {
        "types": ["Conv"],
        "ignored_names": ["left", "head1", "head2"],
    }
    nncf = proposals(quantizer="quantize_nncf").changed((products,))
    assert nncf == {"ignored_names": ["left", "gate", "swish", "join"]}


def test_no_two_trials_are_the_same_and_there_is_an_end() -> None:
    mine, history, seen = proposals(singly=100), [trial(0, 0.1)], set()
    for number in range(1, 500):
        parts = mine.next(number, history)
        if parts is None:
            break
        seen.add(repr(sorted(mine.changed(parts).items())))
        history.append(trial(number, 0.1))
    else:
        pytest.fail("no end")
    assert len(seen) == len(history) - 1
    assert len(seen) > 16


def test_what_helped_alone_is_joined_next() -> None:
    mine, history = proposals(singly=4), [trial(0, 0.10)]
    gains = iter((0.0, 0.15, -0.05, 0.05))
    singles = []
    for number in range(1, 5):
        (part,) = mine.next(number, history) or ()
        singles.append(part)
        history.append(trial(number, 0.10 + next(gains)))
    assert mine.next(5, history) == (singles[1], singles[3])


def test_a_metric_that_is_better_lower_is_read_so() -> None:
    mine, history = proposals(singly=3, higher_is_better=False), [trial(0, 0.10)]
    singles = []
    for number, value in ((1, 0.08), (2, 0.20), (3, 0.05)):
        (part,) = mine.next(number, history) or ()
        singles.append(part)
        history.append(trial(number, value))
    assert mine.next(4, history) == (singles[2], singles[0])


def test_of_one_that_is_right_but_slow_a_part_is_taken_out() -> None:
    mine, history = proposals(singly=3), [trial(0, 0.10)]
    for number in (1, 2, 3):
        mine.next(number, history)
        history.append(trial(number, 0.10 + number / 100))
    first = mine.next(4, history) or ()
    history.append(trial(4, 0.14))
    joined = mine.next(5, history) or ()
    assert len(first), len(joined) == (2, 3)
    history.append(trial(5, 0.3, inside=True, speedup=0.9))
    lighter = mine.next(6, history) or ()
    assert len(lighter) == 2
    assert set(lighter) < set(joined)


def test_then_the_worst_layers_in_doubling_numbers_join_the_best() -> None:
    mine, history = proposals(singly=1), [trial(0, 0.10)]
    (only,) = mine.next(1, history) or ()
    history.append(trial(1, 0.12))
    ranking = mine.ranking
    assert mine.next(2, history) == (only, worst(ranking, 1))
    history.append(trial(2, 0.05))
    assert mine.next(3, history) == (only, worst(ranking, 2))
    assert worst(ranking, 2).floats == {"middle", "right"}


def test_a_part_that_lies_within_another_is_not_named_beside_it() -> None:
    mine, history = proposals(singly=100), [trial(0, 0.10)]
    for number in range(1, 40):
        parts = mine.next(number, history)
        if parts is None:
            break
        history.append(trial(number, 0.10 + number / 100))
        floats = [part.floats for part in parts if not part.options]
        assert not any(one < other for one in floats for other in floats)
    assert number > 16
