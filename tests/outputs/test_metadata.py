"""What an exporter wrote into a file: read from ONNX and OpenVINO, and shown by `optcli inspect`."""

import onnx
import pytest
from onnx import TensorProto, helper

from optcli import inspection
from optcli.artifact import Artifact, Format
from optcli.inspection.looking import look
from optcli.outputs import exported, read_metadata

SAID = {"task": "detect", "names": "{0: 'cat', 1: 'dog'}", "stride": "32", "imgsz": "[64, 64]"}


@pytest.fixture
def model():
    """A detector of two classes as Ultralytics exports it, by its form alone."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["images"], ["output0"])],
        "detector",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 6, 84])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, [1, 6, 84])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(made, {**SAID, "author": "somebody"})
    return made


def test_onnx_says_it_and_inspect_shows_it(model, tmp_path):
    onnx.save(model, tmp_path / "model.onnx")
    assert read_metadata(Artifact("k", Format.ONNX, tmp_path, "fp32", 1, "d")) == SAID
    target = inspection.Target("x", "file", "onnx", tmp_path / "model.onnx", {})
    found = look(target, None)
    assert found.metadata == SAID
    assert found.outputs[0].meaning == "boxes 0 to 3, scores 4 to 5 (by the file's metadata)"
    assert "              boxes 0 to 3, scores 4 to 5 (by the file's metadata)" in inspection.lines(
        found
    )


@pytest.mark.slow
def test_openvino_says_it_too(model, tmp_path):
    import openvino

    onnx.save(model, tmp_path / "model.onnx")
    converted = openvino.convert_model(tmp_path / "model.onnx")
    for key, value in SAID.items():
        converted.set_rt_info(value, ["model_info", key])
    openvino.save_model(converted, tmp_path / "model.xml", compress_to_fp16=False)
    metadata = read_metadata(Artifact("k", Format.OPENVINO, tmp_path, "fp32", 1, "d"))
    assert metadata == SAID
    assert exported(metadata).names == ("cat", "dog")
    found = look(inspection.Target("x", "file", "openvino", tmp_path / "model.xml", {}), None)
    assert found.outputs[0].meaning == "boxes 0 to 3, scores 4 to 5 (by the file's metadata)"


def test_other_formats_say_nothing(tmp_path):
    assert read_metadata(Artifact("k", Format.TORCH, tmp_path, "fp32", 1, "d")) == {}
