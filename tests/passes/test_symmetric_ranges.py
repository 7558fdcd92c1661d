"""Nearly symmetric ranges of activations lose their zero point, skewed ones keep it."""

import numpy as np
import openvino as ov
import pytest
from openvino import opset13
from tiny_networks import INPUTS, Noise, apply, feed, onnx_file, sqnr_db, torch_artifact

from optcli.models.formats import openvino as openvino_format
from optcli.models.formats import openvino_zero_points
from optcli.passes._quantization import asymmetric_activations
from optcli.passes.export_onnx import ExportOnnx
from optcli.passes.quantize_nncf import QuantizeNncf
from optcli.passes.to_openvino import ToOpenvino
from optcli.runners.openvino import OpenvinoRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow


def quantized(value, least, most, name, *, levels=256, out=None):
    ends = [np.array(each, np.float32) for each in (least, most, *(out or (least, most)))]
    node = opset13.fake_quantize(value, *map(opset13.constant, ends), levels=levels)
    node.set_friendly_name(name)
    return node


def ranges(model):
    found = {}
    for node in model.get_ops():
        if node.get_type_name() == "FakeQuantize":
            ends = [node.input_value(port).get_node().get_data() for port in range(1, 5)]
            np.testing.assert_array_equal(ends[:2], ends[2:])
            found[node.get_friendly_name()] = tuple(ends[:2])
    return found


def channels(*values):
    return [[[[value]] for value in values]]


def test_what_is_nearly_symmetric_becomes_so_and_the_rest_stays():
    image = opset13.parameter([-1, 2, 4, 4], np.float32, name="image")
    given = {
        "near": (-4.83, 4.95),
        "more below": (-5.0, 4.7),
        "gelu": (-0.17, 1.8),
        "third": (-1.0, 1.3),
        "relu": (0.0, 6.0),
        "channels": (channels(-1.0, -2.0), channels(1.02, 1.98)),
        "one channel": (channels(-1.0, -0.1), channels(1.02, 1.98)),
    }
    value = image
    for name, (least, most) in given.items():
        value = quantized(value, least, most, name)
    weights = quantized(opset13.constant(np.ones((2, 2, 1, 1), np.float32)), -1.0, 1.05, "weights")
    value = opset13.convolution(value, weights, [1, 1], [0, 0], [0, 0], [1, 1])
    model = ov.Model([value], [image], "ranges")
    before = ranges(model)
    # `near`, `more below`, `channels` were changed, `relu` has no zero point anyway.
    assert asymmetric_activations.make_symmetric(model) == (4, 7)
    after = ranges(model)
    for name in ("near", "more below", "channels"):
        least, most = after[name]
        np.testing.assert_allclose(least, -most * 128 / 127, rtol=1e-6)
        assert (least <= before[name][0] + 1e-6).all()
        assert (most >= before[name][1] - 1e-6).all()
        assert least.shape == before[name][0].shape
    for name in ("gelu", "third", "relu", "one channel", "weights"):
        np.testing.assert_array_equal(after[name], before[name])
    # Nothing is left to do, and the model still runs.
    assert asymmetric_activations.make_symmetric(model) == (4, 7)
    for name, found in ranges(model).items():
        np.testing.assert_allclose(found, after[name], rtol=1e-6)
    ov.Core().compile_model(model, "CPU")([np.zeros((1, 2, 4, 4), np.float32)])


@pytest.mark.parametrize("other", [{"levels": 255}, {"out": (-2.0, 2.1)}])
def test_what_nncf_does_not_make_is_left_alone(other):
    image = opset13.parameter([-1, 2], np.float32, name="image")
    model = ov.Model([quantized(image, -1.0, 1.05, "other", **other)], [image], "other")
    assert asymmetric_activations.make_symmetric(model) == (0, 1)
    node = next(each for each in model.get_ops() if each.get_type_name() == "FakeQuantize")
    assert node.input_value(2).get_node().get_data() == pytest.approx(1.05)


@pytest.mark.long
def test_a_transformer_keeps_its_accuracy_with_few_zero_points(tmp_path, shared):
    inputs = (TensorSpec(name="input", shape=("batch", 3, 32, 32)),)
    source = onnx_file(shared / "models" / "vit_tiny_fashion.onnx", tmp_path / "onnx")
    source = apply(ToOpenvino(), source, tmp_path / "openvino", inputs)
    made = apply(
        QuantizeNncf(samples=16), source, tmp_path / "int8", inputs,
        calibration=Noise(inputs, count=16),
    )  # fmt: skip
    assert made.facts["preset"] == "mixed"
    # GELU in each of six blocks, at most one more: the pixels.
    assert 6 <= made.facts["asymmetric_activations"] <= 7
    model = openvino_format.open(made.path)
    # All that a product reads, and no convolution that pads.
    assert openvino_zero_points.move_back(model) >= 6
    skewed = [
        name for name, (least, most) in ranges(model).items()
        if (least < 0).all() and not np.allclose(least, -most * 128 / 127, rtol=1e-3)
    ]  # fmt: skip
    assert len(skewed) == made.facts["asymmetric_activations"]
    values = feed(inputs, 8, seed=99)
    outputs = []
    for artifact in (source, made):
        with OpenvinoRunner(threads=1).open(artifact, inputs) as model:
            outputs.append(next(iter(model.run(values).values())))
    assert sqnr_db(*outputs) > 20


def test_the_preset_without_zero_points_says_nothing_of_them(tmp_path):
    source = torch_artifact(tmp_path, "Conv")
    source = apply(ExportOnnx(exporter="dynamo"), source, tmp_path / "onnx", INPUTS["Conv"])
    source = apply(ToOpenvino(), source, tmp_path / "openvino", INPUTS["Conv"])
    made = apply(
        QuantizeNncf(preset="performance"), source, tmp_path / "int8", INPUTS["Conv"],
        calibration=Noise(INPUTS["Conv"], count=4),
    )  # fmt: skip
    assert "asymmetric_activations" not in made.facts
