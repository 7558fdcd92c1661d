"""Boxes in COCO's format, and samples from the user's own code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generated import picture, spec

from optcli.data import DataSettings, disjoint, ingredients, problems
from optcli.data import open as open_data
from optcli.errors import InputError
from optcli.files.digest import FileDigests
from optcli.sample import batches

CATEGORIES = [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}]
BOXES = [
    {"id": 1, "image_id": 11, "category_id": 7, "bbox": [2, 3, 10, 4], "area": 33.5, "iscrowd": 0},
    {"id": 2, "image_id": 11, "category_id": 3, "bbox": [0, 0, 1, 1], "iscrowd": 1},
]


def opened(folder: Path, *inputs: Any, **settings: Any) -> Any:
    return open_data(DataSettings.model_validate(settings), folder, inputs)


def key(folder: Path, **settings: Any) -> dict[str, Any]:
    return ingredients(DataSettings.model_validate(settings), folder, FileDigests())


def found(folder: Path, **settings: Any) -> list[tuple[str, str, str]]:
    return problems(DataSettings.model_validate(settings), folder)


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """Two images, the second without boxes."""
    root = tmp_path / "coco"
    (root / "images").mkdir(parents=True)
    images = [{"id": 11, "file_name": "b.png"}, {"id": 12, "file_name": "a.png"}]
    for number, image in enumerate(images):
        picture(number).save(root / "images" / image["file_name"])
    record = {"images": images, "annotations": BOXES, "categories": CATEGORIES}
    (root / "instances.json").write_text(json.dumps(record))
    return tmp_path


def test_boxes_labels_and_the_way_back_to_the_original(coco):
    letterbox = {"letterbox": {"size": 40, "fill": 0}}
    samples = opened(coco, spec(3, 40, 40), source="coco:coco", prepare=letterbox)
    assert [sample.id for sample in samples] == ["a.png", "b.png"]
    empty, full = samples[0], samples[1]
    assert empty.target["boxes"].shape == (0, 4)
    assert full.target["boxes"].tolist() == [[2, 3, 12, 7], [0, 0, 1, 1]]
    assert full.target["labels"].tolist() == [1, 0], "the sorted category ids, counted from 0"
    assert full.target["category_ids"].tolist() == [7, 3]
    assert full.target["areas"].tolist() == [33.5, 1.0]
    assert full.target["crowd"].tolist() == [False, True]
    # 20 x 12 pixels become 40 x 24, with 8 rows above.
    assert full.meta == {
        "image_id": 11,
        "original_size": (12, 20),
        "scale": (2.0, 2.0),
        "padding": (8, 0),
    }
    assert len(next(batches(samples, 2)).targets) == 2


def test_masks_and_keypoints_are_given_where_the_annotations_have_them(coco):
    path = coco / "coco" / "instances.json"
    record = json.loads(path.read_text())
    first, second = record["annotations"]
    assert not {"segmentation", "keypoints"} & samples_of(coco)[1].target.keys()
    first |= {"segmentation": [[1, 2, 3, 4, 5, 6]], "keypoints": [1, 2, 2, 3, 4, 1]}
    second |= {"segmentation": [], "keypoints": None}
    path.write_text(json.dumps(record))
    empty, full = samples_of(coco)
    assert full.target["segmentation"] == [[[1, 2, 3, 4, 5, 6]], None]
    assert full.target["keypoints"].tolist() == [[[1, 2, 2], [3, 4, 1]], [[0, 0, 0]] * 2]
    assert empty.target["segmentation"] == []
    assert empty.target["keypoints"].shape == (0, 2, 3)
    for wrong, said in [([1, 2], "wanted 2 triples"), ("far", "'far'"), ([1, 2, "x"] * 2, "x")]:
        second["keypoints"] = wrong
        path.write_text(json.dumps(record))
        with pytest.raises(InputError, match=said) as caught:
            samples_of(coco)
        assert "annotations[1].keypoints" in caught.value.place


def samples_of(folder: Path) -> Any:
    return opened(folder, spec(3, 40, 40), source="coco:coco", prepare={"resize": 40, "crop": 40})


def test_cocos_own_layout_and_the_file_itself(coco):
    root = coco / "coco"
    (root / "annotations").mkdir()
    (root / "val2017").mkdir()
    (root / "instances.json").rename(root / "annotations" / "instances_val2017.json")
    for file in (root / "images").iterdir():
        file.rename(root / "val2017" / file.name)
    (root / "images").rmdir()
    by_split = {"source": "coco:coco", "split": "val2017"}
    by_file = {"source": "coco:coco/annotations/instances_val2017.json"}
    for settings in (by_split, by_file):
        assert len(opened(coco, spec(3, 12, 20), **settings)) == 2
    (field, message, _), *_ = found(coco, source="coco:coco", split="val2018")
    assert (field, message) == ("split", "there is no instances_val2018.json in the data")
    (root / "val2017").rename(coco / "elsewhere")
    assert "no folder of images" in found(coco, **by_split)[0][1]
    assert len(opened(coco, spec(3, 12, 20), **by_split, root="elsewhere")) == 2


def test_its_key_is_its_content(coco):
    first = key(coco, source="coco:coco")
    (coco / "coco").rename(coco / "moved")
    assert key(coco, source="coco:moved")["content"] == first["content"]
    picture(9).save(coco / "moved" / "images" / "a.png")
    changed = key(coco, source="coco:moved")["content"]
    assert changed["files"]["b.png"] == first["content"]["files"]["b.png"]
    assert changed["files"]["a.png"] != first["content"]["files"]["a.png"]
    assert len(key(coco, source="coco:moved", samples=1)["content"]["files"]) == 1


CODE = """
import numpy as np
from shared import SCALE

