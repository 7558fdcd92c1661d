"""A bundle's `images.py` gives what optcli's own preparation gives, from the same bytes."""

from __future__ import annotations

import io
import json
import struct
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from copied_modules import load
from PIL import Image
from small_variants import variant

from optcli import data
from optcli.artifact import Format
from optcli.data import DataSettings
from optcli.errors import InputError, UsageError
from optcli.pipeline.decoding import Decoding
from optcli.pipeline.model_files.built_variant import BuiltVariant, Samples
from optcli.scaffold.inspection.findings import Tensor
from optcli.serving.prediction.of_recipe import MOST_PIXELS, image_serving
from optcli.settings.postprocess import PostprocessSettings

images = load("images")
SCORES = (Tensor(name="logits", dtype="float32", shape=(None, 10)),)
BATCH = {"min": 1, "opt": 2, "max": 8}
NORMALIZED = {"scale": "1/255", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
YOLOX = {"letterbox": {"size": 64, "fill": 114, "align": "top_left"}, "channel_order": "bgr"}


def spec(*shape: int | str, dtype: str = "float32", **ranges: Any) -> dict[str, Any]:
    return {"name": "image", "dtype": dtype, "shape": ("batch", *shape), "batch": BATCH, **ranges}


def built(folder: Path, wanted: dict[str, Any], source: dict[str, Any], **samples: Any) -> BuiltVariant:
    settings = DataSettings.model_validate(source)
    made = variant(folder, Format.ONNX, wanted)
    if "postprocess" in samples:
        samples["decoding"] = Decoding(samples.pop("postprocess"), "recipe")
    return replace(made, samples=Samples(data=settings, folder=folder, **samples))


def both(
    folder: Path, body: bytes, wanted: dict[str, Any], prepare: dict[str, Any] | str | None
) -> Any:
    """The image by optcli's own reading of a folder, and by the bundle's module: arrays and places."""
    (folder / "set").mkdir(exist_ok=True)
    (folder / "set" / "one.png").write_bytes(body)  # what it is, the content says
    one = built(folder, wanted, {"source": "imagefolder:set", "prepare": prepare})
    image_serving(one, SCORES).write(folder)
    served = images.Images.from_file(folder / "images.json")
    try:
        sample = data.open(one.samples.data, folder, one.inputs)[0]
    except InputError:
        with pytest.raises(ValueError, match=r"^[^\n]{10,300}$"):
            served.prepared(body)
        return None
    array, placement = served.prepared(body)
    return (sample.inputs["image"], dict(sample.meta)), (array, placement)


def encoded(image: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def picture(mode: str = "RGB", size: tuple[int, int] = (50, 38), seed: int = 0) -> Image.Image:
    """Smooth colours with some noise, so that JPEG keeps something of it."""
    draw = np.random.default_rng(seed)
    rows, columns = np.indices((size[1], size[0]))
    smooth = np.stack([rows * 5, columns * 4, rows + columns], axis=2) % 256
    rgb = Image.fromarray((smooth // 2 + draw.integers(0, 100, smooth.shape)).astype(np.uint8))
    return rgb.convert(mode)


# Every step, alone and with others: the input's shape behind the batch, and `prepare`.
PREPARATIONS = {
    "none": ((3, 38, 50), None),
    "normalized": ((3, 38, 50), NORMALIZED),
    "resized": ((3, 32, 48), {"resize": [32, 48], **NORMALIZED}),
    "shorter side": ((3, 24, 31), {"resize": 24, "scale": "1/255"}),
    "crop": ((3, 30, 41), {"crop": [30, 41], "scale": "1/255"}),
    "resize and crop": ((3, 32, 32), {"resize": 36, "crop": 32, "interpolation": "bicubic"}),
    "as tensors": ((3, 32, 32), {"resize": [32, 32], "resize_in": "float32", **NORMALIZED}),
    "lanczos": ((3, 20, 60), {"resize": [20, 60], "interpolation": "lanczos"}),
    "nearest": ((3, 20, 60), {"resize": [20, 60], "interpolation": "nearest"}),
    "box": ((3, 20, 60), {"resize": [20, 60], "interpolation": "box", "resize_in": "float32"}),
    "yolox": ((3, 64, 64), YOLOX),
    "centred": (
        (3, 48, 80),
        {"letterbox": {"size": [48, 80], "fill": [1, 2, 3]}, "channel_order": "rgb", "scale": "1/255"},
    ),
    "not enlarged": (
        (3, 64, 64),
        {"letterbox": {"size": 64, "enlarge": False}, "interpolation": "box"},
    ),
    "grey": ((1, 28, 28), {"resize": [28, 28], "channel_order": "grey", "scale": "1/255", "mean": 0.3}),
    "grey of floats": (
        (1, 28, 28),
        {"resize": [28, 28], "resize_in": "float32", "channel_order": "grey", "std": 0.5},
    ),
    "rgb": ((3, 38, 50), {"channel_order": "rgb", **NORMALIZED}),
    "without channels": ((38, 50), {"channel_order": "grey"}),
    "channels last": ((38, 50, 3), {"channel_order": "rgb", "scale": "1/127.5", "mean": 1}),
    "layout said": ((38, 3, 3), {"crop": [38, 3], "layout": "hwc", "channel_order": "rgb"}),
    "bytes": ((3, 32, 32), {"resize": [32, 32], "channel_order": "rgb"}),
    "half": ((3, 32, 32), {"resize": [32, 32], "channel_order": "rgb", **NORMALIZED}),
    "turned": ((3, 50, 38), {"orient": True, "channel_order": "rgb"}),
    "all inside": ((38, 50, 3), {**YOLOX, "channel_order": "bgr", "inside": "all"}),
    "values inside": (
        (24, 31, 3),
        {"resize": 24, "channel_order": "bgr", "inside": "values", **NORMALIZED},
    ),
}
DTYPES = {"bytes": "uint8", "half": "float16", "all inside": "uint8", "values inside": "uint8"}


def jpeg(mode: str = "RGB", **options: Any) -> bytes:
    return encoded(picture(mode), "JPEG", **options)


def turned(kind: str, orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(picture(), kind, exif=exif)


def palette(transparency: bool) -> bytes:
    image = picture().quantize(40)
    return encoded(image, transparency=3) if transparency else encoded(image)


BODIES = {
    "jpeg": jpeg(),
    "progressive": jpeg(progressive=True, quality=95, subsampling=0),
    "grey jpeg": jpeg("L"),
    "cmyk": jpeg("CMYK"),
    "png": encoded(picture()),
    "grey png": encoded(picture("L")),
    "rgba": encoded(picture("RGBA")),
    "grey with alpha": encoded(picture("LA")),
    "one bit": encoded(picture("1")),
    "palette": palette(transparency=False),
    "palette with alpha": palette(transparency=True),
    "16 bits": encoded(Image.fromarray(np.arange(38 * 50, dtype=np.uint16).reshape(38, 50) * 30)),
    "jpeg on its side": turned("JPEG", 6),
    "png upside down": turned("PNG", 3),
    "jpeg mirrored": turned("JPEG", 5),
    "narrow": encoded(picture(size=(4, 61))),
    "one pixel": encoded(picture(size=(1, 1))),
}


@pytest.mark.slow
@pytest.mark.parametrize("prepared", PREPARATIONS)
def test_every_kind_of_image_becomes_what_optcli_makes_of_it(tmp_path: Path, prepared: str) -> None:
    shape, prepare = PREPARATIONS[prepared]
    wanted = spec(*shape, dtype=DTYPES.get(prepared, "float32"))
    taken = []
    for name, body in BODIES.items():
        found = both(tmp_path, body, wanted, prepare)
        if found is not None:
            (own, place), (served, placement) = found
            assert served.dtype == own.dtype, name
            np.testing.assert_array_equal(served, own, err_msg=name)
            assert placement == place, name
            taken.append(name)
    # Both refuse the same. Some image goes through each preparation, so that it is compared at all.
    assert taken


@pytest.mark.parametrize("body", BODIES)
def test_what_the_model_takes_is_taken_and_nothing_else(tmp_path: Path, body: str) -> None:
    """With the colours declared every kind of 8 bits goes through; without, grey and RGB alone."""
    declared = both(tmp_path, BODIES[body], spec(3, 64, 64), YOLOX)
    assert (declared is None) == (body == "16 bits")
    undeclared = {"letterbox": {"size": 64}}
    as_it_is = both(tmp_path, BODIES[body], spec(3, 64, 64), undeclared)
    other = {
        "grey jpeg",
        "grey png",
        "one bit",
        "cmyk",
        "rgba",
        "grey with alpha",
        "palette with alpha",
    }
    assert (as_it_is is None) == (body in {"16 bits", *other})


def test_sizes_that_vary_are_held_to_their_bounds(tmp_path: Path) -> None:
    size = {"min": 30, "opt": 40, "max": 60}
    free = spec(3, "height", "width", height=size, width=size)
    found = both(tmp_path, BODIES["png"], free, {"channel_order": "rgb"})
    assert found is not None
    np.testing.assert_array_equal(found[0][0], found[1][0])
    assert found[1][0].shape == (3, 38, 50)
    assert both(tmp_path, BODIES["narrow"], free, {"channel_order": "rgb"}) is None
    square = spec(3, "side", "side", side=size)
    assert both(tmp_path, BODIES["png"], square, {"channel_order": "rgb"}) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "shape"),
    [
        ("torchvision:ResNet50_Weights.DEFAULT", (3, 224, 224)),
        ("torchvision:squeezenet1_1", (3, 224, 224)),
        ("torchvision:Swin_T_Weights.DEFAULT", (3, 224, 224)),
        ("torchvision:EfficientNet_B1_Weights.IMAGENET1K_V2", (3, 240, 240)),
    ],
)
def test_the_preparation_of_torchvision_weights(
    shared: Path, tmp_path: Path, preset: str, shape: tuple[int, ...]
) -> None:
    """Equal to optcli's own to the last bit, and to torchvision's transforms within a rounding."""
    from torchvision import models

    name = preset.partition(":")[2]
    weights = models.get_weight(name) if "." in name else models.get_model_weights(name).DEFAULT
    files = sorted((shared / "datasets" / "imagenet_1000" / "images").rglob("*.jpg"))[::331]
    assert len(files) == 4
    for file in files:
        found = both(
            tmp_path, file.read_bytes(), spec(*shape), {"preset": preset, "channel_order": "rgb"}
        )
        assert found is not None
        (own, _), (served, _) = found
        np.testing.assert_array_equal(served, own)
        theirs = weights.transforms()(Image.open(file).convert("RGB")).numpy()
        assert np.abs(served - theirs).max() < 2e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", ["cifar10_subset/test", "coco_tiny_val/images", "imagenet_1000/images"]
)
def test_real_photographs(shared: Path, tmp_path: Path, place: str) -> None:
    files = sorted((shared / "datasets" / place).rglob("*.[jp][pn]g"))
    assert len(files) >= 80
    for file in files[:: len(files) // 20]:
        for prepare in (YOLOX, {"resize": 70, "crop": 64, "channel_order": "rgb", **NORMALIZED}):
            found = both(tmp_path, file.read_bytes(), spec(3, 64, 64), prepare)
            assert found is not None
            np.testing.assert_array_equal(found[1][0], found[0][0])
            assert found[1][1] == found[0][1]


def served(folder: Path, **changes: Any) -> Any:
    one = built(folder, spec(3, 32, 32), {"source": "imagefolder:set", "prepare": {"resize": [32, 32]}})
    return images.Images({**image_serving(one, SCORES).images, **changes})


def chunk(kind: bytes, content: bytes) -> bytes:
    return (
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    )


def bomb(width: int, height: int) -> bytes:
    """A small PNG that says it is large, of zeros alone."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = zlib.compress(bytes(100_000), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "found no bytes, wanted an image"),
        (b"no image at all", "not a JPEG or PNG image"),
        (b"\xff\xd8\xff", "not a JPEG or PNG image"),
        (b"\x89PNG\r\n\x1a\n", "not a JPEG or PNG image"),
        (json.dumps({"inputs": []}).encode(), "not a JPEG or PNG image"),
        (encoded(picture(), "GIF"), "not a JPEG or PNG image"),
        (encoded(picture(), "BMP"), "not a JPEG or PNG image"),
        (
            b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n",
            "not a JPEG or PNG image",
        ),
        (BODIES["jpeg"][: len(BODIES["jpeg"]) // 2], "damaged or cut short"),
        (BODIES["png"][: len(BODIES["png"]) // 2], "damaged or cut short"),
        (bomb(30_000, 30_000), "too large"),
        (bomb(10_000, 9_000), f"10000 pixels, wanted at most {MOST_PIXELS}"),
        (BODIES["16 bits"], "more than 8 bits"),
        (BODIES["cmyk"], "mode CMYK"),
        (BODIES["grey jpeg"], "1 channel .grey., the model wants 3 channels"),
    ],
)
def test_what_is_no_image_is_one_clear_sentence(tmp_path: Path, body: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        served(tmp_path).prepared(body)
    assert "\n" not in str(caught.value)


def test_a_narrow_image_cannot_grow_without_end(tmp_path: Path) -> None:
    """One pixel by a million, resized to a shorter side of 256, would take 200 gigabytes."""
    steps = {**served(tmp_path)._steps, "resize": 256}
    narrow = encoded(Image.new("RGB", (1, 1_000_000)))
    with pytest.raises(ValueError, match="too narrow: resizing makes 256000000 x 256"):
        served(tmp_path, steps=steps).prepared(narrow)


@pytest.mark.parametrize("name", ["jpeg", "png", "palette with alpha", "png upside down"])
def test_damaged_bytes_raise_a_value_error_and_nothing_else(tmp_path: Path, name: str) -> None:
    draw, taken = np.random.default_rng(7), served(tmp_path)
    sentences = []
    for _ in range(150):
        body = np.frombuffer(BODIES[name], np.uint8).copy()
        body[draw.integers(0, len(body), 6)] = draw.integers(0, 256, 6)
        try:
            taken.prepared(body.tobytes())
        except ValueError as error:
            sentences.append(str(error))
    assert sentences
    assert all(sentence and "\n" not in sentence for sentence in sentences)


def test_another_schema_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="schema 2, wanted 1"):
        served(tmp_path, schema=2)


# --- what a recipe cannot carry into a bundle ---------------------------------------------------------


def npz(folder: Path, array: np.ndarray) -> dict[str, Any]:
    np.savez(folder / "set.npz", image=array, y=np.zeros(len(array), np.int64))
    return {"source": "npz:set.npz"}


def test_images_of_an_npz_are_prepared_the_same(tmp_path: Path) -> None:
    pixels = np.asarray(picture())[None]
    prepare = {"resize": [32, 32], "scale": "1/255"}
    one = built(tmp_path, spec(3, 32, 32), {**npz(tmp_path, pixels), "prepare": prepare})
    served = images.Images(image_serving(one, SCORES).images)
    own = data.open(one.samples.data, tmp_path, one.inputs)[0]
    np.testing.assert_array_equal(served.prepared(BODIES["png"])[0], own.inputs["image"])


@pytest.mark.parametrize(
    ("source", "message", "hint"),
    [
        ({"source": "python:mine.py:samples"}, "Python of the recipe's own", "declare the steps"),
        ({"source": "npz:set.npz"}, "does not say how an image becomes one", "declare the steps"),
        ({"source": "npz:set.npz", "prepare": {"scale": 1}}, "holds float32 values", "as uint8"),
    ],
)
def test_data_that_say_nothing_of_images_are_refused(
    tmp_path: Path, source: dict[str, Any], message: str, hint: str
) -> None:
    npz(tmp_path, np.zeros((2, 3, 32, 32), np.float32))
    with pytest.raises(UsageError, match=message) as caught:
        image_serving(built(tmp_path, spec(3, 32, 32), source), SCORES)
    assert caught.value.place == "the recipe"
    assert hint in caught.value.hint


def test_inputs_that_are_no_image_are_refused(tmp_path: Path) -> None:
    source = {"source": "imagefolder:set"}
    with pytest.raises(UsageError, match="a stack of images or a video"):
        image_serving(built(tmp_path, spec(3, 8, 32, 32), source), SCORES)
    with pytest.raises(UsageError, match="it takes no image"):
        image_serving(built(tmp_path, spec(8), source), SCORES)
    two = variant(tmp_path, Format.ONNX, spec(3, 4, 4), {**spec(8), "name": "anchors"})
    samples = Samples(data=DataSettings.model_validate(source), folder=tmp_path)
    with pytest.raises(UsageError, match="feeds one input, the model has image, anchors"):
        image_serving(replace(two, samples=samples), SCORES)
    unread = Samples(notes=("inputs are random: the recipe cannot be read again",))
    with pytest.raises(UsageError, match="the recipe cannot be read again"):
        image_serving(replace(two, samples=unread), SCORES)


def test_outputs_that_are_neither_classes_nor_boxes_are_refused(tmp_path: Path) -> None:
    source = {"source": "imagefolder:set"}
    one = built(tmp_path, spec(3, 32, 32), source)
    pixels = Tensor(name="out", dtype="float32", shape=(None, 21, 32, 32))
    with pytest.raises(UsageError, match=r"wanted an output of scores .* found out of shape") as caught:
        image_serving(one, (pixels,))
    assert "postprocess" in caught.value.hint
    own = PostprocessSettings.model_validate("python:mine.py:decode")
    with pytest.raises(UsageError, match=r"Python of its own \(mine.py:decode\)"):
        image_serving(built(tmp_path, spec(3, 32, 32), source, postprocess=own), SCORES)
