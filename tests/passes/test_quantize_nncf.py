"""NNCF's INT8: close to FP32 in the runtimes that serve it, on real models, quietly and with bounds."""

from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError
from tiny_networks import (
    INPUTS,
    Heard,
    Noise,
    apply,
    feed,
    job,
    onnx_file,
    sqnr_db,
)

from optcli import environment
from optcli.accuracy import saturation
from optcli.errors import StepError
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.protobuf import opset_of
from optcli.passes import quantize_nncf
from optcli.passes.quantize_nncf import QuantizeNncf
from optcli.passes.to_openvino import ToOpenvino
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.runners.openvino import OpenvinoRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow

# Model, size of its square input, options, signal to noise in dB that INT8 keeps on noise images.
REAL = [
    ("resnet20_cifar10", 32, {}, 18),
    ("mobilenet_v3_small_fashion", 64, {"preset": "mixed"}, 15),
    ("vit_tiny_fashion", 32, {"model_type": "transformer"}, 20),
    ("squeezenet1_1", 224, {}, 25),
]


def outputs(runner, artifact, inputs, values):
    with runner.open(artifact, inputs) as model:
        assert model.effective()["precision"] == artifact.precision
        return next(iter(model.run(values).values()))


@pytest.mark.long
@pytest.mark.parametrize(("name", "size", "options", "bound_db"), REAL)
def test_real_onnx_models_stay_close_in_both_runtimes(tmp_path, shared, name, size, options, bound_db):
    source = onnx_file(shared / "models" / f"{name}.onnx", tmp_path / "onnx")
    inputs = (TensorSpec(name="input", shape=("batch", 3, size, size)),)
    made = apply(
        QuantizeNncf(samples=16, **options), source, tmp_path / "int8", inputs,
        calibration=Noise(inputs, count=24),
    )  # fmt: skip
    assert made.precision == "int8"
    assert made.facts["calibration_samples"] == 16
    assert sum(made.facts["quantized_operators"].values()) > 5
    values = feed(inputs, 4, seed=99)
    wanted = outputs(OnnxruntimeRunner(threads=2), source, inputs, values)
    for runner in (OnnxruntimeRunner(threads=2), OpenvinoRunner(threads=2)):
        found = outputs(runner, made, inputs, values)
        assert np.isfinite(found).all()
        assert sqnr_db(wanted, found) > bound_db


@pytest.mark.long
def test_a_detector_with_a_fixed_batch_and_an_old_opset(tmp_path, shared):
    source = onnx_file(shared / "models" / "yolox_nano.onnx", tmp_path / "onnx")
    inputs, heard = (TensorSpec(name="images", shape=(1, 3, 416, 416)),), Heard()
    made = apply(
        QuantizeNncf(samples=4, preset="mixed"), source, tmp_path / "int8", inputs,
        calibration=Noise(inputs, count=4, scale=60.0), observer=heard,
    )  # fmt: skip
    assert any("opset 11 to 13" in warning for warning in heard.warnings)
    assert opset_of(onnx_format.outline(made.path)) == 13
    values = feed(inputs, 1, seed=99, scale=60.0)
    found = outputs(OnnxruntimeRunner(threads=2), made, inputs, values)
    assert found.shape == (1, 3549, 85)
    assert np.isfinite(found).all()


@pytest.mark.parametrize("fast", [True, False])
def test_openvino_models_are_quantized_as_well(tmp_path, conv, fast):
    source = apply(ToOpenvino(), conv, tmp_path / "openvino", INPUTS["Conv"])
    heard = Heard()
    made = apply(
        QuantizeNncf(fast_bias_correction=fast), source, tmp_path / "int8", INPUTS["Conv"],
        calibration=Noise(INPUTS["Conv"], count=16), observer=heard,
    )  # fmt: skip
    assert made.facts["quantized_operators"]["Convolution"] == 4
    assert heard.fractions[-1] == 1.0
    values = feed(INPUTS["Conv"], 12, seed=99)
    wanted = outputs(OpenvinoRunner(threads=1), source, INPUTS["Conv"], values)
    found = outputs(OpenvinoRunner(threads=1), made, INPUTS["Conv"], values)
    assert 20 < sqnr_db(wanted, found) < 90
    sizes = [(each.path / "model.bin").stat().st_size for each in (source, made)]
    assert sizes[1] < 0.4 * sizes[0]


