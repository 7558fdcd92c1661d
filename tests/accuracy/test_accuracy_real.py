"""A trained network on real labelled images, in a real process."""

import pytest

from optcli import accuracy
from optcli.accuracy import EvaluationRequest
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings
from optcli.observer import Silent
from optcli.settings import TensorSpec
from optcli.settings.accuracy import AccuracySettings


@pytest.mark.long
@pytest.mark.slow
def test_resnet20_has_the_accuracy_that_others_measured(shared, tmp_path):
    """81.35 % by PyTorch on the same 2,000 images (README of the models)."""
    folder = tmp_path / "artifact"
    folder.mkdir()
    (folder / "model.onnx").write_bytes((shared / "models" / "resnet20_cifar10.onnx").read_bytes())
    data = {
        "source": f"imagefolder:{shared / 'datasets' / 'cifar10_subset' / 'test'}",
        "prepare": {"scale": "1/255", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]},
    }
    request = EvaluationRequest(
        artifact=Artifact("k", Format.ONNX, folder, "fp32", 1, "d"),
        runner="onnxruntime",
        options={"threads": 2},
        inputs=(TensorSpec(name="input", shape=("batch", 3, 32, 32)),),
        data=DataSettings.model_validate(data),
        folder=tmp_path,
        settings=AccuracySettings(batch_size=64),
        out=tmp_path / "out",
        feeds=(TensorSpec(name="input", shape=("batch", 3, 32, 32)),),
    )
    found = accuracy.evaluate(request, Silent(), log=tmp_path / "log")
    assert found.samples == found.stored == 2000
    assert found.array("correct").sum() == 1627
    assert accuracy.compare(found, found).regressed == 0


@pytest.mark.long
@pytest.mark.slow
def test_squeezenet_has_the_top1_and_top5_that_others_measured(shared, tmp_path):
    """61.6 and 83.2 % by PyTorch on the 500 images of the evaluation part (README of the models)."""
    folder = tmp_path / "artifact"
    folder.mkdir()
    (folder / "model.onnx").write_bytes((shared / "models" / "squeezenet1_1.onnx").read_bytes())
    images = shared / "datasets" / "imagenet_1000"
    data = {
        "source": f"imagefolder:{images / 'images'}",
        "split": {"file": str(images / "split.json"), "name": "evaluation"},
        "prepare": {
            "crop": 224,
            "channel_order": "rgb",
            "scale": "1/255",
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
        },
    }
    request = EvaluationRequest(
        artifact=Artifact("k", Format.ONNX, folder, "fp32", 1, "d"),
        runner="onnxruntime",
        options={"threads": 2},
        inputs=(TensorSpec(name="input", shape=("batch", 3, 224, 224)),),
        data=DataSettings.model_validate(data),
        folder=tmp_path,
        settings=AccuracySettings(batch_size=25),
        out=tmp_path / "out",
        feeds=(TensorSpec(name="input", shape=("batch", 3, 224, 224)),),
    )
    found = accuracy.evaluate(request, Silent(), log=tmp_path / "log")
    assert found.samples == 500
    assert (found.array("correct").sum(), found.figures["top5"]) == (308, 0.832)
    assert (found.class_order, found.doubts) == (None, ())
    assert found.stability.repeat_error == 0
