"""What `labels` of a recipe does to targets: numbers, boxes and masks."""

import json

import numpy as np
import pytest
from generated import picture, spec

from optcli.data import DataSettings, class_names, ingredients
from optcli.data import open as open_data
from optcli.data.labels import Labels, with_map
from optcli.errors import InputError
from optcli.files.digest import FileDigests
from optcli.settings.labels import LabelSettings


def labels(names=None, ids=(), **settings):
    return Labels(LabelSettings.model_validate(settings), names, ids)


def test_labels_by_name_by_number_and_by_offset():
    said = labels(["cat", "dog", "elk"], map={"dog": 12, "2": 7}, offset=1)
    assert [said.target(each) for each in (0, 1, np.int64(2))] == [1, 12, 7]
    assert labels(map={"3": 0}).target(3) == labels(map={"3": 0}).target(np.array([3])) == 0
    with pytest.raises(InputError, match="no class 'bird'"):
        labels(["cat"], map={"bird": 1})


def test_the_model_s_classes_may_be_named():
    assert labels(["cat"], map={"cat": "Felis"}, classes=["Canis", "Felis"]).target(0) == 1
    with pytest.raises(InputError, match="the model has no class 'Feles'"):
        labels(["cat"], map={"cat": "Feles"}, classes=["Canis", "Felis"])
    with pytest.raises(InputError, match="two classes 'crane'"):
        labels(["cat"], map={"cat": "crane"}, classes=["crane", "crane"])


def test_boxes_of_ignored_classes_are_left_out_with_all_that_belongs_to_them():
    target = {
        "boxes": np.arange(8.0).reshape(2, 4),
        "labels": np.array([0, 1]),
        "category_ids": np.array([3, 7]),
        "segmentation": [[[0, 0, 1, 1]], [[2, 2, 3, 3]]],
    }
    said = labels(["cat", "dog"], (3, 7), ignore=["cat"], offset=-1)
    found = said.target(target)
    assert found["labels"].tolist() == [0]
    assert found["boxes"].tolist() == [[4, 5, 6, 7]]
    assert found["category_ids"].tolist() == [7]
    assert found["segmentation"] == [[[2, 2, 3, 3]]]


def test_category_ids_are_what_numbers_of_annotations_mean():
    said = labels(["person", "stop"], (1, 13), numbering="ids")
    assert [said.of(0), said.of(1)] == [1, 13]
    assert said.names is not None
    assert (said.names[13], len(said.names)) == ("stop", 14)
    assert labels(["person", "stop"], (1, 13), map={"13": 4}).of(1) == 4


def test_masks_of_ade20k_and_of_0_and_255():
    mask = np.array([[0, 1], [150, 255]], np.uint8)
    assert labels(ignore=[0], offset=-1).target(mask).tolist() == [[255, 0], [149, 255]]
    assert labels(map={"255": 1}).target(np.array([[0, 255]])).tolist() == [[0, 1]]


def several(said, target):
    found = said.target(target)
    return [found[name].tolist() for name in ("labels", "absent") if name in found]


def test_several_classes_an_image():
    moved = labels(["cat", "dog", "elk"], map={"dog": 5}, ignore=["elk"], offset=1)
    assert several(moved, np.array([1, 1, 1])) == [[1, 5], []]
    assert several(moved, [0.0, 1.0, 0.0]) == [[5], [1]]
    assert several(moved, [-1, 0, 1]) == [[], [5]]
    assert several(labels(["cat", "lynx"], map={"lynx": 0}), [0, 1]) == [[0], []]
    assert several(labels(["cat", "lynx"], map={"lynx": 0}), [0, -1]) == [[], []]
    assert several(labels(offset=1), [7, 0, -1, -1]) == [[8, 1]]
    assert several(labels(offset=1), [0, 0, 1, 0]) == [[3], [1, 2, 4]]
    with pytest.raises(InputError, match="both 0 or 1 for each class and a list"):
        labels(offset=1).target([1, -1, -1])
    assert labels(offset=1).target([0.5, 1.0]) == [0.5, 1.0]


def test_a_map_may_be_a_file(tmp_path):
    (tmp_path / "map.yaml").write_bytes(b"\xef\xbb\xbfdog: 12\n3: cat\n")
    said = with_map(LabelSettings(map="map.yaml"), tmp_path)
    assert said.map == {"dog": 12, "3": "cat"}
    (tmp_path / "map.yaml").write_text("- dog\n")
    with pytest.raises(InputError, match="this is no map of labels"):
        with_map(LabelSettings(map="map.yaml"), tmp_path)


@pytest.fixture
def folders(tmp_path):
    for name in ("ant", "bee"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(2):
            picture(number).save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path


def test_samples_that_are_ignored_are_left_out(folders):
    settings = DataSettings.model_validate(
        {"source": "imagefolder:photos", "labels": {"ignore": ["ant"], "offset": 4}}
    )
    samples = open_data(settings, folders, [spec(3, 12, 20)])
    assert [(sample.id, sample.target) for sample in samples] == [("bee/0.png", 5), ("bee/1.png", 5)]
    assert [target for _, target in samples.targets()] == [5, 5]
    assert class_names(settings, folders) == (
        *(f"class {number}" for number in range(5)),
        "bee",
    )


def test_a_folder_without_a_file_is_a_class_without_an_image(folders):
    (folders / "photos" / "asp").mkdir()
    settings = DataSettings(source="imagefolder:photos")
    assert class_names(settings, folders) == ("ant", "asp", "bee")
    assert [sample.target for sample in open_data(settings, folders, [spec(3, 12, 20)])] == [0, 0, 2, 2]


def test_the_key_of_samples_knows_the_map_by_its_content(folders):
    (folders / "map.json").write_text(json.dumps({"ant": 3}))
    settings = DataSettings.model_validate(
        {"source": "imagefolder:photos", "labels": {"map": "map.json"}}
    )
    first = ingredients(settings, folders, FileDigests())
    (folders / "map.json").write_text(json.dumps({"ant": 4}))
    assert ingredients(settings, folders, FileDigests()) != first
    plain = ingredients(DataSettings(source="imagefolder:photos"), folders, FileDigests())
    assert "labels" not in plain["settings"]
