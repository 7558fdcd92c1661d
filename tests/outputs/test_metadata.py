"""What an exporter wrote into a file: read from ONNX and OpenVINO, and shown by `optcli inspect`."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from optcli.artifact import Artifact, Format
from optcli.errors import InputError
from optcli.models import sources
from optcli.models.formats import exporter_metadata
from optcli.observer import Silent
from optcli.outputs import exported
from optcli.pipeline.building import build
from optcli.pipeline.decoding import with_decoding
from optcli.pipeline.model_files.built_variant import open_built
from optcli.pipeline.model_files.laying_out import LayoutRequest, lay_out
from optcli.recipe import load
from optcli.report import terminal
from optcli.scaffold import inspection
from optcli.scaffold.inspection.findings import Tensor
from optcli.scaffold.inspection.looking import look
from optcli.serving.prediction.of_recipe import image_serving
from optcli.settings import TensorSpec
from optcli.store import Store

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
    target = inspection.Target("x", "file", "onnx", tmp_path / "model.onnx", {})
    found = look(target, None)
    assert found.metadata == SAID
    assert found.outputs[0].meaning == "boxes 0 to 3, scores 4 to 5 (by the file's metadata)"
    assert ": boxes 0 to 3, scores 4 to 5 (by the file's metadata)\n" in terminal.text(
        inspection.document(found)
    )


@pytest.mark.slow
def test_openvino_says_it_too(model, tmp_path):
    import openvino

    onnx.save(model, tmp_path / "model.onnx")
    converted = openvino.convert_model(tmp_path / "model.onnx")
    for key, value in SAID.items():
        converted.set_rt_info(value, ["model_info", key])
    openvino.save_model(converted, tmp_path / "model.xml", compress_to_fp16=False)
    found = look(inspection.Target("x", "file", "openvino", tmp_path / "model.xml", {}), None)
    assert found.metadata == SAID
    assert exported(found.metadata).names == ("cat", "dog")
    assert found.outputs[0].meaning == "boxes 0 to 3, scores 4 to 5 (by the file's metadata)"
    # As a model file of no recipe it keeps what it says.
    out = tmp_path / "out"
    out.mkdir()
    laid_out = lay_out(
        LayoutRequest(tmp_path / "model.xml", Format.OPENVINO, out, (), trust=False), None
    )
    assert exporter_metadata.of_facts(laid_out.facts) == SAID


class Told(Silent):
    """Keeps the warnings."""

    def __init__(self):
        self.warnings = []

    def warned(self, step, message):
        self.warnings.append(message)


RECIPE = """
version: 1
name: x
model: {source: "onnx:model.onnx"}
inputs: [{name: images, shape: [1, 6, 84]}]
variants: {onnx: []}
"""


def test_a_detector_is_decoded_as_its_exporter_says(model, tmp_path):
    onnx.save(model, tmp_path / "model.onnx")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    recipe = load(tmp_path / "recipe.yaml")
    out = tmp_path / "out"
    out.mkdir()
    source = sources.named("onnx:model.onnx", tmp_path)
    facts = source.write(out, [TensorSpec(name="images", shape=(1, 6, 84))]).facts
    said = Artifact("k", Format.ONNX, out, "fp32", 1, "d", facts)
    told = Told()
    decoded, guessed = with_decoding(recipe, said, told)
    found = decoded.postprocess
    assert not guessed
    assert found.boxes.transposed
    assert (found.boxes.format, found.boxes.nms) == ("cxcywh", 0.65)
    assert told.warnings == [
        "outputs are decoded as the model's file says: postprocess: {boxes: {format: cxcywh, nms: 0.65,"
        " transposed: true}}"
    ]
    # What a recipe says comes first. Without metadata, as behind a pass, there is nothing to say.
    (tmp_path / "own.yaml").write_text(f"{RECIPE}postprocess: {{rows: {{}}}}\n")
    assert with_decoding(load(tmp_path / "own.yaml"), said, told)[0].postprocess.rows is not None
    silent = Artifact("k", Format.ONNX, out, "fp32", 1, "d", {"exporter": "dynamo", "opset": 18})
    assert with_decoding(recipe, silent, told) == (recipe, False)
    assert len(told.warnings) == 1


BUILT = """
version: 1
name: detector
model: {source: "onnx:model.onnx"}
inputs: [{name: images, shape: [1, 3, 32, 32]}]
data: {evaluation: {source: "imagefolder:set", prepare: {resize: [32, 32], scale: 1/255}}}
latency: {launches: 1, rounds: 2, calls: 2, warmup: 1, max_seconds: 0.05, threads: 1}
report: {pictures: false}
variants: {onnx: [], openvino: [optimize_onnx, to_openvino]}
"""


@pytest.mark.slow
def test_a_built_variant_answers_as_its_file_says(tmp_path):
    """The last artifact of several passes inherits what the source's file says."""
    from PIL import Image

    weights = np.random.default_rng(0).uniform(0, 0.2, (6, 3, 8, 8)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["images", "w"], ["cells"], strides=[8, 8]),
        helper.make_node("Sigmoid", ["cells"], ["shares"]),
        helper.make_node("Reshape", ["shares", "flat"], ["output0"]),
    ]
    graph = helper.make_graph(
        nodes,
        "detector",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, [1, 3, 32, 32])],
        [helper.make_tensor_value_info("output0", TensorProto.FLOAT, [1, 6, 16])],
        [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(np.array([1, 6, 16]), "flat")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(made, SAID)
    onnx.save(made, tmp_path / "model.onnx")
    (tmp_path / "set").mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 255, (40, 40, 3), np.uint8)
        Image.fromarray(pixels).save(tmp_path / "set" / f"{number}.png")
    (tmp_path / "recipe.yaml").write_text(BUILT)
    report = build(tmp_path / "recipe.yaml", store=tmp_path / "store", artifacts=tmp_path / "made")
    error = report.variants["openvino"].accuracy.output_error
    assert error.detections is not None
    assert not error.detections.guessed
    path = tmp_path / "made" / "detector" / "report.json"
    built = open_built("openvino", report, path, store=Store(tmp_path / "store"))
    assert built.samples.decoding.source == "metadata"
    outputs = (Tensor(name="output0", dtype="float32", shape=(1, 6, 16)),)
    serving = image_serving(built, outputs)
    assert serving.postprocess["boxes"]["transposed"]
    assert serving.postprocess["names"] == ["cat", "dog"]
    wrong = BUILT.replace("report:", "outputs: {output: logits}\nreport:")
    (tmp_path / "recipe.yaml").write_text(wrong)
    with pytest.raises(InputError, match="no output 'output', it has output0") as caught:
        build(tmp_path / "recipe.yaml", store=tmp_path / "store", artifacts=tmp_path / "made")
    assert (caught.value.place, caught.value.hint) == ("outputs.output", "did you mean 'output0'?")
