"""INT8 files judged by optcli and by loops that share nothing with it: counts and mAP are the same."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from optcli import accuracy
from optcli.accuracy import EvaluationRequest
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings
from optcli.observer import Silent
from optcli.settings import TensorSpec
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.postprocess import PostprocessSettings

pytestmark = pytest.mark.slow
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]


def session(path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def quantized(model: Path, feeds, out: Path) -> Path:
    """ONNX Runtime's own min-max quantizer, as its documentation shows it."""
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self):
            self.feeds = iter(feeds)

        def get_next(self):
            return next(self.feeds, None)

    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(model, out, Reader(), quant_format=QuantFormat.QDQ, **kinds)
    return out


def judged(model: Path, spec, data, settings, place: Path, **more):
    folder = place / "artifact"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(model.read_bytes())
    artifact = Artifact("k", Format.ONNX, folder, "fp32", 1, "d")
    request = EvaluationRequest(
        artifact=artifact,
        runner="onnxruntime",
        options={"threads": 2},
        inputs=(spec,),
        data=DataSettings.model_validate(data),
        folder=place,
        settings=settings,
        out=place / "out",
        feeds=(spec,),
        **more,
    )
    return accuracy.evaluate(request, Silent(), log=place / "log")


@pytest.mark.long
def test_the_counts_of_an_int8_classifier(shared, tmp_path):
    from PIL import Image

    images, some = shared / "datasets" / "cifar10_subset", tmp_path / "some"
    classes = sorted(each.name for each in (images / "test").iterdir())
    for name in classes:
        (some / name).mkdir(parents=True)
        for path in sorted((images / "test" / name).iterdir())[:60]:
            shutil.copy(path, some / name)

    def read(path):
        pixels = np.asarray(Image.open(path).convert("RGB"), np.float32) / 255
        return ((pixels - np.float32(MEAN)) / np.float32(STD)).astype(np.float32).transpose(2, 0, 1)

    float_model = shared / "models" / "resnet20_cifar10.onnx"
    calibration = sorted((images / "train").glob("*/*"))[::500]
    feeds = [{"input": read(path)[None]} for path in calibration]
    int8_model = quantized(float_model, feeds, tmp_path / "int8.onnx")

    files = [(i, path) for i, name in enumerate(classes) for path in (some / name).iterdir()]
    labels = np.array([label for label, _ in files])
    right = {}
    for name, model in (("float", float_model), ("int8", int8_model)):
        runs, found = session(model), []
        for start in range(0, len(files), 50):
            batch = np.stack([read(path) for _, path in files[start : start + 50]])
            found.append(runs.run(None, {"input": batch})[0].argmax(axis=1))
        right[name] = np.concatenate(found) == labels

    data = {
        "source": f"imagefolder:{some}",
        "prepare": {"scale": "1/255", "mean": MEAN, "std": STD},
    }
    spec = TensorSpec(name="input", shape=("batch", 3, 32, 32))
    settings = AccuracySettings(batch_size=50)
    mine = {
        name: judged(model, spec, data, settings, tmp_path / name)
        for name, model in (("float", float_model), ("int8", int8_model))
    }
    found = accuracy.compare(mine["int8"], mine["float"])
    assert found.samples == len(files)
    assert found.value == right["int8"].mean()
    assert found.baseline == right["float"].mean()
    assert found.regressed == (right["float"] & ~right["int8"]).sum()
    assert found.improved == (right["int8"] & ~right["float"]).sum()
    assert found.regressed + found.improved > 0, "else this tells nothing"
    assert found.drop.value == pytest.approx(right["float"].mean() - right["int8"].mean(), abs=1e-12)


SIZE, COUNT = 416, 8


def letterboxed(path):
    """BGR, 0..255, the longer side resized to 416, the rest filled with 114; and the scale."""
    from PIL import Image

    image = Image.open(path).convert("RGB")
    scale = min(SIZE / image.height, SIZE / image.width)
    size = (round(image.width * scale), round(image.height * scale))
    pixels = np.full((SIZE, SIZE, 3), 114, np.float32)
    pixels[: size[1], : size[0]] = np.asarray(image.resize(size, Image.Resampling.BILINEAR))
    return pixels[:, :, ::-1].transpose(2, 0, 1)[None].copy(), (
        size[0] / image.width,
        size[1] / image.height,
    )


