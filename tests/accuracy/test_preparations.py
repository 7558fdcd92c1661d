"""Another channel order or scale that would surely make more answers right is said."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from optcli.accuracy import EvaluationRequest
from optcli.accuracy.preparations import better, look, others
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings, Preparation
from optcli.settings import TensorSpec
from optcli.settings.accuracy import AccuracySettings

RGB = Preparation(channel_order="rgb", scale=1 / 255)


def rights(shares, count=100):
    """Answers to `better`: the share of samples that is right, by what a preparation says."""

    def right(prepare):
        share = shares.get((prepare.channel_order, round(prepare.scale * 255)), 0.1)
        return None if share is None else (np.arange(count) < share * count, float(count))

    return right


@pytest.mark.parametrize(
    ("best", "said"),
    [
        (("bgr", 1), "prepare: {channel_order: bgr}"),
        (("rgb", 255), "prepare: {scale: 1}"),
        (("bgr", 255), "prepare: {channel_order: bgr, scale: 1}"),
    ],
)
def test_what_surely_gains_ten_points_is_said(best, said):
    found = better(rights({("rgb", 1): 0.3, best: 0.9}), RGB)
    assert said in found
    assert "of 100 samples 90 % are right with" in found
    assert "30 % as they are prepared now" in found


def test_what_does_not_surely_gain_as_much_is_not_said():
    assert better(rights({("rgb", 1): 0.3, ("bgr", 1): 0.45}), RGB) is None
    assert better(rights({("rgb", 1): 0.3, ("bgr", 1): 0.9}, count=6), RGB) is None
    assert better(rights({("rgb", 1): None}), RGB) is None
    assert better(rights({("rgb", 1): 0.3, ("bgr", 1): None}), RGB) is None


def test_grey_stays_grey_and_other_steps_stay():
    grey = Preparation(channel_order="grey", resize=20, scale=1 / 255)
    tried = [prepare for _, prepare in others(grey)]
    assert {each.channel_order for each in tried} == {"grey"}
    assert {each.resize for each in tried} == {20}
    assert "channel_order: bgr" in [said for said, _ in others(None)]


@pytest.mark.slow
def test_a_model_of_blue_green_and_red(tmp_path):
    colours = {"blue": (20, 20, 240), "green": (20, 240, 20), "red": (240, 20, 20)}
    for name, colour in colours.items():
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(20):
            pixels = np.clip(
                np.array(colour) + np.arange(192).reshape(8, 8, 3) % 9 + number % 5, 0, 255
            )
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "photos" / name / f"{number}.png")
    weights = numpy_helper.from_array(np.eye(3, dtype=np.float32)[:, ::-1].copy(), "w")  # rgb
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["image"], ["mean"], axes=[2, 3], keepdims=0),
            helper.make_node("MatMul", ["mean", "w"], ["scores"]),
        ],
        "net",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 3])],
        [weights],
    )
    (tmp_path / "artifact").mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "artifact" / "model.onnx")
    inputs = (TensorSpec.model_validate({"name": "image", "shape": ["batch", 3, 8, 8]}),)
    said = {}
    for order in ("rgb", "bgr"):
        prepare = {"channel_order": order, "scale": 1 / 255}
        request = EvaluationRequest(
            artifact=Artifact("k", Format.ONNX, tmp_path / "artifact", "fp32", 1, "d"),
            runner="onnxruntime",
            options={"threads": 1},
            inputs=inputs,
            feeds=inputs,
            data=DataSettings.model_validate({"source": "imagefolder:photos", "prepare": prepare}),
            folder=tmp_path,
            settings=AccuracySettings(metric="top1"),
            out=tmp_path / "out",
        )
        said[order] = look(request, None).said
    assert said["rgb"] is None
    assert said["bgr"] == (
        "of 60 samples 100 % are right with prepare: {channel_order: rgb},"
        " and 33 % as they are prepared now"
    )
