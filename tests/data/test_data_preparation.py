from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from generated import picture, spec
from PIL import Image

from optcli.data import DataSettings
from optcli.data import open as open_data
from optcli.errors import InputError
from optcli.sample import Sample
from optcli.settings import TensorSpec


def sample(
    image: Image.Image, folder: Path, wanted: TensorSpec, name: str = "one.png", **prepare: Any
) -> Sample:
    (folder / "set").mkdir(exist_ok=True)
    image.save(folder / "set" / name)
    settings = DataSettings(source="imagefolder:set", prepare=prepare or None)
    return open_data(settings, folder, [wanted])[0]


def test_values_stay_as_they_are_without_scale(tmp_path: Path) -> None:
    image = picture(1)
    made = sample(image, tmp_path, spec(3, 12, 20))
    assert made.inputs["image"].dtype == np.float32
    np.testing.assert_array_equal(made.inputs["image"], np.asarray(image).transpose(2, 0, 1))


def test_scale_mean_and_std_in_this_order(tmp_path: Path) -> None:
    image = picture(1)
    prepare = {"std": [0.5, 0.25, 1], "mean": [0.1, 0.2, 0.3], "scale": "1/255"}
    made = sample(image, tmp_path, spec(3, 12, 20), **prepare)
    expected = (np.asarray(image) / 255 - [0.1, 0.2, 0.3]) / [0.5, 0.25, 1]
    np.testing.assert_allclose(made.inputs["image"], expected.transpose(2, 0, 1), atol=1e-6)


def test_layouts_follow_the_shape_or_the_recipe(tmp_path: Path) -> None:
    pixels = np.asarray(picture(1))
    for layout in (None, "hwc", "nhwc"):
        prepare = {"layout": layout} if layout else {}
        made = sample(picture(1), tmp_path, spec(12, 20, 3), **prepare)
        np.testing.assert_array_equal(made.inputs["image"], pixels)
    made = sample(picture(1), tmp_path, spec(12, 20), channel_order="grey")
    assert made.inputs["image"].shape == (12, 20)


def test_an_input_of_one_image_has_no_batch(tmp_path: Path) -> None:
    """torchvision's detectors take a list of images: exported so, `[3, 12, 20]` is one of them."""
    with pytest.raises(InputError, match=r"\[3, 12, 20\] is one image") as failure:
        sample(picture(1), tmp_path, TensorSpec(name="image", shape=(3, 12, 20)))
    assert "[1, 3, 12, 20]" in failure.value.hint
    for shape, dtype in (
        ((12, 20, 3), "uint8"),
        ((12, 20, 3), "float32"),
        ((12, "width", 3), "float32"),
    ):
        ranges = {"width": {"min": 1, "opt": 20, "max": 99}} if "width" in shape else {}
        with pytest.raises(InputError, match="is one image: it has no dimension for the batch"):
            sample(picture(1), tmp_path, TensorSpec(name="image", dtype=dtype, shape=shape, **ranges))
    for mode, options in (("L", {}), ("RGB", {"channel_order": "grey"})):
        with pytest.raises(InputError, match="is one image"):
            sample(picture(1, mode), tmp_path, TensorSpec(name="image", shape=(12, 20, 1)), **options)


def test_channel_orders(tmp_path: Path) -> None:
    pixels = np.asarray(picture(1)).transpose(2, 0, 1)
    bgr = sample(picture(1), tmp_path, spec(3, 12, 20), channel_order="bgr")
    np.testing.assert_array_equal(bgr.inputs["image"], pixels[::-1])
    grey = sample(picture(1), tmp_path, spec(1, 12, 20), channel_order="grey")
    np.testing.assert_array_equal(grey.inputs["image"][0], np.asarray(picture(1, "L")))
    rgb = sample(picture(1, "L"), tmp_path, spec(3, 12, 20), channel_order="rgb")
    np.testing.assert_array_equal(rgb.inputs["image"], np.stack([np.asarray(picture(1, "L"))] * 3))


def test_unsigned_inputs_take_pixels_and_no_fractions(tmp_path: Path) -> None:
    made = sample(picture(1), tmp_path, spec(3, 12, 20, dtype="uint8"))
    assert made.inputs["image"].dtype == np.uint8
    with pytest.raises(InputError, match="are no uint8"):
        sample(picture(1), tmp_path, spec(3, 12, 20, dtype="uint8"), scale="1/255")


@pytest.mark.parametrize("align", ["centre", "top_left"])
def test_letterbox_keeps_the_whole_image_and_says_where_it_is(tmp_path: Path, align: str) -> None:
    box = {"size": 32, "fill": [1, 2, 3], "align": align}
    made = sample(picture(1, size=(20, 10)), tmp_path, spec(3, 32, 32), letterbox=box)
    assert made.meta["original_size"] == (10, 20)
    assert made.meta["scale"] == (1.6, 1.6)
    top = 8 if align == "centre" else 0
    assert made.meta["padding"] == (top, 0)
    pixels = made.inputs["image"]
    resized = np.asarray(picture(1, size=(20, 10)).resize((32, 16), Image.Resampling.BILINEAR))
    np.testing.assert_array_equal(pixels[:, top : top + 16], resized.transpose(2, 0, 1))
    np.testing.assert_array_equal(pixels[:, 31], np.array([[1], [2], [3]]) * np.ones((1, 32)))


