"""Images beside masks: pairs by name, what a mask holds, and what does not go together."""

import numpy as np
import pytest
from generated import picture, spec
from PIL import Image

from optcli.data import DataSettings, ingredients, problems, remarks
from optcli.data import open as open_data
from optcli.errors import InputError
from optcli.files.digest import FileDigests

NUMBERS = np.arange(240, dtype=np.uint8).reshape(12, 20) % 3


def pair(folder, name, values=NUMBERS, images="images", masks="masks", ending=".png"):
    for kind in (images, masks):
        (folder / kind).mkdir(parents=True, exist_ok=True)
    picture(len(name)).save(folder / images / f"{name}.jpg")
    Image.fromarray(values).save(folder / masks / f"{name}{ending}")


def samples(folder, source="masks:data", **more):
    settings = DataSettings.model_validate({"source": source, **more})
    return open_data(settings, folder, [spec(3, 12, 20)])


def test_pairs_by_name_and_images_without_a_mask(tmp_path):
    pair(tmp_path / "data", "a")
    pair(tmp_path / "data", "bb", ending=".tif")
    picture(3).save(tmp_path / "data" / "images" / "alone.jpg")
    read = samples(tmp_path)
    assert [read[n].id for n in range(len(read))] == ["a.jpg", "bb.jpg"]
    assert np.array_equal(read[0].target, NUMBERS)
    settings = DataSettings.model_validate({"source": "masks:data"})
    assert remarks(settings, tmp_path) == ["1 image has no mask, and is left out"]


def test_masks_of_another_size_are_counted(tmp_path):
    pair(tmp_path / "data", "a")
    pair(tmp_path / "data", "b", NUMBERS[:6])
    (said,) = remarks(DataSettings.model_validate({"source": "masks:data"}), tmp_path)
    assert said.startswith("1 of 2 masks has another size")


def test_parts_and_folders_of_any_name(tmp_path):
    for part in ("train", "val"):
        pair(tmp_path / "data", part, images=f"photos/{part}", masks=f"truth/{part}", ending="_L.png")
    two = {"source": "masks:data/photos", "root": "data/truth"}
    assert samples(tmp_path, **two, split="val")[0].id == "val.jpg"
    ((field, said, hint),) = problems(DataSettings.model_validate(two), tmp_path)
    assert (field, said, hint) == ("split", "the data have the parts train, val", "split: train")
    wrong = DataSettings.model_validate({**two, "split": "vall"})
    assert "val" in problems(wrong, tmp_path)[0][2]
    assert "no images with masks" in problems(DataSettings(source="masks:data"), tmp_path)[0][1]


def test_colours_are_numbered_as_the_recipe_lists_them(tmp_path):
    colours = np.zeros((12, 20, 3), np.uint8)
    colours[:6], colours[6:8] = (128, 0, 0), (0, 64, 0)
    pair(tmp_path / "data", "a", colours)
    pair(tmp_path / "data", "b", np.zeros((12, 20, 3), np.uint8))
    assert samples(tmp_path)[0].target.shape == (12, 20, 3)
    listed = [[0, 64, 0], [0, 0, 0], [128, 0, 0]]
    read = samples(tmp_path, labels={"colours": listed, "ignore": [0], "offset": -1})
    assert read[0].target[:, 0].tolist() == [1] * 6 + [255] * 2 + [0] * 4
    assert (read[1].target == 0).all()
    with pytest.raises(InputError, match=r"the colour \[0, 64, 0\], which is none of") as raised:
        samples(tmp_path, labels={"colours": listed[1:]})[0]
    assert "add it" in raised.value.hint
    assert raised.value.place.endswith("a.jpg")


def test_a_palette_and_a_mask_in_the_key(tmp_path):
    pair(tmp_path / "data", "a")
    settings = DataSettings(source="masks:data")
    before = ingredients(settings, tmp_path, FileDigests())
    palette = Image.fromarray(NUMBERS, "P")
    palette.putpalette([7] * 768)
    palette.save(tmp_path / "data" / "masks" / "a.png")
    assert np.array_equal(samples(tmp_path)[0].target, NUMBERS)
    assert ingredients(settings, tmp_path, FileDigests())["content"] != before["content"]
