"""The steps of a preparation do what image processors of transformers do, or the processor is named."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needs import imported

from optcli import data
from optcli.data import DataSettings, Preparation, hf, steps
from optcli.data.hf import one_size
from optcli.data.preset import resolved
from optcli.errors import InputError
from optcli.files.digest import FileDigests

pytestmark = [pytest.mark.slow, pytest.mark.needs("package", "transformers")]

SMALL = {"height": 64, "width": 48}


def processor(name: str, **options: Any):
    """One of transformers, which takes seconds to import: tests alone do."""
    return getattr(imported("transformers"), name)(**options)


PROCESSORS = {
    "height and width": partial(processor, "ViTImageProcessor", size=SMALL),
    "shortest edge and a crop": partial(
        processor,
        "CLIPImageProcessor",
        size={"shortest_edge": 75},
        crop_size={"height": 64, "width": 63},
    ),
    "a share that is cropped": partial(
        processor, "ConvNextImageProcessor", size={"shortest_edge": 64}, crop_pct=0.875
    ),
    "no crop for large sizes": partial(
        processor, "ConvNextImageProcessor", size={"shortest_edge": 384}
    ),
    "a bounded longer edge": partial(
        processor, "DetrImageProcessor", size={"shortest_edge": 80, "longest_edge": 97}
    ),
    "sizes in steps of 16": partial(
        processor, "YolosImageProcessor", size={"shortest_edge": 80, "longest_edge": 133}
    ),
    "a divisor alone": partial(processor, "GLPNImageProcessor", size_divisor=32),
    "padded below and right": partial(
        processor, "SamImageProcessor", size={"longest_edge": 96}, pad_size={"height": 96, "width": 96}
    ),
    "a hidden share": partial(
        processor, "LevitImageProcessor", size={"shortest_edge": 56}, crop_size=SMALL | {"height": 56}
    ),
    "divided twice": partial(processor, "EfficientNetImageProcessor", size=SMALL),
    "an offset": partial(
        processor,
        "EfficientNetImageProcessor",
        size=SMALL,
        rescale_factor=1 / 127.5,
        rescale_offset=True,
        include_top=False,
    ),
    "a factor of its own": partial(
        processor, "ViTImageProcessor", size=SMALL, rescale_factor=1 / 128, do_normalize=False
    ),
    "no factor": partial(
        processor,
        "ViTImageProcessor",
        size=SMALL,
        do_rescale=False,
        image_mean=[120] * 3,
        image_std=[60] * 3,
    ),
    "no size": partial(processor, "ViTImageProcessor", do_resize=False),
    "blue first": partial(
        processor,
        "MobileViTImageProcessor",
        size={"shortest_edge": 70},
        crop_size={"height": 64, "width": 64},
    ),
    "slow": partial(processor, "ViTImageProcessorPil", size=SMALL, resample=3),
}


def saved(known, folder: Path) -> str:
    known.save_pretrained(folder)
    return f"hf:{folder}"


@pytest.mark.parametrize("name", PROCESSORS)
def test_the_steps_do_what_a_processor_does_on_photographs(tmp_path, shared, name):
    known = PROCESSORS[name]()
    preparation = resolved(Preparation(preset=saved(known, tmp_path)))
    unit = preparation.scale / np.array(preparation.std)[:, None, None]
    for image in photographs(shared):
        theirs = known(images=image, return_tensors="np")["pixel_values"][0]
        ours = steps.transformed(np.asarray(image), preparation).pixels.transpose(2, 0, 1)
        assert ours.shape == theirs.shape
        # torchvision's bicubic filter is further from Pillow's than a level in a few pixels.
        apart = np.abs(ours - theirs) / unit
        assert np.quantile(apart, 0.999) <= 1.01
        assert apart.max() <= (1.01 if name != "no crop for large sizes" else 4)


def photographs(shared: Path):
    """Two of odd sizes, one upright and one lying."""
    from PIL import Image

    paths = sorted((shared / "datasets/coco_tiny_val/images").iterdir())
    images = [Image.open(path).convert("RGB") for path in paths[:2]]
    return [images[0].crop((0, 0, 417, 331)), images[1].crop((0, 0, 301, 377))]


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        (
            partial(processor, "DPTImageProcessor", keep_aspect_ratio=True, ensure_multiple_of=14),
            "keeping the aspect ratio",
        ),
        (
            partial(
                processor,
                "ViTImageProcessor",
                size=SMALL,
                do_pad=True,
                pad_size={"height": 80, "width": 80},
            ),
            r"resizes to .* and pads to \[80, 80\]: no step of `prepare` does",
        ),
        (
            partial(
                processor,
                "DetrImageProcessor",
                size={"max_height": 80, "max_width": 128},
                do_pad=True,
                pad_size={"height": 96, "width": 128},
            ),
            r"resizes to .* and pads to \[96, 128\]: no step of `prepare` does",
        ),
        (
            partial(processor, "DetrImageProcessor", size={"max_height": 80, "max_width": 128}),
            "resizes to .* `prepare` has no such size",
        ),
        (
            partial(processor, "CLIPImageProcessor", size={"shortest_edge": 100}),
            "before the crop, wanted at least 224 x 224",
        ),
        (partial(processor, "BridgeTowerImageProcessor"), "up to .* grey levels apart"),
        (
            partial(processor, "ViTImageProcessor", size=SMALL, resample=5),
            "have a form that `prepare` does not read",
        ),
    ],
)
def test_what_the_steps_do_not_have_is_named(tmp_path, refused, says):
    with pytest.raises(InputError, match=says) as caught:
        resolved(Preparation(preset=saved(refused(), tmp_path)))
    assert "declare the steps instead" in caught.value.hint


def test_a_first_recipe_has_one_size_where_the_processor_has_several(tmp_path):
    known = processor("DPTImageProcessor", size=SMALL, keep_aspect_ratio=True, ensure_multiple_of=14)
    size, said, why = one_size(saved(known, tmp_path / "dpt"))
    assert (size, said["resize"]) == ((64, 48), (64, 48))
    assert "keeping the aspect ratio" in why
    size, said, why = one_size(saved(processor("DetrImageProcessor"), tmp_path / "detr"))
    assert (size, said["resize"]) == ((800, 1056), (800, 1056))
    assert "several sizes" in why
    assert one_size(saved(PROCESSORS["padded below and right"](), tmp_path / "sam"))[::2] == (
        (96, 96),
        "",
    )


def test_a_fast_processor_is_refused_where_its_slow_form_alone_agrees(tmp_path, monkeypatch):
    place = saved(processor("ViTImageProcessor", size=SMALL), tmp_path)
    known = hf.processor_of(tmp_path, place)
    fast, slow = (hf.processor_of(tmp_path, place, backend) for backend in (None, "pil"))

    class Darker(type(known)):
        def __call__(self, **options):
            return {"pixel_values": [np.asarray(fast(**options)["pixel_values"][0]) - 5 / 127.5]}

    known.__class__ = Darker
    monkeypatch.setattr(hf, "processor_of", lambda *args: slow if "pil" in args else known)
    with pytest.raises(InputError, match=r"up to [56] grey levels apart"):
        hf.steps_of(place)


def test_no_code_of_a_repository_runs(tmp_path):
    (tmp_path / "mine.py").write_text("raise SystemExit('this ran')")
    auto = '{"auto_map": {"AutoImageProcessor": "mine.Mine"}}'
    (tmp_path / "preprocessor_config.json").write_text(auto)
    with pytest.raises(InputError, match="trust_remote_code is off"):
        resolved(Preparation(preset=f"hf:{tmp_path}"))


def test_a_processor_is_in_the_key_by_content(tmp_path):
    def key(folder: Path):
        settings = DataSettings(source=f"imagefolder:{tmp_path / 'images'}", prepare=f"hf:{folder}")
        return data.ingredients(settings, tmp_path, FileDigests())

    (tmp_path / "images").mkdir()
    (tmp_path / "images/one.png").write_bytes(b"x")
    for name, size in (("a", 64), ("b", 64), ("c", 63)):
        saved(processor("ViTImageProcessor", size={"height": size, "width": 64}), tmp_path / name)
    first, same, other = (key(tmp_path / name) for name in "abc")
    assert first == same != other
    assert "transformers" in first["versions"]