def test_onnx_runtime_computes_all_of_it_on_integers(tmp_path, conv):
    """Concat and MaxPool between convolutions must not throw them back to floating point."""
    import onnx
    import onnxruntime

    made = apply(
        QuantizeNncf(), conv, tmp_path / "int8", INPUTS["Conv"], calibration=Noise(INPUTS["Conv"])
    )
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "seen.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(
        str(made.path / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    seen = [node.op_type for node in onnx.load(tmp_path / "seen.onnx").graph.node]
    assert seen.count("QLinearConv") == 4
    assert "Conv" not in seen


def test_weights_beside_the_model_are_quantized_where_they_lie(tmp_path, conv, monkeypatch):
    wanted = apply(
        QuantizeNncf(), conv, tmp_path / "a", INPUTS["Conv"], calibration=Noise(INPUTS["Conv"])
    )
    large = tmp_path / "large"
    large.mkdir()
    monkeypatch.setattr(onnx_format, "ONE_FILE_BYTES", 2000)
    onnx_format.save(onnx_format.open(conv.path), large)
    assert (large / onnx_format.DATA).exists()
    from dataclasses import replace

    made = apply(
        QuantizeNncf(), replace(conv, path=large), tmp_path / "b", INPUTS["Conv"],
        calibration=Noise(INPUTS["Conv"]),
    )  # fmt: skip
    values = feed(INPUTS["Conv"], 4)
    found = [
        outputs(OnnxruntimeRunner(threads=1), each, INPUTS["Conv"], values) for each in (wanted, made)
    ]
    assert np.array_equal(*found)


def test_what_is_ignored_stays_in_floating_point(tmp_path, conv):
    plain = apply(
        QuantizeNncf(), conv, tmp_path / "a", INPUTS["Conv"], calibration=Noise(INPUTS["Conv"])
    )
    kept = apply(
        QuantizeNncf(ignored_types=("Conv",)), conv, tmp_path / "b", INPUTS["Conv"],
        calibration=Noise(INPUTS["Conv"]),
    )  # fmt: skip
    assert plain.facts["quantized_operators"]["Conv"] == 4
    assert "Conv" not in kept.facts["quantized_operators"]


def test_an_operator_that_got_no_value_is_said_to_be_one():
    said = quantize_nncf._reason(RuntimeError("Statistics were not collected for the node pool\nmore"))
    assert said.startswith("Statistics were not collected for the node pool: it got no value")
    assert quantize_nncf._reason(RuntimeError("other")) == "other"


def test_nothing_is_printed(tmp_path, conv, capfd):
    apply(QuantizeNncf(), conv, tmp_path / "a", INPUTS["Conv"], calibration=Noise(INPUTS["Conv"]))
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "Statistics" not in printed.err


def test_what_cannot_work_says_why(tmp_path, conv):
    def fails(options, match, source=conv, name="a", count=4):
        more = {"calibration": Noise(INPUTS["Conv"], count=count)}
        with pytest.raises(StepError, match=match) as failure:
            QuantizeNncf(**options).run(source, job(source, tmp_path / name, INPUTS["Conv"], **more))
        return failure.value

    missing = fails({"ignored_names": ("no_such_node",)}, "no_such_node", name="missing")
    assert "ignored_" in missing.hint
    fails({"target": "cpu_spr"}, "cpu_spr", name="spr")
    everything = {"ignored_patterns": (".*",)}
    fails(everything, "nothing to quantize", name="nothing")
    again = apply(
        QuantizeNncf(), conv, tmp_path / "int8", INPUTS["Conv"], calibration=Noise(INPUTS["Conv"])
    )
    fails({}, "quantized already", source=again, name="again")
    with pytest.raises(ValidationError, match="model_type: transformer"):
        QuantizeNncf(smooth_quant=True, model_type="none")


def test_depthwise_convolutions_behind_relu_run_on_integers(tmp_path):
    import onnx
    from onnx import helper, numpy_helper

    draw = np.random.default_rng(0).standard_normal
    weights = {"first": (8, 3, 3, 3), "depthwise": (8, 1, 3, 3), "last": (4, 8, 1, 1)}
    nodes = [
        helper.make_node("Conv", ["image", "first"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "depthwise"], ["c"], pads=[1] * 4, group=8),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Conv", ["d", "last"], ["output"]),
    ]
    values = [
        helper.make_tensor_value_info(name, 1, ["N", channels, 16, 16])
        for name, channels in (("image", 3), ("output", 4))
    ]
    tensors = [numpy_helper.from_array(draw(s).astype("float32"), name) for name, s in weights.items()]
    graph = helper.make_graph(nodes, "depthwise", values[:1], values[1:], tensors)
    path = tmp_path / "depthwise.onnx"
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    inputs = INPUTS["Conv"]
    source = onnx_file(path, tmp_path / "source")
    made = apply(QuantizeNncf(), source, tmp_path / "made", inputs, calibration=Noise(inputs))
    batch = feed(inputs, 2, seed=9)
    wanted, found = (
        outputs(OnnxruntimeRunner(threads=1), artifact, inputs, batch) for artifact in (source, made)
    )
    assert sqnr_db(wanted, found) > 25


@pytest.mark.long
@pytest.mark.parametrize("file", ["onnx", "openvino"])
def test_weights_get_7_bits_where_products_saturate(tmp_path, monkeypatch, conv, file):
    source = conv
    if file == "openvino":
        source = apply(ToOpenvino(), conv, tmp_path / "openvino", INPUTS["Conv"])

    def full(name, flags, **options):
        monkeypatch.setattr(environment, "cpu", lambda: {"machine": "x86_64", "flags": flags})
        one, noise = QuantizeNncf(samples=8, **options), Noise(INPUTS["Conv"], count=8)
        made = apply(one, source, tmp_path / name, INPUTS["Conv"], calibration=noise)
        return made.facts["reduce_range"], saturation.full_range(replace(made, facts={}))

    assert full("vnni", ["avx2", "avx512_vnni"]) == (False, True)
    assert full("avx2", ["avx2"]) == (True, False)
    assert full("asked", ["avx2", "avx512_vnni"], reduce_range=True) == (True, False)
    assert full("refused", ["avx2"], reduce_range=False) == (False, True)
    assert full("gpu", ["avx2"], target="gpu")[0] is False


def test_7_bits_are_for_cpus():
    with pytest.raises(ValidationError, match="no effect with `target: gpu`"):
        QuantizeNncf(target="gpu", reduce_range=True)


def test_a_result_is_for_cpus_on_which_products_saturate_alike(monkeypatch):
    """Their weights or activations get 7 bits: a shared store must not mix the two."""

    def on(*flags):
        monkeypatch.setattr(environment, "cpu", lambda: {"machine": "x86_64", "flags": [*flags]})
        return QuantizeNncf().bound_to()

    assert on("avx2") != on("avx2", "avx512_vnni")
    assert on("avx2", "avx512_vnni") == on("avx512f", "avx512_vnni")


class Bright(Noise):
    """Images whose pixels are all far above zero."""

    def __getitem__(self, index):
        sample = super().__getitem__(index)
        return replace(
            sample, inputs={name: 1 + 0.1 * np.tanh(each) for name, each in sample.inputs.items()}
        )


def bright(path, groups):
    """Two convolutions whose inputs and weights are mostly positive, so that sums are large."""
    import onnx
    from onnx import helper, numpy_helper

    draw = np.random.default_rng(3)
    large = draw.uniform(0.5, 1.0, (32, 32 // groups, 3, 3)) * draw.choice(
        [1, 1, 1, 1, -1], (32, 1, 3, 3)
    )
    weights = {"first": draw.uniform(0.0, 1.0, (32, 3, 3, 3)), "large": large}
    nodes = [
        helper.make_node("Conv", ["image", "first"], ["a"], pads=[1] * 4),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "large"], ["output"], pads=[1] * 4, group=groups),
    ]
    values = [
        helper.make_tensor_value_info(name, 1, ["N", channels, 16, 16])
        for name, channels in (("image", 3), ("output", 32))
    ]
    tensors = [numpy_helper.from_array(each.astype("float32"), name) for name, each in weights.items()]
    graph = helper.make_graph(nodes, "bright", values[:1], values[1:], tensors)
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


@pytest.mark.parametrize("groups", [1, 32], ids=["dense", "depthwise"])
def test_large_sums_are_right_on_any_cpu(tmp_path, groups):
    """Without VNNI pairs of products are added in 16 bits, where they exist: not in depthwise sums."""
    inputs = (TensorSpec(name="image", shape=("batch", 3, 16, 16)),)
    bright(tmp_path / "bright.onnx", groups)
    source = onnx_file(tmp_path / "bright.onnx", tmp_path / "source")
    made = apply(QuantizeNncf(), source, tmp_path / "made", inputs, calibration=Bright(inputs))
    values = {"image": np.stack([Bright(inputs)[index].inputs["image"] for index in (90, 91)])}
    wanted = outputs(OnnxruntimeRunner(threads=1), source, inputs, values)
    for runner in (OnnxruntimeRunner(threads=1), OpenvinoRunner(threads=1)):
        assert sqnr_db(wanted, outputs(runner, made, inputs, values)) > 30
