"""The same boxes in the forms of COCO, YOLO, Roboflow and Pascal VOC give the same mAP."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converted import Coco
from generated import picture, spec

from optcli.accuracy.metrics import Predictions
from optcli.accuracy.metrics.map import Map
from optcli.data import DataSettings, class_names
from optcli.data import open as open_data


def drawn(folder: Path) -> Coco:
    """12 images of several sizes, boxes at fractions of pixels, one crowd, gaps in the ids."""
    random = np.random.default_rng(0)
    (folder / "images").mkdir(parents=True)
    images: list[dict[str, Any]] = []
    boxes: list[dict[str, Any]] = []
    for number in range(12):
        width, height = (int(size) for size in random.integers(20, 90, 2))
        picture(number, size=(width, height)).save(folder / "images" / f"{number:03}.png")
        images.append({"id": number + 100, "file_name": f"{number:03}.png"})
        for _ in range(int(random.integers(0, 5))):
            left, top = random.uniform(0, [width - 9, height - 9]).round(2).tolist()
            size = random.uniform(2, 9, 2).round(2).tolist()
            box = {"image_id": number + 100, "bbox": [left, top, *size], "iscrowd": 0}
            boxes.append({**box, "id": len(boxes) + 1, "category_id": [3, 7, 90][len(boxes) % 3]})
    boxes[4]["iscrowd"] = 1
    categories = [{"id": i, "name": name} for i, name in ((3, "ant"), (7, "bee"), (90, "cat"))]
    record = {"images": images, "annotations": boxes, "categories": categories}
    (folder / "instances.json").write_text(json.dumps(record))
    return Coco(folder)


def without_crowds(coco: Coco, out: Path) -> Coco:
    """What YOLO can say of a set."""
    shutil.copytree(coco.folder / "images", out / "images")
    boxes = [each for each in coco.record["annotations"] if not each.get("iscrowd")]
    (out / "instances.json").write_text(json.dumps({**coco.record, "annotations": boxes}))
    return Coco(out)


def targets_of(names: list[str], source: str, split: str | None = None) -> list[dict[str, Any]]:
    """What a source gives, with labels in the order of `names`."""
    settings = DataSettings.model_validate({"source": source, "split": split})
    own = class_names(settings, Path())
    assert own is not None
    order = np.array([names.index(name) for name in own])
    samples = open_data(settings, Path(), [spec(3, 8, 8)])
    return [{**target, "labels": order[target["labels"]]} for _, target in samples.targets()]


def invented(truths: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Two detections for each box, at some distance from it."""
    draw = np.random.default_rng(1)
    found = []
    for truth in truths:
        count = 2 * len(truth["boxes"])
        moved = np.repeat(truth["boxes"], 2, axis=0) + draw.normal(0, 0.6, (count, 4))
        boxes = np.concatenate([moved[:, :2], np.maximum(moved[:, 2:], moved[:, :2])], axis=1)
        labels = np.repeat(truth["labels"], 2)
        found.append({"boxes": boxes, "scores": draw.uniform(0, 1, count), "labels": labels})
    return found


def mean_precision(truths: list[dict[str, Any]], found: list[dict[str, Any]]) -> float:
    meta = [{"image_id": number} for number in range(len(truths))]
    seen = Predictions([str(n) for n in range(len(truths))], truths, meta, {}, found)
    metric = Map()
    return metric.value(metric.records(seen))


def compare(coco: Coco, folder: Path) -> float:
    """The mAP of the set in COCO's layout, which all others give as well."""
    names = [coco.names[number] for number in coco.categories]
    truths = targets_of(names, f"coco:{coco.folder}")
    found = invented(truths)
    whole = mean_precision(truths, found)
    for source in (
        f"coco:{coco.to_roboflow(folder / 'roboflow')}",
        f"voc:{coco.to_voc(folder / 'voc')}",
    ):
        split = "valid" if source.startswith("coco") else "val"
        assert mean_precision(targets_of(names, source, split), found) == whole
    plain = targets_of(names, f"coco:{without_crowds(coco, folder / 'plain').folder}")
    truths = targets_of(names, f"yolo:{coco.to_yolo(folder / 'yolo')}", "val")
    assert mean_precision(truths, found) == mean_precision(plain, found)
    return whole


@pytest.mark.slow
def test_a_drawn_set(tmp_path):
    assert 0.1 < compare(drawn(tmp_path / "coco"), tmp_path) < 0.9


@pytest.mark.long
@pytest.mark.slow
def test_real_boxes(shared, tmp_path):
    coco = Coco(shared / "datasets" / "coco_tiny_val")
    assert 0.1 < compare(coco, tmp_path) < 0.95
