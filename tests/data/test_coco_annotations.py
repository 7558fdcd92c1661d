# ruff: noqa: E501  (tables of values)
"""Annotations in COCO's format that are wrong: refused with their place, never a changed metric."""

from __future__ import annotations

import copy
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
from generated import picture, spec

from optcli.data import DataSettings, ingredients, remarks
from optcli.data import open as open_data
from optcli.errors import InputError
from optcli.files.digest import FileDigests

GOOD: dict[str, Any] = {
    "images": [{"id": 11, "file_name": "b.png"}, {"id": 12, "file_name": "a.png"}],
    "annotations": [
        {"id": 1, "image_id": 11, "category_id": 7, "bbox": [2, 3, 10, 4], "area": 33.5, "iscrowd": 0},
        {"id": 2, "image_id": 11, "category_id": 3, "bbox": [0, 0, 1, 1], "iscrowd": 1},
    ],
    "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],
}
BOX = "annotations[1]"


@pytest.fixture
def coco(tmp_path: Path) -> Path:
    """A folder with two images; the tests write the annotations."""
    (tmp_path / "coco" / "images").mkdir(parents=True)
    for number, image in enumerate(GOOD["images"]):
        picture(number).save(tmp_path / "coco" / "images" / image["file_name"])
    return tmp_path


def opened(coco: Path, record: Any) -> Any:
    text = record if isinstance(record, str) else json.dumps(record)
    (coco / "coco" / "instances.json").write_text(text)
    settings = DataSettings.model_validate({"source": "coco:coco"})
    return open_data(settings, coco, (spec(3, 12, 20),))


def changed(path: tuple[Any, ...], value: Any) -> Any:
    record = copy.deepcopy(GOOD)
    holder: Any = record
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = value
    return record


@pytest.mark.parametrize(
    ("path", "value", "place", "says"),
    [
        (("images",), {}, "images", "found a mapping, wanted a list"),
        (("images", 0), 5, "images[0]", "found 5, wanted a mapping"),
        (("images", 0, "id"), "", "images[0].id", "found '', wanted a whole number"),
        (("images", 0, "id"), "x" * 201, "images[0].id", "wanted a whole number"),
        (("images", 0, "id"), True, "images[0].id", "wanted a whole number"),
        (("images", 0, "id"), 12, "images[1].id", "found 12, which images[0] has already"),
        (("images", 0, "file_name"), None, "images[0].file_name", "wanted a file's name"),
        (("images", 0, "file_name"), "a.png", "images[1].file_name", "has already"),
        (("images", 0, "file_name"), "/etc/passwd", "images[0].file_name", "inside the folder"),
        (("images", 0, "file_name"), "../../b.png", "images[0].file_name", "inside the folder"),
        (("images", 0, "file_name"), "x/../../b.png", "images[0].file_name", "inside the folder"),
        (("images", 0, "file_name"), "..\\b.png", "images[0].file_name", "inside the folder"),
        (("images", 0, "file_name"), "C:\\b.png", "images[0].file_name", "inside the folder"),
        (("images", 0, "file_name"), "a\0b", "images[0].file_name", "wanted a file's name"),
        (("annotations",), None, "annotations", "found nothing, wanted a list"),
        (("annotations", 1, "id"), 1, f"{BOX}.id", "found 1, which annotations[0] has already"),
        (("annotations", 1, "image_id"), 99, f"{BOX}.image_id", "wanted the id of one of the images"),
        (("annotations", 1, "image_id"), [11], f"{BOX}.image_id", "wanted a whole number"),
        (("annotations", 1, "category_id"), 4, f"{BOX}.category_id", "one of the categories"),
        (("annotations", 1, "category_id"), 3.5, f"{BOX}.category_id", "wanted a whole number"),
        (("annotations", 1, "bbox"), [1, 2, 3], f"{BOX}.bbox", "wanted four finite numbers"),
        (("annotations", 1, "bbox"), [1, 2, 3, "4"], f"{BOX}.bbox", "wanted four finite numbers"),
        (("annotations", 1, "bbox"), [1, 2, 3, float("nan")], f"{BOX}.bbox", "four finite numbers"),
        (("annotations", 1, "bbox"), [1, 2, float("inf"), 4], f"{BOX}.bbox", "four finite numbers"),
        (("annotations", 1, "bbox"), [1, 2, -3, 4], f"{BOX}.bbox", "a height of at least 0"),
        (("annotations", 1, "area"), float("nan"), f"{BOX}.area", "wanted a size"),
        (("annotations", 1, "area"), -1, f"{BOX}.area", "wanted a size"),
        (("annotations", 1, "iscrowd"), "no", f"{BOX}.iscrowd", "found 'no', wanted 0 or 1"),
        (("annotations", 1, "iscrowd"), 2, f"{BOX}.iscrowd", "found 2, wanted 0 or 1"),
        (("categories", 1, "id"), 7, "categories[1].id", "found 7, which categories[0] has already"),
        (("categories", 1), "cat", "categories[1]", "found 'cat', wanted a mapping"),
        (("categories",), 3, "categories", "found 3, wanted a list"),
    ],
)
def test_what_is_wrong_is_refused_with_its_place(coco, path, value, place, says):
    with pytest.raises(InputError) as caught:
        opened(coco, changed(path, value))
    assert caught.value.place.endswith(f"instances.json, {place}")
    assert says in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ("{", "no annotations in COCO's format"),
        ("[]", "found [], wanted a mapping"),
        ("[" * 100_000, "nested too deeply"),
        ('{"images": ' + "9" * 6000 + "}", "no annotations in COCO's format"),
        ({"images": [], "annotations": [], "categories": []}, "no samples"),
        (changed(("images", 0, "file_name"), "c.png"), "no such file: c.png"),
    ],
)
def test_files_that_cannot_be_used(coco, record, says):
    with pytest.raises(InputError) as caught:
        opened(coco, record)
    assert says in caught.value.message
    assert caught.value.hint


