"""What `init` says of data in each layout, and of data that no layout reads."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from optcli.data import DataSettings, problems
from optcli.data import open as open_data
from optcli.errors import InputError
from optcli.scaffold.data import described
from optcli.scaffold.known_layouts import Data
from optcli.settings import TensorSpec


def image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    seed = sum(path.as_posix().encode())
    pixels = np.random.default_rng(seed).integers(0, 255, (6, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def text(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def judged(found: Data, folder: Path) -> list:
    """The targets of the evaluation as the written recipe reads them; both roles open."""
    from ruamel.yaml import YAML

    spec = TensorSpec.model_validate({"name": "x", "dtype": "float32", "shape": [1, 3, 6, 8]})
    samples = None
    for lines in (found.calibration, found.evaluation):
        said = YAML(typ="safe").load("\n".join([f"source: {found.source}", *lines]))
        settings = DataSettings.model_validate(said)
        assert problems(settings, folder) == []
        samples = open_data(settings, folder, [spec])
    return [samples[number].target for number in range(len(samples))]


def yolo(folder: Path, parts: tuple[str, ...] = ("train", "val")) -> None:
    for part in parts:
        for number in range(4):
            image(folder / "images" / part / f"{number}.png")
            text(folder / "labels" / part / f"{number}.txt", "1 0.5 0.5 0.5 0.5\n")
    places = "".join(f"{part}: images/{part}\n" for part in parts)
    text(folder / "data.yaml", f"{places}names: [cat, dog]\n")


def test_yolo(tmp_path):
    yolo(tmp_path / "data")
    for place in ("data", "data/data.yaml"):
        found = described(tmp_path / place, tmp_path)
        assert (found.kind, found.classes, found.source) == ("boxes", 2, f"yolo:{place}")
        assert (found.calibration, found.evaluation) == (("split: train",), ("split: val",))
        assert len(judged(found, tmp_path)) == 4
    assert "yolo, 4 images, 2 classes" in found.notes[0]


def test_yolo_of_which_one_part_is_here(tmp_path):
    yolo(tmp_path / "data", ("val",))
    file = tmp_path / "data" / "data.yaml"
    text(file, "train: images/train\n" + file.read_text())
    found = described(tmp_path / "data", tmp_path)
    assert found.evaluation == ("split: {seed: 0, of: val, from: 0.25}",)


def test_yolo_whose_parts_are_the_same(tmp_path):
    yolo(tmp_path / "data", ("val",))
    file = tmp_path / "data" / "data.yaml"
    text(file, "train: images/val\n" + file.read_text())
    found = described(tmp_path / "data", tmp_path)
    assert found.evaluation == ("split: {seed: 0, of: val, from: 0.25}",)


def test_yolo_without_its_images_is_refused(tmp_path):
    text(tmp_path / "data" / "data.yaml", "val: images/val\nnames: [cat]\n")
    with pytest.raises(InputError, match="there is no images/val"):
        described(tmp_path / "data", tmp_path)


def test_roboflow(tmp_path):
    for part in ("test", "train", "valid"):
        image(tmp_path / "data" / part / "a.png")
        box = {"image_id": 0, "category_id": 1, "bbox": [0, 0, 2, 2]}
        record = {
            "images": [{"id": 0, "file_name": "a.png"}],
            "annotations": [box],
            "categories": [{"id": 0, "name": "things"}, {"id": 1, "name": "cat"}],
        }
        text(tmp_path / "data" / part / "_annotations.coco.json", json.dumps(record))
    found = described(tmp_path / "data", tmp_path)
    assert (found.kind, found.source, found.evaluation) == ("boxes", "coco:data", ("split: valid",))
    (target,) = judged(found, tmp_path)
    assert target["category_ids"].tolist() == [1]


@pytest.mark.parametrize(
    ("file", "folder", "names"),
    [
        ("annotations/lvis_v1_val.json", "val2017", {"coco_url": "http://images/val2017/a.png"}),
        ("lvis_v1_val.json", "images", {"coco_url": "http://images/val2017/a.png"}),
        ("annotations/person_keypoints_val2017.json", "val2017", {"file_name": "a.png"}),
        ("mine.json", "images", {"file_name": "images\\a.png"}),
        ("result.json", "images", {"file_name": "images/a.png"}),
    ],
)
def test_coco_under_other_names(tmp_path, file, folder, names):
    image(tmp_path / "data" / folder / "a.png")
    box = {"image_id": 0, "category_id": 1, "bbox": [0, 0, 2, 2]}
    record = {
        "images": [{"id": 0, **names}],
        "annotations": [box],
        "categories": [{"id": 1, "name": "cat"}],
    }
    text(tmp_path / "data" / file, json.dumps(record))
    found = described(tmp_path / "data", tmp_path)
    assert (found.kind, found.classes, found.source) == ("boxes", 1, "coco:data")
    assert "coco, 1 image" in found.notes[0]


def test_darknet(tmp_path):
    for part in ("train", "valid"):
        for number in range(2):
            image(tmp_path / "data" / f"obj_{part}_data" / f"{number}.png")
            text(tmp_path / "data" / f"obj_{part}_data" / f"{number}.txt", "1 0.5 0.5 0.5 0.5\n")
    text(tmp_path / "data" / "obj.names", "cat\ndog\n")
    found = described(tmp_path / "data", tmp_path)
    assert (found.kind, found.classes, found.source) == ("boxes", 2, "yolo:data")
    assert (found.calibration, found.evaluation) == (("split: train",), ("split: val",))
    assert judged(found, tmp_path)[0]["labels"].tolist() == [1]


@pytest.mark.parametrize("flat", [True, False])
def test_voc(tmp_path, flat):
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>3</xmax><ymax>3</ymax></bndbox>"
    for part in ("train", "valid") if flat else ("",):
        for number in range(4):
            name = f"{part}{number}"
            images, xml = (part, part) if flat else ("JPEGImages", "Annotations")
            image(tmp_path / "data" / images / f"{name}.jpg")
            inner = f"<annotation><object><name>cat</name>{box}</object></annotation>"
            text(tmp_path / "data" / xml / f"{name}.xml", inner)
    found = described(tmp_path / "data", tmp_path)
    assert (found.kind, found.classes, found.source) == ("boxes", 1, "voc:data")
    assert judged(found, tmp_path)[0]["boxes"].tolist() == [[0, 0, 3, 3]]
    assert (found.evaluation == ("split: valid",)) is flat


@pytest.mark.parametrize(("first", "more"), [(0, ()), (1, ("first_label: 1",))])
def test_a_table_beside_a_flat_folder(tmp_path, first, more):
    for number in range(6):
        image(tmp_path / "data" / "val" / f"{number}.png")
    rows = "".join(f"{number}.png {number % 3 + first}\n" for number in range(6))
    text(tmp_path / "data" / "val.txt", rows)
    found = described(tmp_path / "data" / "val", tmp_path)
    assert (found.kind, found.classes, found.source) == ("classes", 3, "imagefolder:data/val")
    assert found.evaluation[:-1] == ("table: data/val.txt", *more)
    assert set(judged(found, tmp_path)) <= {0, 1, 2}
    assert len(found.notes) == 1 + first, "that labels count from 1 is a guess, and said"


def test_metadata_of_hugging_face(tmp_path):
    for part in ("train", "test"):
        rows = []
        for number in range(4):
            image(tmp_path / "data" / part / f"{number}.png")
            rows.append(json.dumps({"file_name": f"{number}.png", "label": number % 2}))
        text(tmp_path / "data" / part / "metadata.jsonl", "\n".join(rows))
    found = described(tmp_path / "data", tmp_path)
    assert (found.kind, found.classes) == ("classes", 2)
    assert judged(found, tmp_path) == [0, 1, 0, 1]


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ("images/{n}.png labels/{n}.txt", "images; beside the images lie 4 .txt"),
        ("images/train/{n}.png labels/train/{n}.txt images/val/{n}.png", "train, val; beside"),
        ("images/{n}.png annotations/{n}.mat", "images; beside the images lie 4 .mat"),
    ],
)
def test_halves_of_a_data_set_are_no_classes(tmp_path, files, said):
    for number in range(4):
        for name in files.format(n=number).split():
            (image if name.endswith("png") else lambda path: text(path, "x"))(tmp_path / "data" / name)
    with pytest.raises(InputError, match=said) as raised:
        described(tmp_path / "data", tmp_path)
    assert "YOLO (data.yaml" in raised.value.hint


def test_images_without_labels_are_never_silent(tmp_path):
    for number in range(4):
        image(tmp_path / "data" / f"{number}.png")
        text(tmp_path / "data" / f"{number}.mat", "x")
    found = described(tmp_path / "data", tmp_path)
    assert found.classes is None
    assert "4 .mat, which no layout reads" in found.notes[0]


def test_a_folder_of_images_in_a_folder(tmp_path):
    image(tmp_path / "data" / "images" / "a.png")
    found = described(tmp_path / "data", tmp_path)
    assert (found.source, found.classes) == ("imagefolder:data/images", None)


def test_a_folder_without_images_says_what_lies_there(tmp_path):
    for name in ("a.dcm", "b.dcm", "c.heic"):
        (tmp_path / name).touch()
    with pytest.raises(InputError, match=r"no images in .*: 2 \.dcm, 1 \.heic"):
        described(tmp_path, tmp_path)
