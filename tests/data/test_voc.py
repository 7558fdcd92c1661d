"""Pascal VOC's XML: its own folders, Roboflow's flat export, and files that would do harm."""

from __future__ import annotations

from pathlib import Path

import pytest
from generated import picture, spec

from optcli.data import DataSettings, class_names, layouts, problems
from optcli.data import open as open_data
from optcli.errors import InputError

OBJECT = (
    "<object><name>{}</name><difficult>{}</difficult><part><bndbox><xmin>1</xmin></bndbox></part>"
    "<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)


def annotation(file: Path, *objects: tuple, begin: str = "") -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    inner = "".join(OBJECT.format(*each) for each in objects)
    file.write_text(
        f"{begin}<annotation><size><width>20</width><height>12</height></size>{inner}</annotation>"
    )


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    """Two images below VOCdevkit/VOC2007; the class `ant` is in no image of `val`."""
    root = tmp_path / "data" / "VOCdevkit" / "VOC2007"
    for number, name in enumerate(("a", "b")):
        (root / "JPEGImages").mkdir(parents=True, exist_ok=True)
        picture(number).save(root / "JPEGImages" / f"{name}.jpg")
    annotation(root / "Annotations" / "a.xml", ("dog", 0, 1, 1, 20, 12), ("cat", 1, 3, 2, 4, 6))
    annotation(root / "Annotations" / "b.xml", ("ant", 0, 2, 2, 3, 3))
    (root / "ImageSets" / "Main").mkdir(parents=True)
    (root / "ImageSets" / "Main" / "val.txt").write_text("a\r\n")
    (root / "ImageSets" / "Main" / "dog_val.txt").write_text("a  1\nb -1\n")
    return tmp_path


def opened(folder: Path, **more):
    settings = DataSettings.model_validate({"source": "voc:data", **more})
    return open_data(settings, folder, [spec(3, 12, 20)])


def test_boxes_count_from_one_and_the_last_pixel_belongs_to_them(voc):
    (sample,) = opened(voc, split="val")
    assert sample.target["boxes"].tolist() == [[0, 0, 20, 12], [2, 1, 4, 6]]
    assert sample.target["labels"].tolist() == [2, 1], "classes are numbered over all parts"
    assert sample.target["crowd"].tolist() == [False, True]
    assert class_names(DataSettings(source="voc:data"), voc) == ("ant", "cat", "dog")
    assert len(opened(voc)) == len(opened(voc, split="dog_val")) == 2


def test_a_coordinate_of_zero_says_that_pixels_count_from_zero(voc):
    file = voc / "data" / "VOCdevkit" / "VOC2007" / "Annotations" / "b.xml"
    annotation(file, ("ant", 0, 0, 2, 3, 3))
    (sample,) = opened(voc, split="val")
    assert sample.target["boxes"][0].tolist() == [1, 1, 20, 12]
    (sample,) = opened(voc, split="val", first_pixel=1)
    assert sample.target["boxes"][0].tolist() == [0, 0, 20, 12]


def test_xml_beside_its_images(tmp_path):
    for part in ("train", "valid"):
        annotation(tmp_path / "data" / part / "a.xml", ("dog", 0, 1, 1, 20, 12), begin="\ufeff")
        picture(0).save(tmp_path / "data" / part / "a.jpg")
    (sample,) = opened(tmp_path, split="valid")
    assert sample.id == "a"
    assert sample.target["boxes"].tolist() == [[0, 0, 20, 12]]
    (finding,) = problems(DataSettings(source="voc:data"), tmp_path)
    assert "train, valid" in finding[1]


BOMB = '<!DOCTYPE a [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>'


@pytest.mark.parametrize(
    ("begin", "objects", "said"),
    [
        (BOMB, [], "document type"),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd">', [], "document type"),
        ("<a>" * 200, [], "nested too deeply"),
        ("<", [], "no XML"),
        ("", [("dog", 0, 5, 1, 2, 12)], "ends before it begins"),
        ("", [("dog", 0, "x", 1, 2, 12)], "'x'"),
        ("", [("", 0, 1, 1, 2, 12)], "no name"),
    ],
)
def test_what_is_refused(voc, begin, objects, said):
    file = voc / "data" / "VOCdevkit" / "VOC2007" / "Annotations" / "a.xml"
    annotation(file, *objects, begin=begin)
    with pytest.raises(InputError, match=said) as raised:
        opened(voc, split="val")
    assert "a.xml" in raised.value.place


def test_an_annotation_without_its_image(voc):
    (voc / "data" / "VOCdevkit" / "VOC2007" / "JPEGImages" / "a.jpg").unlink()
    with pytest.raises(InputError, match="no image of that name"):
        opened(voc, split="val")


def test_what_is_said_of_a_part(voc):
    def part(**more):
        return layouts.find("voc")(DataSettings.model_validate({"source": "voc:data", **more}), voc)

    assert part(split="val").empty_classes() == ("ant",)
    (said,) = part().remarks(False)
    assert said == "pixels are counted from 1, because no box begins below 1 (first_pixel)"
    assert part(first_pixel=1).remarks(False) == []
    annotation(voc / "data/VOCdevkit/VOC2007/Annotations/b.xml", ("ant", 0, 2, 2, 43, 3))
    (outside,) = part(first_pixel=1).remarks(False)
    assert outside.startswith("1 box reaches beyond its image")
