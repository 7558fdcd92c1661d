"""Upgrading the opset changes what a model is written in, never what it computes."""

import foreign_models
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, version_converter
from tiny_networks import artifact, feed, job

from optcli.artifact import Format
from optcli.errors import StepError
from optcli.models.onnx_graphs.protobuf import opset_of
from optcli.passes._onnx import upgrade
from optcli.passes._onnx.models import modern

pytestmark = pytest.mark.slow


def outputs(model, values):
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    return session.run(None, values)


def upgraded(tmp_path, foreign, wanted):
    source = artifact(tmp_path, Format.ONNX)
    copy = onnx.ModelProto()
    copy.CopyFrom(foreign.model)
    return modern(copy, wanted, job(source, tmp_path / "out", foreign.inputs), "a test")


@pytest.mark.parametrize("name", ["attributes-7", "attributes-8", "attributes-9", "transposed-7"])
def test_an_upgraded_model_computes_the_same(tmp_path, name):
    """Pad, Slice, Split, Clip, Upsample (linear) and Softmax are written in another way since."""
    foreign = foreign_models.FILES[name]()
    made = upgraded(tmp_path, foreign, 13)
    assert opset_of(made) == 13
    values = feed(foreign.inputs, 3)
    for wanted, found in zip(outputs(foreign.model, values), outputs(made, values), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


def test_a_wrong_upgrade_is_refused(tmp_path, monkeypatch):
    foreign = foreign_models.FILES["detector"]()
    convert = version_converter.convert_version

    def errs(model, wanted):
        made = convert(model, wanted)
        relu = next(node for node in made.graph.node if node.op_type == "Relu")
        relu.CopyFrom(helper.make_node("Abs", relu.input, relu.output, relu.name))
        return made

    monkeypatch.setattr(version_converter, "convert_version", errs)
    with pytest.raises(StepError, match=r"opset 11, wanted is 13.*computes something else"):
        upgraded(tmp_path, foreign, 13)


def test_an_upgrade_that_does_not_run_is_refused(tmp_path, monkeypatch):
    def errs(model, wanted):
        made = onnx.ModelProto()
        made.CopyFrom(model)
        made.graph.node[0].op_type = "NoSuchOperator"
        return made

    monkeypatch.setattr(version_converter, "convert_version", errs)
    with pytest.raises(StepError, match="does not run any more"):
        upgraded(tmp_path, foreign_models.FILES["detector"](), 13)


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e-3])
def test_how_far_an_upgrade_is_off_is_a_share_of_the_output(tmp_path, monkeypatch, scale):
    """Rounding in another order is no fault of it, however large the outputs are."""
    wanted = [np.array([[scale, -scale / 2]], np.float32), np.array([3, 4])]
    nearly = [wanted[0] * np.float32(1 + 1e-3), wanted[1]]
    answers = iter([wanted, nearly])
    monkeypatch.setattr(upgrade, "noise", lambda job: {})
    monkeypatch.setattr(upgrade, "_outputs", lambda *_: next(answers))
    asked = job(artifact(tmp_path, Format.ONNX), tmp_path / "out", ())
    model = onnx.ModelProto()
    assert upgrade._difference(model, model, asked) == pytest.approx(1e-3, rel=1e-2)
