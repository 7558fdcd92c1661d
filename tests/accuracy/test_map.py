"""mAP is pycocotools' own: with the library's sums on invented boxes, and for a real detector."""

import contextlib
import io

import numpy as np
import pytest
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from optcli import accuracy
from optcli.accuracy import EvaluationRequest, bounds, decoding, labels, process, shards
from optcli.accuracy.metrics import Predictions
from optcli.accuracy.metrics.map import Map
from optcli.artifact import Artifact, Format
from optcli.data import DataSettings, Preparation
from optcli.errors import InputError
from optcli.observer import Silent
from optcli.outputs import postprocess
from optcli.settings import TensorSpec
from optcli.settings.accuracy import AccuracySettings
from optcli.settings.postprocess import PostprocessSettings

GAPS = [12, 26, 29, 30, 45, 66, 68, 69, 71, 83]  # numbers that COCO's ids leave out


def library_stats(images, truths, found):
    """pycocotools from beginning to end; boxes are [left, top, right, bottom]."""

    def annotations(parts, more):
        made = []
        for image, part in zip(images, parts, strict=True):
            for index, box in enumerate(part["boxes"]):
                size = [float(box[2] - box[0]), float(box[3] - box[1])]
                made.append(
                    {
                        "id": len(made) + 1,
                        "image_id": image,
                        "category_id": int(part["labels"][index]) + 1,
                        "bbox": [float(box[0]), float(box[1]), *size],
                        "area": size[0] * size[1],
                        **more(part, index),
                    }
                )
        return made

    with contextlib.redirect_stdout(io.StringIO()):
        ground = COCO()
        ground.dataset = {
            "images": [{"id": image} for image in images],
            "categories": [{"id": label + 1} for label in range(5)],
            "annotations": annotations(truths, lambda t, i: {"iscrowd": int(t["crowd"][i])}),
        }
        ground.createIndex()
        marks = annotations(found, lambda f, i: {"score": float(f["scores"][i])})
        evaluation = COCOeval(ground, ground.loadRes(marks), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats


def invented(count, seed=0, ties=False):
    """Boxes in images, and detections near some of them; scores of INT8 have many ties."""
    generator = np.random.default_rng(seed)
    truths, found = [], []
    for _ in range(count):
        boxes = int(generator.integers(0, 6))
        corner = generator.uniform(0, 80, (boxes, 2))
        corners = np.concatenate([corner, corner + generator.uniform(8, 40, (boxes, 2))], axis=1)
        labels = generator.integers(0, 4, boxes)
        truths.append({"boxes": corners, "labels": labels, "crowd": generator.random(boxes) < 0.1})
        near = corners + generator.normal(0, 2.5, corners.shape)
        wild = generator.uniform(0, 60, (3, 2))
        wild = np.concatenate([wild, wild + 20], axis=1)
        scores = generator.random(boxes + 3)
        found.append(
            {
                "boxes": np.concatenate([near, wild]),
                "labels": np.concatenate([labels, generator.integers(0, 5, 3)]),
                "scores": np.round(scores * 8) / 8 if ties else scores,
            }
        )
    return truths, found


def records_of(images, truths, found, batch=4):
    parts = []
    for start in range(0, len(images), batch):
        rows = slice(start, start + batch)
        meta = [{"image_id": image} for image in images[rows]]
        ids = [str(image) for image in images[rows]]
        seen = Predictions(ids, truths[rows], meta, {}, found[rows])
        parts.append(shards.moved(Map().records(seen), start))
    return shards.joined_records(parts)


@pytest.mark.slow
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_map_is_the_librarys(seed, ties):
    truths, found = invented(24, seed, ties)
    images = [int(n) for n in np.random.default_rng(seed).permutation(100)[:24]]  # in any order
    records = records_of(images, truths, found)
    wanted = library_stats(images, truths, found)
    figures = Map().figures(records)
    assert Map().value(records) == pytest.approx(wanted[0], abs=1e-12)
    assert figures["map50"] == pytest.approx(wanted[1], abs=1e-12)
    assert figures["map75"] == pytest.approx(wanted[2], abs=1e-12)
    assert 0.1 < wanted[0] < 0.9


@pytest.mark.slow
def test_a_resample_is_the_set_with_its_images_repeated():
    truths, found = invented(12)
    records = records_of(range(12), truths, found)
    drawn = np.random.default_rng(3).integers(12, size=(5, 12))
    counts = np.stack([np.bincount(row, minlength=12) for row in drawn])
    values = Map().resampled(records, counts)
    for row, value in zip(drawn, values, strict=True):
        chosen = np.sort(row)
        again = [truths[i] for i in chosen], [found[i] for i in chosen]
        assert value == pytest.approx(library_stats(range(12), *again)[0], abs=1e-9)
    assert len(bounds.resampled(Map(), records, np.arange(12))) == bounds.RESAMPLES


def test_nothing_detected_is_zero_and_nothing_to_find_is_an_error():
    truths, found = invented(6)
    nothing = [{"boxes": np.empty((0, 4)), "labels": [], "scores": []} for _ in found]
    assert Map().value(records_of(range(6), truths, nothing)) == 0
    empty = [{"boxes": np.empty((0, 4)), "labels": [], "crowd": []} for _ in truths]
    with pytest.raises(InputError, match="map has no object to find in 6 images"):
        Map().value(records_of(range(6), empty, found))


def test_what_cannot_be_detections_is_said():
    truths, found = invented(1)
    with pytest.raises(InputError, match="does not say how to decode"):
        Map().records(Predictions(["a"], truths, [{}], {}))
    with pytest.raises(InputError, match="map found ndarray as detections of a"):
        Map().records(Predictions(["a"], truths, [{}], {}, [np.zeros(3)]))
    with pytest.raises(InputError, match="map found int as a target") as caught:
        Map().records(Predictions(["a"], [3], [{}], {}, found))
    assert caught.value.place == "a"


def step(**settings):
    return decoding.make(PostprocessSettings.model_validate(settings), None)


def test_boxes_of_every_form_come_back_to_the_original_image():
    # Half as large in the input, 10 pixels of padding on the left, 20 above.
    meta = {"scale": (0.5, 0.5), "padding": (20, 10)}
    wanted = np.array([[20.0, 40.0, 60.0, 80.0]])
    forms = {"xyxy": [20, 40, 40, 60], "xywh": [20, 40, 20, 20], "cxcywh": [30, 50, 20, 20]}
    for form, row in forms.items():
        outputs = {"b": np.array([row], np.float32), "s": np.array([[0.1, 0.9]], np.float32)}
        decode = step(boxes={"format": form, "scores": "s", "score": 0.5})
        found = decode(outputs, meta, (100, 100))
        assert np.allclose(found["boxes"], wanted)
        assert (list(found["labels"]), list(found["scores"])) == ([1], [pytest.approx(0.9)])
    share = {"b": np.array([[0.2, 0.4, 0.4, 0.6, 0.1, 0.9]], np.float32).T}
    decode = step(boxes={"normalized": True, "transposed": True, "score": 0.5})
    assert np.allclose(decode(share, meta, (100, 100))["boxes"], wanted)


def test_background_objectness_and_given_labels():
    row = np.array([[0, 0, 10, 10, 0.5, 0.8, 0.2]], np.float32)
    found = step(boxes={"objectness": True, "score": 0.3})({"o": row}, {}, (10, 10))
    assert (list(found["labels"]), found["scores"][0]) == ([0], pytest.approx(0.4))
    logits = {"b": row[:, :4], "s": np.array([[5.0, 0.0, 1.0]], np.float32)}
    how = {"scores": "s", "activation": "softmax", "background": "first", "score": 0.0}
    found = step(boxes={**how, "multi_label": False, "first_label": 1})(logits, {}, (10, 10))
    assert list(found["labels"]) == [2]
    given = {"b": row[:, :4], "s": np.array([0.7], np.float32), "l": np.array([3])}
    found = step(boxes={"scores": "s", "labels": "l"})(given, {}, (10, 10))
    assert list(found["labels"]) == [3]


@pytest.mark.slow
def test_nms_is_by_class_and_torchvisions():
    import torch
    import torchvision

    generator = np.random.default_rng(0)
    corner = generator.uniform(0, 90, (3000, 2))
    boxes = np.concatenate([corner, corner + generator.uniform(5, 30, (3000, 2))], 1)
    boxes = boxes.astype(np.float32)
    scores = generator.random((3000, 3)).astype(np.float32).round(2)  # many are equal
    how = {"scores": "s", "score": 0.4, "nms": 0.45, "max_detections": 10_000}
    found = step(boxes=how)({"b": boxes, "s": scores}, {}, (60, 60))
    box, label = np.nonzero(scores > 0.4)
    kept_ones = torchvision.ops.batched_nms(
        torch.tensor(boxes[box]), torch.tensor(scores[box, label]), torch.tensor(label), 0.45
    ).numpy()
    kept_ones = sorted(kept_ones, key=lambda place: (-scores[box[place], label[place]], place))
    assert len(kept_ones) > 300
    assert np.array_equal(found["boxes"], boxes[box][kept_ones])
    assert np.array_equal(found["labels"], label[kept_ones])


def test_outputs_of_another_shape_are_said():
    with pytest.raises(InputError, match=r"has the shape \[3, 85\].*wanted \[84, 5"):
        step(yolox={})({"o": np.zeros((3, 85))}, {}, (64, 64))
    with pytest.raises(InputError, match="no output 'x'"):
        step(boxes={"boxes": "x"})({"boxes": np.zeros((3, 85))}, {}, (64, 64))


@pytest.mark.long
@pytest.mark.slow
def test_yolox_has_the_map_of_an_independent_evaluation(shared, tmp_path):
    """About 0.295 with the corner-aligned letterbox of YOLOX itself (README of the models: 0.296)."""
    folder = tmp_path / "artifact"
    folder.mkdir()
    (folder / "model.onnx").write_bytes((shared / "models" / "yolox_nano.onnx").read_bytes())
    spec = TensorSpec(name="images", shape=(1, 3, 416, 416))
    letterbox = {"size": 416, "fill": 114, "align": "top_left"}
    data = {
        "source": f"coco:{shared / 'datasets' / 'coco_tiny_val'}",
        "prepare": {"letterbox": letterbox, "channel_order": "bgr"},
    }
    request = EvaluationRequest(
        artifact=Artifact("k", Format.ONNX, folder, "fp32", 1, "d"),
        runner="onnxruntime",
        options={"threads": 2},
        inputs=(spec,),
        data=DataSettings.model_validate(data),
        folder=tmp_path,
        settings=AccuracySettings(metric="map"),
        out=tmp_path / "out",
        feeds=(spec,),
        postprocess=PostprocessSettings.model_validate({"yolox": {"max_detections": 10_000}}),
    )
    found = accuracy.evaluate(request, Silent(), log=tmp_path / "log")
    wanted = independent(shared, data, spec, folder)
    assert found.value == pytest.approx(wanted, abs=1e-9)
    assert found.value == pytest.approx(0.295, abs=0.003)
    itself = accuracy.compare(found, found)
    assert itself.drop.value == 0
    # Nothing is lost, and of images not seen 80 cannot say more.
    assert -0.03 < itself.drop.low < 0 < itself.drop.high < 0.03


@pytest.mark.long
@pytest.mark.slow
def test_a_detector_has_the_same_map_in_every_layout(shared):
    """YOLOX's outputs for some photographs, laid out as other detectors give theirs."""
    import onnxruntime

    from optcli import data as rooms

    spec = TensorSpec(name="images", shape=(1, 3, 416, 416))
    letterbox = {"size": 416, "fill": 114, "align": "top_left"}
    settings = {
        "source": f"coco:{shared / 'datasets' / 'coco_tiny_val'}",
        "prepare": {"letterbox": letterbox, "channel_order": "bgr"},
    }
    samples = rooms.open(DataSettings.model_validate(settings), shared, (spec,))
    session = onnxruntime.InferenceSession(str(shared / "models" / "yolox_nano.onnx"))
    usual = {"score": 0.05, "nms": 0.65}
    yolox = step(yolox=usual)
    whole = {"scale": (1.0, 1.0), "padding": (0, 0)}  # stay in pixels of the input
    calls, layouts = [], {name: [] for name in ("rows", "ssd", "decoded", "detr", "torchvision")}
    for index in range(12):
        sample = samples[index]
        (out,) = session.run(None, {"images": sample.inputs["images"][None]})
        grid, stride = postprocess._grid((8, 16, 32), (416, 416))
        boxes = np.concatenate([(out[0, :, :2] + grid) * stride, np.exp(out[0, :, 2:4]) * stride], 1)
        scores = out[0, :, 4:5] * out[0, :, 5:]
        kept = yolox({"o": out}, whole, (416, 416))
        columns = [kept["boxes"], kept["scores"][:, None], kept["labels"][:, None]]
        rows = np.zeros((300, 6), np.float32)
        rows[: len(kept["labels"])] = np.concatenate(columns, axis=1)
        ssd = rows[:, [5, 5, 4, 0, 1, 2, 3]] / np.array([1, 1, 1, 416, 416, 416, 416], np.float32)
        ssd[:, 0], ssd[:, 1] = 0, ssd[:, 1] + 1
        numbers = np.setdiff1d(np.arange(1, 91), GAPS)
        with np.errstate(divide="ignore"):
            logits = np.log(scores) - np.log1p(-scores)
        calls.append((sample, {"output": out}))
        layouts["rows"].append({"output0": rows[None]})
        layouts["ssd"].append({"detections": ssd[None, None]})
        behind = np.full((len(boxes), 32), -3.5, np.float32)  # as coefficients of masks
        layouts["decoded"].append({"output0": np.concatenate([boxes, scores, behind], 1).T[None]})
        layouts["detr"].append({"logits": logits[None], "pred_boxes": boxes[None] / 416})
        layouts["torchvision"].append(
            {
                "boxes": kept["boxes"],
                "labels": numbers[kept["labels"]],
                "scores": kept["scores"],
            }
        )
    detr = {"boxes": "pred_boxes", "scores": "logits", "format": "cxcywh", "normalized": True}
    ssd = {"columns": ["image", "class", "score", "box"], "normalized": True, "first_label": 1}
    outputs = {"boxes": "boxes", "scores": "scores", "labels": "labels", "numbering": "coco"}
    decoded = {"format": "cxcywh", "transposed": True, "classes": 80, **usual}
    how = {
        "rows": {"rows": {"score": 0.05}},
        "ssd": {"rows": {"score": 0.05, **ssd}},
        "decoded": {"boxes": decoded},
        "detr": {"boxes": {**detr, "activation": "sigmoid", **usual}},
        "torchvision": {"boxes": {**outputs, "score": 0.05}},
    }

    def value(settings, outputs):
        seen = [
            Predictions([each.id], [each.target], [each.meta], one)
            for (each, _), one in zip(calls, outputs, strict=True)
        ]
        detector = decoding.make(PostprocessSettings.model_validate(settings), None, 80)
        found = [decoding.decode(detector, one, (416, 416))[0] for one in seen]
        targets, meta = ([getattr(each, key) for each, _ in calls] for key in ("target", "meta"))
        ids = [each.id for each, _ in calls]
        return Map().value(Map().records(Predictions(ids, targets, meta, {}, found)))

    wanted = value({"yolox": usual}, [one for _, one in calls])
    assert wanted > 0.2
    for name, settings in how.items():
        assert value(settings, layouts[name]) == pytest.approx(wanted, abs=2e-4), name


def independent(shared, data, spec, folder):
    """The same by other means: torchvision's NMS, the annotations as pycocotools reads them."""
    import torch
    import torchvision

    from optcli import data as rooms
    from optcli import runners
    from optcli.data import DataSettings

    samples = rooms.open(DataSettings.model_validate(data), shared, (spec,))
    cells, strides = [], []
    for stride in (8, 16, 32):
        size = 416 // stride
        y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
        cells.append(torch.stack([x, y], -1).reshape(-1, 2))
        strides.append(torch.full((size * size, 1), stride))
    cell, stride = torch.cat(cells), torch.cat(strides)
    with contextlib.redirect_stdout(io.StringIO()):
        ground = COCO(str(shared / "datasets" / "coco_tiny_val" / "instances.json"))
    names = sorted(ground.getCatIds())
    artifact = Artifact("k", Format.ONNX, folder, "fp32", 1, "d")
    marks = []
    with runners.find("onnxruntime")(threads=2).open(artifact, (spec,)) as model:
        for index in range(len(samples)):
            sample = samples[index]
            out = torch.tensor(
                next(iter(model.run({"images": sample.inputs["images"][None]}).values()))
            )[0]
            centre, extent = (out[:, :2] + cell) * stride, out[:, 2:4].exp() * stride
            scores = out[:, 4:5] * out[:, 5:]
            box, label = torch.nonzero(scores > 0.01, as_tuple=True)
            boxes = torch.cat([centre - extent / 2, centre + extent / 2], 1)[box]
            left = torchvision.ops.batched_nms(boxes, scores[box, label], label, 0.65)
            scale = sample.meta["scale"]
            for row in left.tolist():
                a, b, c, d = boxes[row].double().tolist()
                place = [a / scale[1], b / scale[0], (c - a) / scale[1], (d - b) / scale[0]]
                score = float(scores[box[row], label[row]])
                marks.append(
                    {
                        "image_id": sample.meta["image_id"],
                        "category_id": names[int(label[row])],
                        "bbox": place,
                        "score": score,
                    }
                )
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = COCOeval(ground, ground.loadRes(marks), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats[0]


@pytest.mark.slow
def test_detections_survive_the_merging_of_parts(tmp_path):
    """Numbers of samples move when parts are joined: the value is that of the whole."""
    truths, found = invented(16)
    whole = records_of(range(16), truths, found, batch=16)
    parts = [
        records_of(range(16)[part], truths[part], found[part]) for part in (slice(6), slice(6, 16))
    ]
    for job, (records, offset) in enumerate(zip(parts, (0, 6), strict=True)):
        part = shards.SpanCollector(tmp_path / f"part-{job}", range(offset, offset + 10), 16, None, 100)
        count = len(records["image"])
        part.begin(count, {"y": np.zeros((count, 2), np.float32)})
        ids = [str(offset + i) for i in range(count)]
        outputs = {"y": np.zeros((count, 2), np.float32)}
        contents = np.array([each.rjust(16).encode() for each in ids], "V16")
        part.add(Predictions(ids, [None] * count, [{}] * count, outputs), records, contents)
        part.write({}, None, {})
    process.merge(tmp_path, 2, "map", Map(), {"runner": "r"})
    assert accuracy.Evaluation.load(tmp_path).value == pytest.approx(Map().value(whole))


def test_average_precision_of_each_class_is_pycocotools():
    truths, found = invented(12)
    records = records_of(range(12), truths, found)
    by_class = Map().by_class(records)
    assert by_class.value.mean() == pytest.approx(Map().value(records))
    for label, value in zip(by_class.label.tolist(), by_class.value, strict=True):
        mine, theirs = (
            [
                {**each, **{k: np.asarray(each[k])[np.asarray(each["labels"]) == label] for k in keys}}
                for each in every
            ]
            for every, keys in (
                (found, ("boxes", "scores", "labels")),
                (truths, ("boxes", "labels", "crowd")),
            )
        )
        assert value == pytest.approx(library_stats(range(12), theirs, mine)[0], abs=1e-9)


def test_a_detector_that_finds_nothing_is_nothing_to_compare_with():
    truths, found = invented(12)
    nothing = [{"boxes": np.empty((0, 4)), "labels": [], "scores": []} for _ in found]
    lost = records_of(range(12), truths, nothing)
    assert "map is 0" in labels.doubts("map", Map(), lost, np.arange(12), None)[0]
    wrong = [{**each, "boxes": np.asarray(each["boxes"]) + 500.0} for each in found]
    wrong[0] = {key: np.asarray(found[0][key])[:1] for key in found[0]}
    records = records_of(range(12), truths, wrong)
    assert 0 <= Map().value(records) <= 0.01
    assert labels.doubts("map", Map(), records, np.arange(12), None)
    assert labels.doubts("map", Map(), records_of(range(12), truths, found), np.arange(12), None) == []


def test_a_letterbox_that_is_not_yoloxs_is_said():
    yolox = PostprocessSettings.model_validate({"yolox": {}})
    boxes = PostprocessSettings.model_validate({"boxes": {}})
    centred = Preparation.model_validate({"letterbox": {"size": 416}})
    (said,) = decoding.remarks(yolox, centred)
    assert "centres it" in said
    assert "align: top_left" in said
    (said,) = decoding.remarks(yolox, Preparation.model_validate({"resize": [416, 416]}))
    assert "fits no letterbox" in said
    top_left = Preparation.model_validate({"letterbox": {"size": 416, "align": "top_left"}})
    assert decoding.remarks(yolox, top_left) == []
    assert decoding.remarks(boxes, centred) == decoding.remarks(None, None) == []
