"""What `init` makes of a folder of data: COCO's annotations, masks beside images, class folders."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from optcli.data import DataSettings
from optcli.data import open as open_data
from optcli.errors import InputError
from optcli.outputs import Guess
from optcli.scaffold import known_layouts
from optcli.scaffold.data import described
from optcli.scaffold.text import DraftModel, _measures, why_not_judged
from optcli.settings import TensorSpec


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(
        "optcli.scaffold.known_layouts.run",
        lambda _, request, *__, **___: known_layouts.look(request, None),
    )
    return tmp_path


def image(path: Path, pixels: np.ndarray | None = None, mode: str | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.zeros((6, 8, 3), np.uint8) if pixels is None else pixels
    made = Image.fromarray(values)
    (made.convert(mode) if mode else made).save(path)


def annotations(file: Path, names: list[str], categories: int = 3) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    record = {
        "images": [{"id": i, "file_name": name} for i, name in enumerate(names)],
        "annotations": [{"image_id": 0, "category_id": 1, "bbox": [0, 0, 2, 2]}],
        "categories": [{"id": i + 1, "name": str(i)} for i in range(categories)],
    }
    file.write_text(json.dumps(record))


def lines(found) -> dict[str, tuple[str, ...]]:
    return {"calibration": found.calibration, "evaluation": found.evaluation}


def opened(found, role: str, folder: Path):
    """The samples of a role as the recipe in `folder` would read them."""
    from ruamel.yaml import YAML

    text = "\n".join([f"source: {found.source}", *lines(found)[role], "prepare: {channel_order: rgb}"])
    read = json.loads(json.dumps(YAML(typ="safe").load(text)))  # keys of a recipe are text
    settings = DataSettings.model_validate(read)
    spec = TensorSpec.model_validate({"name": "x", "dtype": "float32", "shape": [1, 3, 6, 8]})
    return open_data(settings, folder, [spec])


def test_annotations_beside_images(here):
    for name in ("a.jpg", "b.jpg"):
        image(here / "data" / "images" / name)
    annotations(here / "data" / "instances.json", ["a.jpg", "b.jpg"])
    for place in (here / "data", here / "data" / "instances.json"):
        found = described(place, here)
        assert (found.kind, found.classes) == ("boxes", 3)
        assert found.source == f"coco:{place.relative_to(here)}"
        assert found.evaluation == ("split: {seed: 0, from: 0.25}",)


def test_cocos_own_layout(here):
    for part in ("train2017", "val2017"):
        image(here / "coco" / part / "a.jpg")
        annotations(here / "coco" / "annotations" / f"instances_{part}.json", ["a.jpg"], 80)
    found = described(here / "coco", here)
    assert lines(found) == {"calibration": ("split: train2017",), "evaluation": ("split: val2017",)}
    assert found.classes == 80
    (here / "coco" / "train2017" / "a.jpg").unlink()
    (here / "coco" / "train2017").rmdir()
    found = described(here / "coco", here)
    assert found.calibration == ("split: {seed: 0, of: val2017, to: 0.25}",)


def test_annotations_without_their_images_are_refused(here):
    annotations(here / "data" / "instances.json", ["a.jpg"])
    with pytest.raises(InputError, match="no folder of images"):
        described(here / "data", here)
    (here / "data" / "other.json").write_text("[1, 2]")
    with pytest.raises(InputError):
        described(here / "data" / "other.json", here)


@pytest.mark.parametrize(
    ("images", "targets", "ending"),
    [("images", "masks", ""), ("JPEGImages", "SegmentationClass", ""), ("img", "labels", "_L")],
)
def test_masks_beside_images(here, images, targets, ending):
    labels = np.arange(48, dtype=np.uint8).reshape(6, 8) % 5
    labels[0, 0] = 255
    for name in ("a", "b", "c", "d"):
        image(here / "data" / images / f"{name}.jpg")
        image(here / "data" / targets / f"{name}{ending}.png", labels)
    image(here / "data" / images / "alone.jpg")
    found = described(here / "data", here)
    assert (found.kind, found.classes, found.ignored) == ("pixels", 5, 255)
    samples = opened(found, "evaluation", here)
    assert len(samples) == 2
    assert np.array_equal(samples[0].target, labels)


@pytest.mark.parametrize("above", [True, False])
def test_masks_of_a_split(here, above):
    for part in ("train", "val"):
        for kind in ("images", "masks"):
            folder = here / "data" / part / kind if above else here / "data" / kind / part
            image(folder / f"{part}.png", np.ones((6, 8), np.uint8))
    found = described(here / "data", here)
    assert found.kind == "pixels"
    assert [len(opened(found, role, here)) for role in lines(found)] == [1, 1]
    assert opened(found, "evaluation", here)[0].id == "val.png"


def test_masks_of_two_values_and_in_three_channels(here):
    binary = np.zeros((6, 8), np.uint8)
    binary[:3] = 255
    for name in ("a", "b"):
        image(here / "data" / "images" / f"{name}.png")
        image(here / "data" / "masks" / f"{name}.png", binary, "RGB")
    found = described(here / "data", here)
    assert (found.classes, found.ignored) == (2, None)
    assert np.array_equal(opened(found, "evaluation", here)[0].target, binary // 255)


def test_coloured_masks_are_numbered(here):
    colours = np.zeros((6, 8, 3), np.uint8)
    colours[:3] = (128, 64, 0)
    for name in ("a", "b"):
        image(here / "data" / "images" / f"{name}.png")
        image(here / "data" / "masks" / f"{name}.png", colours)
    found = described(here / "data", here)
    assert found.classes == 2
    assert found.evaluation[-1] == "labels: {colours: [[0, 0, 0], [128, 64, 0]]}"
    assert "order" in found.notes[-1]
    target = opened(found, "evaluation", here)[0].target
    assert np.array_equal(target, colours[:, :, 0] // 128)


def test_greys_that_stand_for_classes_are_numbered(here):
    greys = np.repeat(np.array([0, 128, 255], np.uint8), 16).reshape(6, 8)
    for name in ("a", "b"):
        image(here / "data" / "images" / f"{name}.png")
        image(here / "data" / "masks" / f"{name}.png", greys)
    found = described(here / "data", here)
    assert found.classes == 3
    target = opened(found, "evaluation", here)[0].target
    assert np.array_equal(target, np.repeat([0, 1, 2], 16).reshape(6, 8))


def test_photographs_are_no_masks(here):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    for kind in ("images", "masks"):
        image(here / "data" / kind / "a.png", noise)
    with pytest.raises(InputError, match="more colours than classes"):
        described(here / "data", here)


def test_classes_called_images_and_masks_without_pairs_are_classes(here):
    image(here / "data" / "images" / "a.png")
    image(here / "data" / "masks" / "b.png")
    assert described(here / "data", here).kind == "classes"


def test_a_column_for_each_class(here):
    for name in ("a", "b"):
        image(here / "flat" / f"{name}.png")
    spec = TensorSpec(name="x", shape=(1, 3, 8, 8))
    for rows, metric in ((["a,1,1", "b,0,1"], "multilabel_map"), (["a,1,0", "b,0,1"], "top1")):
        (here / "flat" / "labels.csv").write_text("\n".join(["image,ant,bee", *rows]))
        found = described(here / "flat", here)
        assert found.classes == 2
        written = "\n".join(_measures(TRAINED, [spec], Guess("classes", 2), found))
        assert f"accuracy: {{metric: {metric}," in written


def test_a_table_beside_a_folder_of_images(here):
    for name in ("a", "b"):
        image(here / "set" / "train" / f"{name}.png")
    image(here / "set" / "test" / "c.png")
    (here / "set" / "train.csv").write_text("id,label\na,ant\nb,bee\n")
    found = described(here / "set", here)
    assert (found.classes, found.source) == (2, "imagefolder:set/train")
    assert found.evaluation[0] == "table: set/train.csv"


def test_classes_of_all_roles_are_counted_and_what_one_lacks_is_said(here):
    for name in ("train/ant", "train/bee", "val/bee"):
        image(here / "set" / name / "1.png")
    found = described(here / "set", here)
    assert found.classes == 2
    assert found.notes == ("val has no folder of the classes ant",)


def test_images_in_no_class_folder_have_no_labels(here):
    image(here / "flat" / "1.png")
    image(here / "flat" / "2.png")
    found = described(here / "flat", here)
    assert (found.classes, found.about) == (None, "images without labels")
    model = DraftModel("onnx:m.onnx", "onnx", trained=True)
    assert "no labels" in why_not_judged(model, Guess("classes", 1000), found)


def test_classes_are_counted_where_the_data_are_read(here):
    """A folder with nothing but one folder of class folders is entered, here as in a build.

    A folder without a file is a class too: who trains may have images of it.
    """
    for name in ("ant", "bee", "cat"):
        image(here / "set" / "images" / name / "1.png")
    (here / "set" / "names.json").write_text("{}")
    (here / "set" / "images" / "empty").mkdir()
    assert described(here / "set", here).classes == 4


MASKS, POINTS = "{rows: {prototypes: p}}", "{rows: {keypoints: [2, 3]}}"
TURNED = "{rows: {format: cxcywh, angle: true}}"


@pytest.mark.parametrize(
    ("decoding", "has", "says"),
    [
        (MASKS, {"segmentation": [[1, 1, 5, 1, 5, 5]]}, "metric: mask_map"),
        (MASKS, {"keypoints": [1, 1, 2, 3, 3, 2]}, "metric: map, max_drop: 0.01}    # may lose"),
        (POINTS, {"keypoints": [1, 1, 2, 3, 3, 2]}, "metric: keypoint_map"),
        ("{rows: {}}", {"segmentation": [[1, 1, 5, 1, 5, 5]]}, "metric: map,"),
        (TURNED, {}, "the data have no rotated boxes"),
    ],
)
def test_the_metric_is_of_what_both_the_model_and_the_data_have(here, decoding, has, says):
    image(here / "coco" / "images" / "a.jpg")
    file = here / "coco" / "instances.json"
    annotations(file, ["a.jpg"])
    record = json.loads(file.read_text())
    box = {"id": 1, "image_id": 0, "category_id": 1, "bbox": [0, 0, 4, 4], **has}
    file.write_text(json.dumps({**record, "annotations": [box]}))
    found = described(here / "coco", here)
    assert found.further_targets == tuple(has)
    spec = TensorSpec(name="x", shape=(1, 3, 8, 8))
    lines = "\n".join(_measures(TRAINED, [spec], Guess("boxes", 3, decoding), found))
    assert says in lines
    # Without data nobody knows better.
    assert "metric: map" not in "\n".join(_measures(TRAINED, [spec], Guess("boxes", 3, MASKS), None))
    assert "top1" not in "\n".join(_measures(TRAINED, [spec], Guess("unknown"), None))


TRAINED = DraftModel("onnx:m.onnx", trained=True)
