"""Labels of YOLO: every form of a line, and where a data.yaml says that images lie."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from generated import picture, spec

from optcli.data import DataSettings, class_names, image_files, ingredients, layouts, problems
from optcli.data import open as open_data
from optcli.data.layouts import yolo as yolo_labels
from optcli.errors import InputError
from optcli.files.digest import FileDigests

# x, y, width and height of a box; and a polygon and corners that lie in the same place.
BOX = "1 0.5 0.5 0.5 0.5"
TURNED = "0 0.5 0.25 0.75 0.5 0.5 0.75 0.25 0.5"


def data_set(
    folder: Path, lines: dict[str, str], about: str = "val: images/val\nnames: [cat, dog]\n"
) -> None:
    """Images of 20 x 12 pixels with label files, and the YAML file."""
    for number, (name, text) in enumerate(lines.items()):
        image = folder / "images" / "val" / f"{name}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(image)
        labels = folder / "labels" / "val" / f"{name}.txt"
        labels.parent.mkdir(parents=True, exist_ok=True)
        if text:
            labels.write_bytes(text.encode())
    (folder / "data.yaml").write_text(about)


def opened(folder: Path, **more):
    settings = DataSettings.model_validate({"source": "yolo:data", "split": "val", **more})
    return open_data(settings, folder, [spec(3, 12, 20)])


def target(folder: Path, text: str, about: str = "val: images/val\nnames: [cat, dog]\n"):
    data_set(folder / "data", {"a": text}, about)
    return opened(folder)[0].target


def test_boxes_and_images_without_a_file(tmp_path):
    data_set(tmp_path / "data", {"b": f"\ufeff{BOX}\r\n\r\n{BOX}\r\n0 0.1 0.25 0.2 0.5", "a": ""})
    samples = opened(tmp_path)
    assert [sample.id for sample in samples] == ["a.png", "b.png"]
    assert samples[0].target["boxes"].shape == (0, 4)
    assert np.allclose(samples[1].target["boxes"], [[5, 3, 15, 9], [0, 0, 4, 6]])
    assert samples[1].target["labels"].tolist() == [1, 0], "a line that stands twice counts once"
    assert class_names(DataSettings(source="yolo:data"), tmp_path) == ("cat", "dog")


def test_polygons_corners_and_keypoints(tmp_path):
    polygon = target(tmp_path / "segment", "1 0 0 1 0 0 1\n0 0 0 0.5 0 0.5 0.5 0 0.5")
    assert polygon["segmentation"][0] == [[0, 0, 20, 0, 0, 12]]
    assert polygon["areas"].tolist() == [120, 60]
    assert "corners" not in polygon, "a polygon of three points is among them"
    corners = target(tmp_path / "obb", TURNED)["corners"]
    assert corners.tolist() == [[[10, 3], [15, 6], [10, 9], [5, 6]]]
    about = "val: images/val\nnames: {0: cat, 1: dog}\nkpt_shape: [2, 3]\n"
    points = target(tmp_path / "pose", f"{BOX} 0.5 0.5 2 0 0 0", about)["keypoints"]
    assert points.tolist() == [[[10, 6, 2], [0, 0, 0]]]
    points = target(tmp_path / "flat", f"{BOX} 0.5 0.5 0 0", about.replace("3]", "2]"))["keypoints"]
    assert points.tolist() == [[[10, 6, 2], [0, 0, 0]]]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2 0.5 0.5 0.5 0.5", "the classes are 0 to 1"),
        ("0.5 0.5 0.5 0.5 0.5", "whole number"),
        ("0 320 240 64 64", "wanted 0 to 1: pixels"),
        ("0 0.5 0.5 0.5", "3 numbers behind the class"),
        ("0 0.5 0.5 0.5 0.5 0.9", "a prediction with its score"),
        ("0 0.5 nan 0.5 0.5", "finite"),
        ("0 0.5 0.5 cat 0.5", "'cat'"),
        ("0 0 0 1 0 0 1 1", "7 numbers"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, said):
    with pytest.raises(InputError, match=said) as raised:
        target(tmp_path, f"{BOX}\n{line}")
    assert raised.value.place.endswith("a.txt, line 2")


def test_keypoints_that_are_not_there_are_refused(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text(BOX)
    with pytest.raises(InputError, match="wanted 55"):
        yolo_labels.read(file, (17, 3), 80)


@pytest.mark.parametrize(
    ("about", "where"),
    [
        ("path: .\nval: images/val", "."),
        ("path: {root}\nval: images/val", "."),
        ("path: elsewhere/not/here\nval: images/val", "."),
        ("val: ../images/val", "."),
        ("val: [images/val]", "."),
        ("validation: images\\val", "."),
        ("val: /content/drive/mine/images/val", "."),
        ("val: C:\\sets\\mine\\images\\val", "."),
        ("val: val.txt", "."),
        ("val: absolute.txt", "."),
        ("path: ..\nval: images", "yaml"),
    ],
)
def test_paths_as_ultralytics_reads_them(tmp_path, about, where):
    data_set(tmp_path / "data", {"a": BOX})
    (tmp_path / "data" / "val.txt").write_text("./images/val/a.png\r\n")
    (tmp_path / "data" / "absolute.txt").write_text("/home/anna/mine/images/val/a.png\n")
    (tmp_path / "data" / "data.yaml").unlink()
    file = tmp_path / "data" / where / "data.yaml"
    file.parent.mkdir(exist_ok=True)
    file.write_text(about.format(root=tmp_path / "data") + "\nnc: 2\n")
    samples = opened(tmp_path, source=f"yolo:data/{where}/data.yaml")
    assert samples[0].target["labels"].tolist() == [1]
    assert class_names(DataSettings(source="yolo:data/" + where), tmp_path) is None


def test_the_last_part_of_another_machines_path_is_not_enough(tmp_path):
    data_set(tmp_path / "data", {"a": BOX})
    (tmp_path / "data" / "data.yaml").write_text("val: /content/train/images\nnc: 2\n")
    with pytest.raises(InputError, match="/content/train/images"):
        opened(tmp_path, source="yolo:data/data.yaml")


def test_the_folder_of_ultralytics_settings(tmp_path, monkeypatch):
    data_set(tmp_path / "sets" / "mine", {"a": BOX})
    (tmp_path / "settings.json").write_text(json.dumps({"datasets_dir": str(tmp_path / "sets")}))
    monkeypatch.setenv("YOLO_CONFIG_DIR", str(tmp_path))
    (tmp_path / "data.yaml").write_text("path: mine\nval: images/val\nnames: [cat, dog]\n")
    assert len(opened(tmp_path, source="yolo:data.yaml")) == 1


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ("val: images/val\nnc: 3\nnames: [cat, dog]", "found 3, and 2 names"),
        ("val: images/val\nnames: {1: cat, 2: dog}", "numbers 1, 2"),
        ("val: images/nowhere\nnames: [cat]", "there is no images/nowhere"),
        ("names: [cat]", "no train, val or test"),
        ("train: images/val\nnames: [cat]", "has no 'val'"),
        ("- a list", "no mapping"),
        ("a: [", "no YAML"),
        ("val: images/val\nval: images/val\nnames: [cat]", "duplicate key"),
    ],
)
def test_a_wrong_description_is_refused(tmp_path, about, said):
    data_set(tmp_path / "data", {"a": BOX}, about)
    for source in ("yolo:data/data.yaml", "yolo:data"):
        settings = DataSettings.model_validate({"source": source, "split": "val"})
        assert said in problems(settings, tmp_path)[0][1]


def test_the_part_must_be_named_where_there_are_several(tmp_path):
    data_set(tmp_path / "data", {"a": BOX}, "train: images/val\nval: images/val\nnames: [cat, dog]")
    (finding,) = problems(DataSettings(source="yolo:data"), tmp_path)
    assert finding[0] == "split"
    assert finding[2] == "split: val"


def test_images_of_which_none_has_labels_are_refused(tmp_path):
    data_set(tmp_path / "data", {"a": "", "b": ""})
    with pytest.raises(InputError, match="none of 2 images of val has a label file"):
        opened(tmp_path)


def test_a_folder_with_a_list_of_classes(tmp_path):
    data_set(tmp_path / "data", {"a": BOX})
    (tmp_path / "data" / "data.yaml").unlink()
    (tmp_path / "data" / "classes.txt").write_text("cat\ndog\n")
    settings = DataSettings(source="yolo:data")
    assert class_names(settings, tmp_path) == ("cat", "dog")
    assert len(open_data(settings, tmp_path, [spec(3, 12, 20)])) == 1


def test_its_key_is_its_content(tmp_path):
    def key(source: str):
        settings = DataSettings.model_validate({"source": source, "split": "val"})
        return ingredients(settings, tmp_path, FileDigests())["content"]

    data_set(tmp_path / "data", {"a": BOX})
    first = key("yolo:data")
    (tmp_path / "data").rename(tmp_path / "moved")
    assert key("yolo:moved") == first
    (tmp_path / "moved" / "labels" / "val" / "a.txt").write_text(TURNED)
    assert key("yolo:moved") != first


def test_labels_are_those_of_the_turned_image_where_it_is_turned(tmp_path):
    data_set(tmp_path / "data", {"a": BOX})
    image = picture(0)
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "data" / "images" / "val" / "a.png", exif=exif)
    settings = {"source": "yolo:data", "split": "val", "prepare": {"orient": True}}
    samples = open_data(DataSettings.model_validate(settings), tmp_path, [spec(3, 20, 12)])
    assert np.allclose(samples[0].target["boxes"], [[3, 5, 9, 15]])


def test_what_is_said_of_a_part(tmp_path, monkeypatch):
    monkeypatch.setattr(image_files, "_reads_heic", lambda: False)
    data_set(tmp_path / "data", {"a": f"{BOX}\n{BOX}", "b": BOX})
    image = picture(0)
    exif = image.getexif()
    exif[0x0112] = 6
    image.save(tmp_path / "data" / "images" / "val" / "b.png", exif=exif)
    for name in ("c.heic", "d", "notes.txt", ".hidden"):
        (tmp_path / "data" / "images" / "val" / name).write_bytes(b"x")
    settings = DataSettings.model_validate({"source": "yolo:data", "split": "val"})
    part = layouts.find("yolo")(settings, tmp_path)
    assert part.empty_classes() == ("cat",)
    *said, turned = part.remarks(False)
    assert "1 of 2 images is annotated as turned by the EXIF orientation" in turned
    assert part.remarks(True) == said
    assert said == [
        "1 line stands twice in a label file, and counts once",
        "2 files are no images by their suffix, and are left out: 1 .heic, 1 without"
        " (pip install pillow-heif reads .heic)",
    ]