def detections(output, scale, image_id, categories):
    """As in the YOLOX paper's own demo: decode, score above 0.01, NMS by class at 0.65."""
    import torch
    from torchvision.ops import batched_nms

    cells = [(x, y, s) for s in (8, 16, 32) for y in range(SIZE // s) for x in range(SIZE // s)]
    grid = np.array(cells, np.float32)
    centre = (output[:, :2] + grid[:, :2]) * grid[:, 2:]
    extent = np.exp(output[:, 2:4]) * grid[:, 2:]
    boxes = np.concatenate([centre - extent / 2, centre + extent / 2], axis=1)
    scores = output[:, 4:5] * output[:, 5:]
    row, label = np.nonzero(scores > 0.01)
    kept = batched_nms(*(torch.from_numpy(x) for x in (boxes[row], scores[row, label], label)), 0.65)
    found = []
    for index in kept.tolist():
        left, top, right, bottom = boxes[row[index]].astype(np.float64) / (*scale, *scale)
        found.append(
            {
                "image_id": image_id,
                "category_id": categories[label[index]],
                "bbox": [left, top, right - left, bottom - top],
                "score": float(scores[row[index], label[index]]),
            }
        )
    return found


def pycocotools_map(model, folder, images, categories):
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    runs, found = session(model), []
    for each in images:
        feed, scale = letterboxed(folder / "images" / each["file_name"])
        output = runs.run(None, {runs.get_inputs()[0].name: feed})[0][0]
        found += detections(output, scale, each["id"], categories)
    truth = COCO(str(folder / "instances.json"))
    evaluation = COCOeval(truth, truth.loadRes(found), "bbox")
    evaluation.params.imgIds = [each["id"] for each in images]
    evaluation.evaluate()
    evaluation.accumulate()
    evaluation.summarize()
    return evaluation.stats[0]


@pytest.mark.long
def test_the_map_of_an_int8_detector(shared, tmp_path):
    folder = shared / "datasets" / "coco_tiny_val"
    annotations = json.loads((folder / "instances.json").read_text())
    categories = sorted(each["id"] for each in annotations["categories"])
    images = sorted(annotations["images"], key=lambda each: each["id"])[:COUNT]
    float_model = shared / "models" / "yolox_nano.onnx"
    name = session(float_model).get_inputs()[0].name
    others = sorted((shared / "datasets" / "imagenet_1000" / "images").glob("*/*"))[::100]
    feeds = [{name: letterboxed(path)[0]} for path in others]
    int8_model = quantized(float_model, feeds, tmp_path / "int8.onnx")

    data = {
        "source": f"coco:{folder}",
        "prepare": {"letterbox": {"size": SIZE, "align": "top_left"}, "channel_order": "bgr"},
    }
    (tmp_path / "ids.txt").write_text("".join(f"{each['file_name']}\n" for each in images))
    data["split"] = {"file": str(tmp_path / "ids.txt")}
    spec = TensorSpec(name=name, shape=(1, 3, SIZE, SIZE))
    settings = AccuracySettings(metric="map")
    decoding = PostprocessSettings.model_validate(
        {"yolox": {"score": 0.01, "nms": 0.65, "max_detections": 10_000}}
    )
    theirs, mine = {}, {}
    for each, model in (("float", float_model), ("int8", int8_model)):
        theirs[each] = pycocotools_map(model, folder, images, categories)
        mine[each] = judged(model, spec, data, settings, tmp_path / each, postprocess=decoding)
        assert mine[each].samples == COUNT
        assert mine[each].value == pytest.approx(theirs[each], abs=1e-9)
    found = accuracy.compare(mine["int8"], mine["float"])
    assert found.drop.value == pytest.approx(theirs["float"] - theirs["int8"], abs=1e-9)
    assert found.drop.value > 0.05, "INT8 ruins this network: else this tells nothing"
