"""Ranges of activations: those that follow from others are what looking at them would give."""

from __future__ import annotations

import numpy as np
import pytest

from optcli.errors import StepError
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.protobuf import without_weights
from optcli.passes._quantization import calibration as ranges

pytestmark = pytest.mark.slow


@pytest.fixture
def model():
    """Convolutions, Relu twice over, and what only moves values."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 3, 3, 3)).astype(np.float32),
        "shape": np.array([0, 8, 36], np.int64),
        "dense": rng.standard_normal((288, 4)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], "c", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], "r"),
        helper.make_node("Relu", ["r"], ["rr"], "rr"),
        helper.make_node("Reshape", ["rr", "shape"], ["s"], "s"),
        helper.make_node("Transpose", ["s"], ["t"], "t", perm=[0, 2, 1]),
        helper.make_node("Flatten", ["t"], ["f"], "f"),
        helper.make_node("MatMul", ["f", "dense"], ["m"], "m"),
        helper.make_node("Relu", ["m"], ["y"], "y"),
    ]
    values = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 6, 6]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4]),
    ]
    tensors = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], tensors)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made)


FEEDS = [
    {"x": np.random.default_rng(seed).standard_normal((1, 3, 6, 6)).astype(np.float32)}
    for seed in range(5)
]
NAMES = ("x", "c", "r", "rr", "s", "t", "f", "m", "y")


def found(model, names=NAMES, method="minmax"):
    return ranges.activation_ranges(model, names, FEEDS, method, 99.9, 1)


def test_they_are_what_looking_at_each_gives(model, monkeypatch):
    for method in ("minmax", "percentile", "entropy"):
        mine = found(model, method=method)
        with monkeypatch.context() as patched:
            patched.setattr(ranges, "_derived", lambda *_: {})
            assert mine == found(model, method=method)
        assert list(mine) == sorted(NAMES)
    assert ranges._derived(model, NAMES).keys() == {"r", "rr", "s", "t", "f", "y"}


def test_what_nobody_asks_for_is_followed_by_nothing(model):
    assert ranges._derived(model, ("x", "r", "s", "m")) == {}
    few = found(model, ("x", "r", "s", "m"))
    everything = found(model)
    assert few == {name: everything[name] for name in few}


def test_what_reaches_minus_infinity_is_a_mask_without_a_range(model):
    import onnx

    model.graph.node.append(onnx.helper.make_node("Log", ["r"], ["masked"], "log"))
    model.graph.node.append(onnx.helper.make_node("Neg", ["masked"], ["endless"], "neg"))
    masked: set[str] = set()
    mine = ranges.activation_ranges(model, ("c", "masked"), FEEDS, "entropy", 99.9, 1, masked=masked)
    assert masked == {"masked"}
    assert mine.keys() == {"c"}
    with pytest.raises(StepError, match="'masked' is not finite"):
        found(model, ("c", "masked"))
    with pytest.raises(StepError, match="'endless' is not finite"):
        ranges.activation_ranges(model, ("endless",), FEEDS, "minmax", 99.9, 1, masked=masked)


def test_types_are_inferred_without_the_weights(model):
    import onnx

    del model.graph.value_info[:]
    light = without_weights(model)
    assert light.ByteSize() < model.ByteSize() / 2
    kept = {tensor.name: tensor.data_location for tensor in light.graph.initializer}
    assert kept == {"w": 0, "shape": 0, "dense": onnx.TensorProto.EXTERNAL}
    whole = onnx.shape_inference.infer_shapes(model).graph.value_info
    assert whole
    assert list(onnx.shape_inference.infer_shapes(light).graph.value_info) == list(whole)


def test_a_model_is_large_by_what_it_holds(model, monkeypatch):
    assert not onnx_format.is_large(model)
    monkeypatch.setattr(onnx_format, "ONE_FILE_BYTES", model.ByteSize())
    assert not onnx_format.is_large(model)
    monkeypatch.setattr(onnx_format, "ONE_FILE_BYTES", model.ByteSize() - 1)
    assert onnx_format.is_large(model)