@pytest.mark.slow
def test_resizing_in_floats_is_what_torchvision_does_on_tensors(tmp_path: Path) -> None:
    image = picture(1)
    steps = {"resize": [24, 40], "scale": "1/255"}
    rounded = sample(image, tmp_path, spec(3, 24, 40), **steps).inputs["image"]
    exact = sample(image, tmp_path, spec(3, 24, 40), **steps, resize_in="float32").inputs["image"]
    import torch

    pixels = torch.from_numpy(np.asarray(image).transpose(2, 0, 1) / 255)[None]
    wanted = torch.nn.functional.interpolate(pixels, (24, 40), mode="bilinear")[0].numpy()
    np.testing.assert_allclose(exact, wanted, atol=1e-6)
    assert 1e-4 < np.abs(rounded - wanted).max() < 1.5 / 255


def test_letterbox_may_leave_small_images_small(tmp_path: Path) -> None:
    box = {"size": [32, 40], "fill": 0, "enlarge": False, "align": "top_left"}
    made = sample(picture(1), tmp_path, spec(3, 32, 40), letterbox=box)
    assert made.meta["scale"] == (1.0, 1.0)
    np.testing.assert_array_equal(
        made.inputs["image"][:, :12, :20], np.asarray(picture(1)).transpose(2, 0, 1)
    )


def test_a_crop_moves_the_origin(tmp_path: Path) -> None:
    made = sample(picture(1), tmp_path, spec(3, 8, 10), crop=[8, 10])
    assert made.meta["padding"] == (-2, -5)
    np.testing.assert_array_equal(
        made.inputs["image"], np.asarray(picture(1))[2:10, 5:15].transpose(2, 0, 1)
    )
    with pytest.raises(InputError, match="12 x 20 before the crop"):
        sample(picture(1), tmp_path, spec(3, 16, 16), crop=16)


def test_images_and_arrays_come_out_equal(tmp_path: Path) -> None:
    """The same steps on the same pixels, whether they lie in a PNG or in an npz."""
    prepare = {"resize": [9, 7], "interpolation": "bicubic", "scale": 0.5, "mean": 3}
    for mode, channels in (("RGB", 3), ("L", 1)):
        image = picture(1, mode)
        np.savez(tmp_path / "a.npz", image=np.asarray(image)[None])
        row = open_data(
            DataSettings(source="npz:a.npz", prepare=prepare), tmp_path, [spec(channels, 9, 7)]
        )[0]
        file = sample(image, tmp_path, spec(channels, 9, 7), **prepare)
        np.testing.assert_array_equal(row.inputs["image"], file.inputs["image"])


@pytest.mark.parametrize(
    ("mode", "wanted", "said", "hint"),
    [
        ("L", spec(3, 12, 20), "1 channel \\(grey\\), the model wants 3", "channel_order: rgb"),
        ("RGB", spec(1, 12, 20), "3 channels \\(RGB\\), the model wants 1", "channel_order: grey"),
        ("RGBA", spec(3, 12, 20), "RGBA", "channel_order: rgb"),
        ("I;16", spec(1, 12, 20), "more than 8 bits", "range: [0, 65535]"),
        ("RGB", spec(3, 13, 20), r"found shape \[3, 12, 20\], wanted \[3, 13, 20\]", "resize"),
        ("RGB", spec(3, 8, 13, 20), r"wanted \[3, 8, 13, 20\]", "a sample is one image"),
    ],
)
def test_an_image_that_does_not_fit_is_named(
    tmp_path: Path, mode: str, wanted: TensorSpec, said: str, hint: str
) -> None:
    image = picture(1, "RGB") if mode == "I;16" else picture(1, mode)
    if mode == "I;16":
        image = Image.fromarray(np.arange(240, dtype=np.uint16).reshape(12, 20) * 100)
    with pytest.raises(InputError, match=said) as raised:
        sample(image, tmp_path, wanted)
    assert raised.value.place.endswith("one.png")
    assert hint in raised.value.hint


def test_palette_alpha_and_cmyk(tmp_path: Path) -> None:
    palette = picture(1).quantize(16)
    made = sample(palette, tmp_path, spec(3, 12, 20), "one.png")
    np.testing.assert_array_equal(
        made.inputs["image"], np.asarray(palette.convert("RGB")).transpose(2, 0, 1)
    )
    transparent = picture(1).convert("RGBA")
    transparent.putalpha(0)
    made = sample(transparent, tmp_path, spec(3, 12, 20), "one.png", channel_order="rgb")
    np.testing.assert_array_equal(made.inputs["image"], np.asarray(picture(1)).transpose(2, 0, 1))
    (tmp_path / "set" / "one.png").unlink()
    made = sample(picture(1, "CMYK"), tmp_path, spec(3, 12, 20), "one.tif", channel_order="rgb")
    assert abs(made.inputs["image"] - np.asarray(picture(1)).transpose(2, 0, 1)).max() <= 2