ARRAYS = [np.full((4,), number, "float32") for number in range(6)]


class Indexed:
    def __init__(self, count=6):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        if index == 5:
            raise OSError("a bad disk")
        return ARRAYS[index] * SCALE, index % 3


def iterated(split="train"):
    for number, array in enumerate(ARRAYS[:2] if split == "test" else ARRAYS):
        yield {"inputs": {"x": array}, "target": number, "id": f"row {number}", "meta": {"far": number}}


def two():
    return [({"x": one, "y": one[:2]}, 0) for one in ARRAYS]


def images():
    from PIL import Image
    return [(Image.new("RGB", (8, 6), (number, 0, 0)), number) for number in range(3)]


def tensors():
    import torch
    return torch.utils.data.TensorDataset(torch.arange(12.0).reshape(3, 4), torch.tensor([5, 6, 7]))


def broken():
    raise ValueError("no such luck")


def number():
    return 3


def odd():
    return [{"inputs": ARRAYS[0], "label": 1}]


def words():
    return [(["a", "b"], 0), (object(), 0)]


READY = [(one, 1) for one in ARRAYS]
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "shared.py").write_text("SCALE = 2\n")
    return tmp_path


X = spec(4, name="x")


@pytest.mark.slow
def test_a_sequence_an_iterable_and_a_list(code):
    samples = opened(code, X, source="python:mine.py:Indexed", arguments={"count": 3})
    assert [sample.target for sample in samples] == [0, 1, 2]
    np.testing.assert_array_equal(samples[2].inputs["x"], np.full(4, 4, np.float32))
    samples = opened(code, X, source="python:mine.py:iterated", split="test")
    assert [(one.id, one.meta) for one in samples] == [("row 0", {"far": 0}), ("row 1", {"far": 1})]
    assert len(opened(code, X, source="python:mine.py:READY", samples=4)) == 4
    halves = [{"seed": 0, "to": 0.5}, {"seed": 0, "from": 0.5}]
    roles = {
        role: opened(code, X, source="python:mine.py:READY", split=split)
        for role, split in zip(("calibration", "evaluation"), halves, strict=True)
    }
    disjoint(roles)
    with pytest.raises(InputError, match="share 3 of 3"):
        disjoint({**roles, "calibration": opened(code, X, source="python:mine.py:READY")})


def test_several_inputs_and_images(code):
    samples = opened(code, X, spec(2, name="y"), source="python:mine.py:two")
    assert samples[1].inputs["y"].tolist() == [1, 1]
    samples = opened(code, spec(3, 3, 4), source="python:mine.py:images", prepare={"resize": [3, 4]})
    assert samples[2].inputs["image"].shape == (3, 3, 4)
    assert samples[2].meta["original_size"] == (6, 8)


