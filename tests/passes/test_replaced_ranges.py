"""What Relu or Clip alone reads is not looked at: the quantizer takes the range behind it anyway."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_networks import INPUTS, Noise, apply, onnx_file, torch_artifact

from optcli.models.formats import onnx as onnx_format
from optcli.passes import quantize_onnxruntime
from optcli.passes._quantization.calibration import activation_ranges
from optcli.passes._quantization.static_quantization import Scope, replaced_ranges
from optcli.passes.export_onnx import ExportOnnx
from optcli.passes.quantize_onnxruntime import QuantizeOnnxruntime
from optcli.settings import TensorSpec

EVERYTHING = ("x", "a", "ra", "b", "rb", "s", "c", "rc", "cc", "d", "y", "e", "re")


@pytest.fixture
def model():
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], "a"),
        helper.make_node("Relu", ["a"], ["ra"], "ra"),
        helper.make_node("Conv", ["ra", "w"], ["b"], "b"),
        helper.make_node("Relu", ["b"], ["rb"], "rb"),
        helper.make_node("Add", ["b", "rb"], ["s"], "s"),  # b is read by two
        helper.make_node("Conv", ["s", "w"], ["c"], "c"),
        helper.make_node("Relu", ["c"], ["rc"], "rc"),
        helper.make_node("Clip", ["rc", "", "six"], ["cc"], "cc"),
        helper.make_node("Conv", ["cc", "w"], ["d"], "d"),
        helper.make_node("Clip", ["d", "", "six"], ["y"], "y"),
        helper.make_node("Conv", ["cc", "w"], ["e"], "e"),  # an output as well
        helper.make_node("Relu", ["e"], ["re"], "re"),
    ]
    weights = np.random.default_rng(0).standard_normal((3, 3, 1, 1)).astype(np.float32)
    held = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.float32(6), "six")]
    shape = ["batch", 3, 4, 4]
    x, *outputs = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", "y", "e", "re")
    )
    graph = helper.make_graph(nodes, "g", [x], outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def replaced(model, types=("Conv", "Relu", "Clip", "Add"), names=(), ignored=(), tensors=EVERYTHING):
    return replaced_ranges(model, tensors, Scope(types, names, ignored))


def test_what_one_relu_or_clip_alone_reads(model):
    # Of Relu before Clip, the first is looked at: its input has its range, and not that behind Clip.
    assert replaced(model) == {"a": "ra", "c": "rc", "d": "y"}
    assert replaced(model, types=("Conv", "Clip")) == {"rc": "cc", "d": "y"}
    assert replaced(model, ignored=("ra", "cc")) == {"c": "rc", "d": "y"}
    assert replaced(model, names=("a", "ra")) == {"a": "ra"}
    assert replaced(model, tensors=("a", "c", "rc")) == {"c": "rc"}
    assert replaced(model, types=("Conv",)) == {}


def test_zero_is_the_smallest_behind_relu(model):
    feeds = [{"x": np.full((1, 3, 4, 4), value, np.float32)} for value in (-1, 2)]
    both = activation_ranges(model, ("a", "ra"), feeds, "minmax", 100, 1)
    alone = activation_ranges(model, ("ra",), feeds, "minmax", 100, 1)
    assert both["a"][0] < 0 < both["a"][1]
    assert alone["ra"] == both["ra"] == (0, both["a"][1])


@pytest.fixture(scope="module", params=["Conv", "resnet20_cifar10"])
def exported(request, tmp_path_factory):
    """A network as ONNX, and its inputs."""
    folder = tmp_path_factory.mktemp("exported")
    if request.param == "Conv":
        inputs, source = INPUTS["Conv"], torch_artifact(folder, "Conv")
        return apply(ExportOnnx(exporter="dynamo"), source, folder / "onnx", inputs), inputs
    file = request.getfixturevalue("shared") / "models" / f"{request.param}.onnx"
    return onnx_file(file, folder / "onnx"), (TensorSpec(name="input", shape=("batch", 3, 32, 32)),)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"method": "entropy"},
        {"method": "percentile", "percentile": 99.0},
        {"activation_type": "int8"},
        {"target": "tensorrt"},
        {"ignored_types": ("Relu",)},
        {"types": ("Conv", "Gemm")},
        {"format": "qoperator"},
    ],
)
def test_models_are_those_of_looking_at_everything(tmp_path, monkeypatch, exported, options) -> None:
    source, inputs = exported
    skipped: list[int] = []

    def told(*arguments):
        found = replaced_ranges(*arguments)
        skipped.append(len(found))
        return found

    def model_of(name):
        made = apply(
            QuantizeOnnxruntime(samples=4, **options), source, tmp_path / name, inputs,
            calibration=Noise(inputs, count=4),
        )  # fmt: skip
        return onnx_format.open(made.path).SerializeToString(deterministic=True)

    monkeypatch.setattr(quantize_onnxruntime, "replaced_ranges", told)
    mine = model_of("mine")
    monkeypatch.setattr(quantize_onnxruntime, "replaced_ranges", lambda *_: {})
    assert mine == model_of("everything")
    (count,) = skipped
    # Where Relu is not in the scope, nothing is skipped.
    assert (count > 2) == (not {"ignored_types", "types", "target"} & options.keys())