def test_exif_orientation_is_followed_only_if_asked(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(1).save(tmp_path / "set" / "one.png", exif=exif)
    settings = DataSettings(source="imagefolder:set")
    assert open_data(settings, tmp_path, [spec(3, 12, 20)])[0].meta["original_size"] == (12, 20)
    turned = DataSettings(source="imagefolder:set", prepare={"orient": True})
    assert open_data(turned, tmp_path, [spec(3, 20, 12)])[0].meta["original_size"] == (20, 12)


def test_values_that_are_not_finite_are_found(tmp_path: Path) -> None:
    image = np.zeros((3, 4), np.float32)
    image[1, 2] = np.nan
    np.savez(tmp_path / "a.npz", image=image)
    samples = open_data(DataSettings(source="npz:a.npz"), tmp_path, [spec(4)])
    assert samples[0].inputs["image"].shape == (4,)
    with pytest.raises(InputError, match="not finite") as raised:
        samples[1]
    assert "row 1" in raised.value.place


def test_symbols_are_held_to_their_ranges_and_to_each_other(tmp_path: Path) -> None:
    shape = {"shape": ["batch", "n", "n"], "n": {"min": 2, "max": 4}}
    wanted = TensorSpec.model_validate({"name": "image", **shape})
    for size, fits in (((3, 3), True), ((3, 4), False), ((5, 5), False)):
        np.savez(tmp_path / f"{size}.npz", image=np.zeros((1, *size)))
        samples = open_data(DataSettings(source=f"npz:{size}.npz"), tmp_path, [wanted])
        if fits:
            assert samples[0].inputs["image"].shape == size
        else:
            with pytest.raises(InputError, match="wanted \\[n, n\\]"):
                samples[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "weights",
    [
        "ResNet50_Weights.DEFAULT",
        "ResNet50_Weights.IMAGENET1K_V1",
        "MobileNet_V3_Small_Weights.DEFAULT",
        "EfficientNet_B1_Weights.DEFAULT",
        "ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1",
        "Swin_T_Weights.DEFAULT",
    ],
)
@pytest.mark.parametrize("size", [(500, 333), (301, 640), (260, 260)])
def test_a_preset_equals_the_transforms_of_torchvision(
    tmp_path: Path, weights: str, size: tuple[int, int]
) -> None:
    from torchvision.models import get_weight

    image = picture(5, size=size)
    expected = get_weight(weights).transforms()(image).numpy()
    made = sample(image, tmp_path, spec(*expected.shape), preset=f"torchvision:{weights}")
    assert abs(made.inputs["image"] - expected).max() <= 1e-6


@pytest.mark.slow
def test_a_preset_by_model_name_and_with_a_change(tmp_path: Path) -> None:
    from torchvision.models import ResNet50_Weights

    expected = ResNet50_Weights.DEFAULT.transforms()(picture(5, size=(300, 300))).numpy()
    by_name = {"preset": "torchvision:resnet50", "channel_order": "bgr"}
    made = sample(picture(5, size=(300, 300)), tmp_path, spec(3, 224, 224), **by_name)
    mean, std = (
        np.array(ResNet50_Weights.DEFAULT.transforms().mean),
        ResNet50_Weights.DEFAULT.transforms().std,
    )
    back = (expected.transpose(1, 2, 0) * std + mean)[:, :, ::-1]
    np.testing.assert_allclose(
        made.inputs["image"], ((back - mean) / std).transpose(2, 0, 1), atol=1e-5
    )


@pytest.mark.slow
def test_unknown_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no weights 'resnet5O'") as raised:
        sample(picture(1), tmp_path, spec(3, 224, 224), preset="torchvision:resnet5O")
    assert "resnet50" in raised.value.hint


@pytest.mark.parametrize(("name", "kind"), [("one.png", np.uint16), ("one.tif", np.float32)])
def test_a_range_says_what_is_black_and_white_of_more_than_8_bits(
    tmp_path: Path, name: str, kind: type
) -> None:
    values = np.linspace(0, 5000, 240).reshape(12, 20).astype(kind)
    prepare = {"range": [1000, 4000], "scale": "1/255", "channel_order": "rgb"}
    made = sample(Image.fromarray(values), tmp_path, spec(3, 12, 20), name, **prepare)
    expected = np.clip((values.astype(float) - 1000) / 3000, 0, 1)
    np.testing.assert_allclose(made.inputs["image"], np.stack([expected] * 3), atol=1e-5)


def test_a_range_does_not_touch_8_bits_and_may_turn_black_and_white(tmp_path: Path) -> None:
    plain = sample(picture(1, "L"), tmp_path, spec(1, 12, 20), range=[0, 65535])
    np.testing.assert_array_equal(plain.inputs["image"][0], np.asarray(picture(1, "L")))
    deep = Image.fromarray(np.full((12, 20), 500, np.uint16))
    turned = sample(deep, tmp_path, spec(1, 12, 20), range=[1000, 0])
    np.testing.assert_allclose(turned.inputs["image"], 127.5)
