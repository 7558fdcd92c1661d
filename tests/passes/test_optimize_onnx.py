"""Simplified and optimized graphs: the same outputs, fewer operators, and a format that loads."""

import numpy as np
import old_onnx
import pytest
from pydantic import ValidationError
from tiny_networks import INPUTS, Noise, apply, artifact, feed, job, onnx_file

from optcli.artifact import Format
from optcli.errors import InputError, StepError
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import ort as ort_format
from optcli.models.onnx_graphs.protobuf import opset_of
from optcli.passes.convert_precision import ConvertPrecision
from optcli.passes.optimize_onnx import OptimizeOnnx
from optcli.passes.quantize_onnxruntime import QuantizeOnnxruntime
from optcli.results import flags
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.runners.openvino import OpenvinoRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow
OLD = (TensorSpec(name="image", shape=("batch", 3, 16, 16)),)
WAYS = [{}, {"level": "basic"}, {"level": "extended"}, {"to": "ort"}]
REAL = [
    ("vit_tiny_fashion", ("batch", 3, 32, 32), "input", 1.0),
    ("mobilenet_v3_small_fashion", ("batch", 3, 64, 64), "input", 1.0),
    ("squeezenet1_1", ("batch", 3, 224, 224), "input", 1.0),
    ("yolox_nano", (1, 3, 416, 416), "images", 60.0),
]


def outputs(runner, made, inputs, values):
    with runner.open(made, inputs) as model:
        return model.run(values)


def error(source, made, inputs, values, kind=OnnxruntimeRunner):
    wanted = outputs(OnnxruntimeRunner(threads=1), source, inputs, values)
    found = outputs(kind(threads=1), made, inputs, values)
    assert list(found) == list(wanted)
    pairs = [(wanted[name], found[name]) for name in wanted]
    return max(float(np.abs(a - b).max() / np.abs(a).max()) for a, b in pairs)


@pytest.mark.long
@pytest.mark.parametrize(("name", "shape", "input_name", "scale"), REAL)
@pytest.mark.parametrize("options", WAYS)
def test_real_models_stay_as_they_are(tmp_path, shared, name, shape, input_name, scale, options):
    source = onnx_file(shared / "models" / f"{name}.onnx", tmp_path / "onnx")
    inputs = (TensorSpec(name=input_name, shape=shape),)
    made = apply(OptimizeOnnx(**options), source, tmp_path / "made", inputs)
    for batch_size in (1, 8) if shape[0] == "batch" else (1,):
        assert error(source, made, inputs, feed(inputs, batch_size, scale=scale)) < 1e-4
    if not made.facts["runs_in_onnxruntime_only"]:
        assert error(source, made, inputs, feed(inputs, 1, scale=scale), OpenvinoRunner) < 1e-4
    if name in ("vit_tiny_fashion", "yolox_nano") and made.format == Format.ONNX:
        assert made.facts["operators_after"] < made.facts["operators_before"]
        assert made.facts["removed"]


@pytest.mark.long
@pytest.mark.parametrize("opset", old_onnx.OPSETS)
@pytest.mark.parametrize("name", old_onnx.NETWORKS)
def test_files_of_any_age(tmp_path, name, opset):
    (tmp_path / "onnx").mkdir()
    onnx_format.save(old_onnx.network(name, opset), tmp_path / "onnx")
    source = artifact(tmp_path / "onnx", Format.ONNX, ["result"])
    for index, options in enumerate(WAYS):
        made = apply(OptimizeOnnx(**options), source, tmp_path / str(index), OLD)
        assert error(source, made, OLD, feed(OLD, 3)) < 1e-4
    plain = onnx_format.open(tmp_path / "0")
    assert len(plain.graph.input) == 1
    assert opset_of(plain) == opset
    assert not {"BatchNormalization", "Dropout"} & {node.op_type for node in plain.graph.node}


