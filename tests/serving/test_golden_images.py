"""A golden image: a real sample's bytes, with the answer that the variant's own runner leads to."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from copied_modules import load
from PIL import Image
from small_variants import onnx_model, variant

from optcli.artifact import Format
from optcli.data import DataSettings
from optcli.errors import InputError
from optcli.pipeline.model_files.built_variant import BuiltVariant, Samples
from optcli.serving.deploy import interface
from optcli.serving.deploy.extras import images_of
from optcli.serving.deploy.interface import LookRequest, look
from optcli.serving.prediction.of_recipe import ImageServing

BATCH = {"min": 1, "opt": 2, "max": 8}


def looked_at(folder: Path, source: dict[str, Any]) -> tuple[BuiltVariant, ImageServing]:
    """A small network of 4 x 4 pixels with its golden request in `folder`."""
    onnx_model(folder / "artifact", {"image": ["batch", 3, 4, 4]})
    spec = {"name": "image", "shape": ("batch", 3, 4, 4), "batch": BATCH}
    settings = DataSettings.model_validate({"prepare": {"resize": [4, 4], "scale": "1/255"}, **source})
    one = replace(
        variant(folder / "artifact", Format.ONNX, spec), samples=Samples(data=settings, folder=folder)
    )
    request = LookRequest(
        "net", one.artifact, one.runner_name, one.options, one.inputs, folder, settings, folder
    )
    return one, images_of(one, look(request, None))  # type: ignore[arg-type]


def picture(size: tuple[int, int] = (9, 7)) -> Image.Image:
    values = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return Image.fromarray(values)


def check(folder: Path, name: str | None, serving: ImageServing) -> None:
    """The image gives the golden request, by the bundle's module, and the answer has its score."""
    assert name is not None
    array, _ = load("images").Images(serving.images).prepared((folder / name).read_bytes())
    request = json.loads((folder / "golden-request.json").read_text())["inputs"][0]
    assert array.ravel().tolist() == request["data"]
    response = json.loads((folder / "golden-response.json").read_text())["outputs"][0]
    answer = json.loads((folder / "golden-answer.json").read_text())
    assert [each["label"] for each in answer["classes"]] == [0]
    assert len(response["data"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF"])
def test_the_file_of_a_sample(tmp_path: Path, kind: str) -> None:
    (tmp_path / "set").mkdir()
    file = tmp_path / "set" / f"one.{kind.lower()}"
    picture().save(file, kind)
    one, serving = looked_at(tmp_path, {"source": "imagefolder:set"})
    name = interface.write_golden_image(tmp_path, one, serving)
    check(tmp_path, name, serving)
    assert name == ("golden-image.jpg" if kind == "JPEG" else "golden-image.png")
    same = (tmp_path / name).read_bytes() == file.read_bytes()
    assert same == (kind in ("JPEG", "PNG"))


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["hwc", "chw"])
def test_the_array_of_a_sample(tmp_path: Path, layout: str) -> None:
    pixels = np.asarray(picture())
    pixels = pixels if layout == "hwc" else pixels.transpose(2, 0, 1)
    np.savez(tmp_path / "set.npz", image=pixels[None], y=np.zeros(1, np.int64))
    prepare = {"resize": [4, 4], "array_layout": layout}
    one, serving = looked_at(tmp_path, {"source": "npz:set.npz", "prepare": prepare})
    check(tmp_path, interface.write_golden_image(tmp_path, one, serving), serving)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_a_photograph_on_its_side(tmp_path: Path, kind: str) -> None:
    (tmp_path / "set").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    picture().save(tmp_path / "set" / f"one.{kind.lower()}", kind, exif=exif)
    prepare = {"orient": True, "resize": [4, 4]}
    one, serving = looked_at(tmp_path, {"source": "imagefolder:set", "prepare": prepare})
    check(tmp_path, interface.write_golden_image(tmp_path, one, serving), serving)


@pytest.mark.slow
def test_another_preparation_is_found_before_anything_is_served(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    picture().save(tmp_path / "set" / "one.png")
    one, serving = looked_at(tmp_path, {"source": "imagefolder:set"})
    steps = {**serving.images["steps"], "interpolation": "nearest"}
    other = replace(serving, images={**serving.images, "steps": steps})
    with pytest.raises(InputError, match="do not prepare this image as optcli does") as caught:
        interface.write_golden_image(tmp_path, one, other)
    assert caught.value.place.endswith("one.png")
    refusing = replace(serving, images={**serving.images, "most_pixels": 3})
    with pytest.raises(InputError, match="refuse a sample of the recipe: the image has 7 x 9 pixels"):
        interface.write_golden_image(tmp_path, one, refusing)


@pytest.mark.slow
def test_without_a_golden_request_there_is_no_image(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    stream = io.BytesIO()
    picture().save(stream, "PNG")
    (tmp_path / "set" / "one.png").write_bytes(stream.getvalue())
    one, serving = looked_at(tmp_path, {"source": "imagefolder:set"})
    (tmp_path / "golden-response.json").unlink()
    assert interface.write_golden_image(tmp_path, one, serving) is None
    assert not (tmp_path / "golden-answer.json").exists()
