"""A model of depth on images and maps of depth as files, through data, runner and metric."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from optcli.accuracy import Evaluation, EvaluationRequest, process
from optcli.accuracy.preparations import look
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings
from optcli.settings import TensorSpec
from optcli.settings.accuracy import AccuracySettings

IMAGE = TensorSpec.model_validate({"name": "image", "shape": ["batch", 3, 24, 32]})


class Silent:
    def send(self, message):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """40 images whose blue is their depth, maps in millimetres, and a network that reads blue / 255."""
    out = tmp_path_factory.mktemp("depth")
    for kind in ("rgb", "depth", "artifact"):
        (out / kind).mkdir()
    draw = np.random.default_rng(0)
    for number in range(40):
        blue = draw.integers(20, 250, (24, 32))
        pixels = draw.integers(0, 60, (24, 32, 3))
        pixels[:, :, 2] = blue
        Image.fromarray(pixels.astype(np.uint8)).save(out / "rgb" / f"{number}.png")
        depth = np.where(draw.random((24, 32)) < 0.1, 0, 40 * blue)  # 0: not known
        Image.fromarray(depth.astype(np.uint16)).save(out / "depth" / f"{number}.png")
    weights = np.array([0, 0, 11], np.float32).reshape(1, 3, 1, 1)  # of 10.2: ten meters and a bit
    graph = helper.make_graph(
        [helper.make_node("Conv", ["image", "w"], ["depth"])],
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 24, 32])],
        [helper.make_tensor_value_info("depth", TensorProto.FLOAT, ["batch", 1, 24, 32])],
        [numpy_helper.from_array(weights, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, out / "artifact" / "model.onnx")
    return out


def request(folder, out, **prepare):
    options = {"target_scale": 0.001}
    data = {"source": "masks:rgb", "root": "depth", "prepare": prepare}
    return EvaluationRequest(
        artifact=Artifact("k", Format.ONNX, folder / "artifact", "fp32", 1, "d"),
        runner="onnxruntime",
        options={"threads": 1},
        inputs=(IMAGE,),
        feeds=(IMAGE,),
        data=DataSettings.model_validate(data),
        folder=folder,
        settings=AccuracySettings(metric="abs_rel", options=options),
        out=out,
    )


@pytest.mark.slow
def test_its_error_is_what_it_is_by_hand(folder, tmp_path):
    asked = request(folder, tmp_path, scale="1/255")
    tmp_path.mkdir(exist_ok=True)
    process.evaluate(asked, Silent())
    found = Evaluation.load(tmp_path)
    assert found.value == pytest.approx(11 / 10.2 - 1, rel=1e-5)
    assert found.figures == pytest.approx({"abs_rel": 11 / 10.2 - 1, "delta1": 1.0})
    assert (found.better, found.samples, found.doubts) == ("lower", 40, ())


@pytest.mark.slow
def test_another_preparation_is_found_by_it(folder, tmp_path):
    assert look(request(folder, tmp_path, scale="1/255"), None).message is None
    said = look(request(folder, tmp_path, channel_order="bgr", scale="1/255"), None).message
    assert said.startswith("abs_rel of 30 samples is 8 % with prepare: {channel_order: rgb}, and")
