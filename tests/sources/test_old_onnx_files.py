"""ONNX files of any age: from the source through the passes to both runtimes."""

import numpy as np
import old_onnx
import onnx
import pytest
from tiny_networks import Heard, Noise, apply, artifact, feed, sqnr_db

from optcli.artifact import Format
from optcli.errors import InputError
from optcli.models.formats import onnx as onnx_format
from optcli.models.sources.onnx import OnnxSource
from optcli.passes.convert_precision import ConvertPrecision
from optcli.passes.optimize_onnx import OptimizeOnnx
from optcli.passes.quantize_nncf import QuantizeNncf
from optcli.passes.to_openvino import ToOpenvino
from optcli.pipeline import check
from optcli.runners.onnxruntime import OnnxruntimeRunner
from optcli.runners.openvino import OpenvinoRunner
from optcli.settings import TensorSpec

pytestmark = pytest.mark.slow
INPUTS = (TensorSpec(name="image", shape=("batch", 3, 16, 16)),)


def taken(folder, model, inputs=INPUTS):
    """The artifact that the source makes of the file."""
    (folder / "file").mkdir(parents=True)
    onnx.save(model, folder / "file" / "net.onnx")
    out = folder / "source"
    out.mkdir()
    facts = OnnxSource(target="net.onnx", folder=folder / "file").write(out, inputs)
    assert check.usable(artifact(out, Format.ONNX, facts.outputs), inputs, None, 1).notes == ()
    return artifact(out, Format.ONNX, facts.outputs, facts.precision)


def outputs(kind, made, inputs, values):
    with kind(threads=1).open(made, inputs) as model:
        return next(iter(model.run(values).values()))


@pytest.mark.parametrize("opset", old_onnx.OPSETS)
@pytest.mark.parametrize("name", old_onnx.NETWORKS)
def test_a_file_is_taken_and_converted_exactly(tmp_path, name, opset):
    source = taken(tmp_path, old_onnx.network(name, opset))
    assert (source.facts["outputs"], source.precision) == (["result"], "fp32")
    made = apply(ToOpenvino(), source, tmp_path / "openvino", INPUTS)
    assert check.against_parent(made, source, INPUTS, None, 1e-4, 1)["samples"] > 50


@pytest.mark.parametrize("opset", [7, 9, 11, 17])
@pytest.mark.parametrize("name", old_onnx.NETWORKS)
def test_nncf_quantizes_it(tmp_path, name, opset):
    source = taken(tmp_path, old_onnx.network(name, opset))
    heard = Heard()
    made = apply(
        QuantizeNncf(), source, tmp_path / "int8", INPUTS, calibration=Noise(INPUTS), observer=heard
    )
    assert any(f"opset {opset} to 13" in text for text in heard.warnings) == (opset < 13)
    values = feed(INPUTS, 4, seed=9)
    wanted = outputs(OnnxruntimeRunner, source, INPUTS, values)
    for kind in (OnnxruntimeRunner, OpenvinoRunner):
        assert sqnr_db(wanted, outputs(kind, made, INPUTS, values)) > 25


@pytest.mark.parametrize("opset", [9, 18])
def test_weights_listed_as_inputs_are_not_asked_for(tmp_path, opset):
    """Allowed to this day, and then they could be overridden: nothing is folded or fused."""
    model = old_onnx.network("classifier", opset, weights_as_inputs=True)
    assert len(model.graph.input) > 10
    source = taken(tmp_path, model)
    made = apply(OptimizeOnnx(), source, tmp_path / "made", INPUTS)
    assert [value.name for value in onnx_format.open(made.path).graph.input] == ["image"]
    with pytest.raises(InputError) as failure:
        taken(tmp_path / "wrong", model, (TensorSpec(name="picture", shape=("batch", 3, 16, 16)),))
    assert failure.value.hint.count("name:") == 1


def test_a_fixed_batch_and_outputs_without_a_shape(tmp_path):
    inputs = (TensorSpec(name="image", shape=(3, 3, 16, 16)),)
    model = old_onnx.network("segmenter", 8, batch=3)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    source = taken(tmp_path, model, inputs)
    made = apply(QuantizeNncf(), source, tmp_path / "int8", inputs, calibration=Noise(inputs))
    values = feed(inputs, 3)
    found = [outputs(OnnxruntimeRunner, each, inputs, values) for each in (source, made)]
    assert found[1].shape == (3, 4, 16, 16)
    assert sqnr_db(*found) > 20


@pytest.mark.parametrize("opset", [9, 18])
@pytest.mark.parametrize("name", old_onnx.NETWORKS)
def test_half_precision_inputs(tmp_path, name, opset):
    """A file that came in fp16: converted and optimized, held to what fp16 can tell."""
    inputs = (TensorSpec(name="image", dtype="float16", shape=("batch", 3, 16, 16)),)
    plain = taken(tmp_path / "fp32", old_onnx.network(name, opset))
    half = apply(ConvertPrecision(keep_io=False), plain, tmp_path / "made", INPUTS)
    source = taken(tmp_path / "fp16", onnx_format.open(half.path), inputs)
    assert source.precision == "fp16"
    values = feed(inputs, 4)
    wanted = outputs(OnnxruntimeRunner, plain, INPUTS, {"image": values["image"].astype(np.float32)})
    for index, one in enumerate((ToOpenvino(), OptimizeOnnx(), OptimizeOnnx(to="ort"))):
        made = apply(one, source, tmp_path / str(index), inputs)
        check.against_parent(made, source, inputs, None, 1e-4, 1)
        kind = OpenvinoRunner if made.format == Format.OPENVINO else OnnxruntimeRunner
        found = outputs(kind, made, inputs, values)
        assert found.dtype == np.float16
        assert sqnr_db(wanted, found.astype(np.float32)) > 45


def test_bfloat16_is_compared_where_it_runs(tmp_path):
    source = taken(tmp_path, old_onnx.network("depthwise", 13))
    brain = apply(ConvertPrecision(precision="bf16"), source, tmp_path / "bf16", INPUTS)
    made = apply(ToOpenvino(), brain, tmp_path / "openvino", INPUTS)
    assert check.against_parent(made, brain, INPUTS, None, 1e-4, 1)["tolerance"] > 1e-3


def test_an_opset_that_onnx_cannot_upgrade_says_so(tmp_path, monkeypatch):
    from onnx import version_converter

    from optcli.errors import StepError
    from optcli.passes.quantize_onnxruntime import QuantizeOnnxruntime

    def fails(model, wanted):
        raise RuntimeError("no adapter")

    monkeypatch.setattr(version_converter, "convert_version", fails)
    source = taken(tmp_path, old_onnx.network("depthwise", 9))
    for index, one in enumerate((QuantizeOnnxruntime(), QuantizeNncf())):
        with pytest.raises(StepError, match=r"opset 9, wanted is 13.*no adapter"):
            apply(one, source, tmp_path / str(index), INPUTS, calibration=Noise(INPUTS))