@pytest.mark.slow
def test_a_dataset_of_torch(code):
    samples = opened(code, X, source="python:mine.py:tensors")
    assert [sample.target for sample in samples] == [5, 6, 7]
    assert samples[1].inputs["x"].tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"source": "python:mine.py:broken"}, "raises ValueError: no such luck"),
        ({"source": "python:mine.py:Indexed", "arguments": {"size": 1}}, "raises TypeError"),
        ({"source": "python:mine.py:number"}, "returns a int, wanted a sequence of samples"),
        ({"source": "python:mine.py:two", "split": "test"}, "no parameter `split` to take 'test'"),
        ({"source": "python:mine.py:Gone"}, "defines no 'Gone'"),
    ],
)
def test_code_that_gives_no_samples(code, settings, says):
    with pytest.raises(InputError) as caught:
        opened(code, X, **settings)
    assert says in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("name", "index", "says"),
    [
        ("Indexed", 5, "raises OSError: a bad disk"),
        ("two", 0, "feeds x, y, the model takes x"),
        ("odd", 0, "the key 'label'"),
        ("words", 1, "holds a object"),
    ],
)
def test_a_sample_that_cannot_be_used(code, name, index, says):
    samples = opened(code, X, source=f"python:mine.py:{name}")
    with pytest.raises(InputError) as caught:
        samples[index]
    assert says in caught.value.message
    assert f"sample {index}" in caught.value.place


@pytest.mark.slow
def test_its_key_is_its_code_arguments_and_declared_files(code):
    (code / "list.txt").write_text("1")
    settings = {"source": "python:mine.py:Indexed", "files": ["list.txt"]}
    first = key(code, **settings)
    assert key(code, **settings) == first
    assert str(code) not in json.dumps(first)
    assert key(code, **settings, arguments={"count": 2}) != first
    (code / "list.txt").write_text("2")
    second = key(code, **settings)
    assert second["content"]["files"] != first["content"]["files"]
    (code / "shared.py").write_text("SCALE = 3\n")
    assert key(code, **settings)["content"]["code"] != first["content"]["code"]
    assert found(code, source="python:mine.py:Indexed", files=["gone"])[0][:2] == (
        "files",
        "no such file: gone",
    )


def test_checking_runs_nothing(code):
    (code / "mine.py").write_text("raise SystemExit('run')\ndef make(): ...\n")
    assert found(code, source="python:mine.py:make") == []
    key(code, source="python:mine.py:make")


@pytest.mark.slow
def test_a_build_with_data_from_code(project):
    (project.folder / "rows.py").write_text(
        "import numpy as np\n\ndef rows(split):\n"
        "    draw = np.random.default_rng({'a': 0, 'b': 1}[split])\n"
        "    return [(draw.random((3, 4, 4), 'float32'), n % 2) for n in range(8)]\n"
    )
    data = "data:\n" + "".join(
        f'  {role}: {{source: "python:rows.py:rows", split: {part}}}\n'
        for role, part in (("calibration", "a"), ("evaluation", "b"))
    )
    project.recipe("  plain: []\n", data=data + "accuracy: {metric: top1, max_drop: 0.5}\n")
    report = project.build()
    assert report.variants["plain"].accuracy.samples == 8
    project.build()
    assert project.built == []


@pytest.mark.long
@pytest.mark.slow
def test_a_real_detector_on_real_boxes(shared, tmp_path):
    """No metric of detection yet: the outputs of the variants are compared."""
    from optcli.pipeline.building import build

    data = "{{source: 'coco:{}/datasets/coco_tiny_val', split: {{seed: 0, {}}}, prepare: *p}}"
    (tmp_path / "detector.yaml").write_text(
        "version: 1\nname: detector\n"
        f"model: {{source: 'onnx:{shared}/models/yolox_nano.onnx'}}\n"
        "inputs: [{name: images, dtype: float32, shape: [1, 3, 416, 416]}]\n"
        "data:\n"
        f"  calibration: {{source: 'coco:{shared}/datasets/coco_tiny_val', samples: 4, "
        "split: {seed: 0, to: 0.5}, prepare: &p {letterbox: {size: 416, align: top_left}, "
        "channel_order: bgr}}\n"
        f"  evaluation: {data.format(shared, 'from: 0.9')}\n"
        "latency: {launches: 1, rounds: 2, calls: 2, warmup: 1, max_seconds: 0.2}\n"
        "variants:\n  plain: []\n  openvino: [to_openvino]\n"
    )
    options = {"store": tmp_path / "store", "artifacts": tmp_path / "artifacts"}
    report = build(tmp_path / "detector.yaml", **options)
    compared = report.variants["openvino"].accuracy
    assert compared.samples == 8
    assert report.variants["openvino"].status == "built"