def test_what_is_rare_and_right_is_taken(coco):
    record = changed(("annotations", 0, "bbox"), [2.5, 3, 0, 0])
    del record["annotations"][0]["id"], record["annotations"][0]["area"]
    record["annotations"][1]["iscrowd"] = False
    assert len(opened(coco, record)) == 2


def test_ids_that_are_text_are_taken(coco):
    record = copy.deepcopy(GOOD)
    for part, key in (("images", "id"), ("annotations", "image_id"), ("annotations", "category_id")):
        for item in record[part]:
            item[key] = str(item[key])
    full = opened(coco, record)[1].target
    assert (full["labels"].tolist(), full["category_ids"].tolist()) == ([1, 0], [7, 3])
    names = {"7": "dog", "3": "cat"}
    for item, key in (
        (i, k) for p, k in (("annotations", "category_id"), ("categories", "id")) for i in record[p]
    ):
        item[key] = names[str(item[key])]
    full = opened(coco, record)[1].target
    assert full["labels"].tolist() == [1, 0], "by their sorted texts"


def test_null_is_as_if_it_were_not_written(coco):
    record = copy.deepcopy(GOOD)
    for box in record["annotations"]:
        box |= {"iscrowd": None, "area": None}
    full = opened(coco, record)[1].target
    assert full["crowd"].tolist() == [False, False]
    assert full["areas"].tolist() == [40, 1]


def test_images_without_a_file_are_left_out_where_the_recipe_says_so(coco):
    opened(coco, GOOD)
    (coco / "coco" / "images" / "a.png").unlink()
    settings = DataSettings.model_validate({"source": "coco:coco", "missing": "skip"})
    assert [sample.id for sample in open_data(settings, coco, [spec(3, 12, 20)])] == ["b.png"]
    assert "1 image of the annotations has no file" in remarks(settings, coco)[0]


def test_a_pipe_among_the_images_is_an_error_at_once(coco):
    place = coco / "coco" / "images" / "a.png"
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(InputError, match="found a pipe"):
        opened(coco, GOOD)
    settings = DataSettings.model_validate({"source": "coco:coco"})
    with pytest.raises(InputError, match="found a pipe"):
        ingredients(settings, coco, FileDigests())


HOSTILE: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 1.5, float("nan"), float("inf"), "", "no", "\0", "x" * 10_000, [], {}, [[]], [1, 2], {"id": 1},
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(300))
def test_any_mutation_is_read_or_refused(coco, seed):
    draw = random.Random(seed)
    record = copy.deepcopy(GOOD)
    for _ in range(draw.choice((1, 1, 2, 3))):
        holder, key = draw.choice(list(_places(record)))
        way = draw.random()
        if way < 0.6:
            holder[key] = draw.choice(HOSTILE)
        elif way < 0.8:
            del holder[key]
        elif isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        else:
            holder[str(key) + "x"] = holder.pop(key)
    refused: InputError | None = None
    try:
        samples = opened(coco, record)
        for index in range(len(samples)):
            _ = samples[index]
    except InputError as error:
        refused = error
    assert refused is None or (refused.place and refused.hint and len(refused.message) < 400)


def _places(value: Any) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in list(items):
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)


@pytest.mark.parametrize("other", ["./b.png", "x/./b.png", ".//b.png"])
def test_one_file_under_two_names_is_refused(coco: Path, other: str) -> None:
    first = "x/b.png" if other.startswith("x") else "b.png"
    record = changed(("images", 0, "file_name"), first)
    record["images"][1]["file_name"] = other
    with pytest.raises(InputError, match=r"images\[0\] has already") as failure:
        opened(coco, record)
    assert "images[1].file_name" in str(failure.value)
