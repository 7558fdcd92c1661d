"""Another channel order or scale that would surely make more answers right is said."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from optcli.accuracy import EvaluationRequest
from optcli.accuracy.metrics import Metric
from optcli.accuracy.metrics.top1 import Top1
from optcli.accuracy.preparations import PreparationAnswers, better, look, others
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings, Preparation
from optcli.settings import TensorSpec
from optcli.settings.accuracy import AccuracySettings

RGB = Preparation(channel_order="rgb", scale=1 / 255)


def answers(shares, metric=None):
    """Answers to `better`: the share of samples that is right, by what a preparation says."""
    metric = metric or Top1()

    def answer(prepare, places):
        share = shares.get((prepare.channel_order, round(prepare.scale * 255)), 0.1)
        if share is None:
            return None
        right = np.arange(len(places)) < share * len(places)
        records = {"rank": np.where(right, 0, 1), "share": right.astype(float)}
        return PreparationAnswers(metric, records, np.arange(len(places)))

    return answer


class Share(Metric):
    """A mean that is no share of right samples."""

    sign: int = 1

    def better(self):
        return "higher" if self.sign > 0 else "lower"

    def records(self, seen):
        raise NotImplementedError

    def value(self, records):
        return float(self.resampled(records, np.ones((1, len(records["share"]))))[0])

    def resampled(self, records, counts):
        shares = counts @ records["share"] / counts.sum(axis=1)
        return shares if self.sign > 0 else 1 - shares


@pytest.mark.parametrize(
    ("best", "said"),
    [
        (("bgr", 1), "prepare: {channel_order: bgr}"),
        (("rgb", 255), "prepare: {scale: 1}"),
        (("bgr", 255), "prepare: {channel_order: bgr, scale: 1}"),
    ],
)
def test_what_surely_gains_ten_points_is_said(best, said):
    found = better(answers({("rgb", 1): 0.3, best: 0.9}), RGB, range(100), "top1")
    assert said in found
    assert "of 75 samples 91 % are right with" in found
    assert "31 % as they are prepared now" in found


@pytest.mark.parametrize(("sign", "said"), [(1, "is 91 % with"), (-1, "is 9 % with")])
def test_of_any_metric_in_its_own_direction(sign, said):
    shares = {("rgb", 1): 0.3, ("bgr", 1): 0.9}
    found = better(answers(shares, Share(sign=sign)), RGB, range(100), "delta1")
    assert f"delta1 of 75 samples {said} prepare: {{channel_order: bgr}}" in found
    close = answers({("rgb", 1): 0.3, ("bgr", 1): 0.45}, Share(sign=sign))
    assert better(close, RGB, range(100), "delta1") is None


def test_what_does_not_surely_gain_as_much_is_not_said():
    def said(shares, count=100):
        return better(answers(shares), RGB, range(count), "top1")

    assert said({("rgb", 1): 0.3, ("bgr", 1): 0.45}) is None
    assert said({("rgb", 1): 0.3, ("bgr", 1): 0.9}, count=8) is None
    assert said({("rgb", 1): None}) is None
    assert said({("rgb", 1): 0.3, ("bgr", 1): None}) is None
    assert said({("rgb", 1): 0.3, ("bgr", 1): 0.9}, count=1) is None


def test_samples_choose_once_and_the_others_are_asked_for_the_best_alone():
    asked = []
    shares = answers({("rgb", 1): 0.3, ("bgr", 1): 0.9})

    def answer(prepare, places):
        asked.append((prepare.channel_order, len(places)))
        return shares(prepare, places)

    better(answer, RGB, range(100), "top1")
    assert [each for each in asked if each[1] == 75] == [("rgb", 75), ("bgr", 75)]
    assert {count for _, count in asked} == {25, 75}


def test_grey_stays_grey_and_other_steps_stay():
    grey = Preparation(channel_order="grey", resize=20, scale=1 / 255)
    tried = [prepare for _, prepare in others(grey)]
    assert {each.channel_order for each in tried} == {"grey"}
    assert {each.resize for each in tried} == {20}
    assert "channel_order: bgr" in [said for said, _ in others(None)]


def test_what_gives_the_same_values_is_not_tried():
    assert "scale: 1/255" not in [said for said, _ in others(RGB)]
    assert "scale: 1" not in [said for said, _ in others(None)]


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
        said[order] = look(request, None).message
    assert said["rgb"] is None
    assert said["bgr"] == (
        "of 45 samples 100 % are right with prepare: {channel_order: rgb},"
        " and 33 % as they are prepared now"
    )
