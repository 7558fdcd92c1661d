"""What another machine gets of data is enough to find the same samples: Ray's nodes read it so."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from generated import picture

from optcli.data import DataSettings, ingredients
from optcli.files.digest import FileDigests
from optcli.pipeline.on_ray.parcels import project_of

XML = (
    "<annotation><object><name>{}</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>3</xmax>"
    "<ymax>3</ymax></bndbox></object></annotation>"
)


@pytest.fixture
def everything(tmp_path: Path) -> Path:
    """Four images in each layout; names of folders are those of the layouts."""
    for number in range(4):
        name = f"{number}.png"
        for folder in ("yolo/images/val", "voc/JPEGImages", "flat", "coco/valid", "hf", "classes/cat"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
            picture(number).save(tmp_path / folder / name)
        for file, text in (
            (f"yolo/labels/val/{number}.txt", "0 0.5 0.5 0.5 0.5"),
            (f"voc/Annotations/{number}.xml", XML.format(("cat", "dog")[number % 2])),
        ):
            (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / file).write_text(text)
    images = [{"id": number, "file_name": f"{number}.png"} for number in range(4)]
    record = {"images": images, "annotations": [], "categories": [{"id": 1, "name": "cat"}]}
    rows = "".join(f"{number}.png {number % 2}\n" for number in range(4))
    metadata = "\n".join(f'{{"file_name": "{number}.png", "label": 0}}' for number in range(4))
    lists = "".join(f"./images/val/{number}.png\n" for number in range(4))
    for file, text in {
        "yolo/data.yaml": "val: val.txt\nnames: [cat]\n",
        "yolo/val.txt": lists,
        "voc/ImageSets/Main/val.txt": "0\n1\n2\n3\n",
        "flat.txt": rows,
        "hf/metadata.jsonl": metadata,
        "coco/valid/_annotations.coco.json": json.dumps(record),
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    "said",
    [
        {"source": "yolo:yolo", "split": "val"},
        {"source": "voc:voc", "split": "val"},
        {"source": "imagefolder:flat", "table": "flat.txt"},
        {"source": "imagefolder:hf"},
        {"source": "imagefolder:classes"},
        {"source": "coco:coco", "split": "valid"},
    ],
)
def test_the_samples_are_the_same(everything, tmp_path_factory, said):
    settings = DataSettings.model_validate({**said, "samples": 2})
    project = project_of(everything, {"evaluation": settings}, [], FileDigests())
    there = tmp_path_factory.mktemp("node")
    for path in {*project.files, *project.names}:
        copy = there / path.relative_to(everything)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path in project.files:
            shutil.copy(path, copy)
        else:
            copy.touch()
    expected = ingredients(settings, everything, FileDigests())
    assert ingredients(project.data["evaluation"], there, FileDigests()) == expected