def test_ort_is_read_back(tmp_path, conv):
    made = apply(OptimizeOnnx(to="ort"), conv, tmp_path / "a", INPUTS["Conv"])
    assert made.format == Format.ORT
    assert made.facts["optimization_level"] == "all"
    assert [each.name for each in made.path.iterdir()] == [ort_format.FILE]
    with OnnxruntimeRunner(threads=1).open(made, INPUTS["Conv"]) as model:
        found = model.effective()
    assert (found["precision"], found["optimization_level"]) == ("fp32", "all")
    assert "flags" not in found
    asked = OnnxruntimeRunner(threads=1, optimization_level="basic")
    with asked.open(made, INPUTS["Conv"]) as model:
        assert model.effective()["flags"] == [flags.saved_level("all").model_dump()]
    basic = apply(OptimizeOnnx(to="ort", level="basic"), conv, tmp_path / "b", INPUTS["Conv"])
    assert "Conv" in ort_format.operators(basic.path)
    assert basic.facts["hardware_specific"] is False


def test_integers_stay_integers(tmp_path, conv):
    int8 = apply(
        QuantizeOnnxruntime(), conv, tmp_path / "int8", INPUTS["Conv"],
        calibration=Noise(INPUTS["Conv"]),
    )  # fmt: skip
    for index, options in enumerate(WAYS):
        made = apply(OptimizeOnnx(**options), int8, tmp_path / str(index), INPUTS["Conv"])
        with OnnxruntimeRunner(threads=1).open(made, INPUTS["Conv"]) as model:
            assert model.effective()["precision"] == "int8"
        assert error(int8, made, INPUTS["Conv"], feed(INPUTS["Conv"], 8)) < 1e-4
    size = (tmp_path / "0" / onnx_format.FILE).stat().st_size
    assert size < 1.1 * (int8.path / onnx_format.FILE).stat().st_size


def test_weights_beside_the_model(tmp_path, conv, monkeypatch):
    from dataclasses import replace

    large = tmp_path / "large"
    large.mkdir()
    monkeypatch.setattr(onnx_format, "ONE_FILE_BYTES", 2000)
    onnx_format.save(onnx_format.open(conv.path), large)
    for index, options in enumerate(WAYS):
        made = apply(
            OptimizeOnnx(**options), replace(conv, path=large), tmp_path / str(index), INPUTS["Conv"]
        )
        assert error(conv, made, INPUTS["Conv"], feed(INPUTS["Conv"], 2)) < 1e-4


@pytest.mark.parametrize("content", [b"", b"not a model at all", b"\x18\0\0\0ORTM" + bytes(40), None])
def test_what_is_no_ort_model(tmp_path, content):
    if content is not None:
        (tmp_path / ort_format.FILE).write_bytes(content)
    with pytest.raises(InputError) as failure:
        ort_format.open(tmp_path)
    assert failure.value.hint


def test_a_truncated_ort_model(tmp_path, conv):
    made = apply(OptimizeOnnx(to="ort"), conv, tmp_path / "a", INPUTS["Conv"])
    path = made.path / ort_format.FILE
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(InputError):
        ort_format.open(made.path)


@pytest.mark.parametrize(
    "options",
    [{"to": "ort", "level": "none"}, {"simplify": False}, {"simplify": False, "level": "none"}],
)
def test_options_that_contradict_each_other(options):
    with pytest.raises(ValidationError):
        OptimizeOnnx(**options)


def test_what_does_not_fit_the_format_ort(tmp_path, conv, monkeypatch):
    monkeypatch.setattr("optcli.passes.optimize_onnx._ORT_BYTES", 1000)
    with pytest.raises(StepError, match="holds 2 GB"):
        OptimizeOnnx(to="ort").run(conv, job(conv, tmp_path / "a", INPUTS["Conv"]))


def test_nothing_is_printed(tmp_path, conv, capfd):
    apply(OptimizeOnnx(to="ort"), conv, tmp_path / "a", INPUTS["Conv"])
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "")


@pytest.mark.parametrize("options", WAYS)
def test_bfloat16_is_simplified_and_not_optimized(tmp_path, conv, options):
    halved = apply(ConvertPrecision(precision="bf16"), conv, tmp_path / "bf16", INPUTS["Conv"])
    if not options:
        apply(OptimizeOnnx(), halved, tmp_path / "made", INPUTS["Conv"])
        return
    with pytest.raises(StepError, match="no bfloat16") as found:
        apply(OptimizeOnnx(**options), halved, tmp_path / "made", INPUTS["Conv"])
    assert "before convert_precision" in found.value.hint
