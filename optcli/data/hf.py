"""What an image processor of transformers does, as the steps of a preparation.

The steps are compared with the processor's own output on images before they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.errors import InputError, first_line
from optcli.files import regular_files
from optcli.files.digest import FileDigests
from optcli.models.formats import torch_libraries

if TYPE_CHECKING:
    import numpy as np

_FILES = (torch_libraries.PROCESSOR, "processor_config.json", torch_libraries.CONFIG)
_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box")  # by Pillow's number
# Height and width of the images that both sides prepare: odd, upright and lying.
_TRIED = ((371, 523), (640, 429))
_MOST = 1.01  # grey levels: fast processors round a resized value otherwise than Pillow
# Of a fast processor's values: its bicubic filter clips once, Pillow's after each direction.
_NEARLY_ALL = 0.999
_USUAL = (480, 640)
_HINT = "declare the steps instead: resize, crop, scale, mean, std"


def digest(preset: str, digests: FileDigests) -> dict[str, str]:
    """What decides a processor, by content. Raises `InputError` and `MissingError`."""
    folder = _folder(preset)
    there = [name for name in _FILES if regular_files.is_file(folder / name)]
    return {name: digests.of(folder / name) for name in there}


def steps_of(preset: str) -> dict[str, Any]:
    """The fields of a preparation that does what the processor of `hf:PLACE` does.

    Raises `InputError` where there is none, or it does what `prepare` does not have.
    """
    return dict(_checked(preset))


@cache
def _checked(preset: str) -> Mapping[str, Any]:
    folder = _folder(preset)
    processor = processor_of(folder, preset)
    declared_settings = declared(processor, preset)
    whys = []
    for steps in _readings(declared_settings):
        why = _difference(processor, steps, preset)
        if why is not None and _difference(processor, steps, preset, share=_NEARLY_ALL) is None:
            with suppress(InputError):  # the processor has no other form
                why = _difference(processor_of(folder, preset, "pil"), steps, preset)
        if why is None:
            return steps
        whys.append(why)
    raise InputError(
        f"{type(processor).__name__} prepares images in a way that `prepare` does not have: {whys[0]}",
        place=preset,
        hint=_HINT,
    )


def _readings(declared_settings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What settings may mean: some processors round sizes, or resize for a later crop, unsaid."""
    yield dict(declared_settings)
    if "longest" in declared_settings:
        yield {**declared_settings, "multiple_of": 16}
    if isinstance(declared_settings.get("resize"), int):
        yield {**declared_settings, "resize": int(declared_settings["resize"] * 256 / 224)}


def _folder(preset: str) -> Path:
    return torch_libraries.snapshot(preset.partition(":")[2], Path.cwd(), files=_FILES)


def one_size(preset: str) -> tuple[tuple[int, int], dict[str, Any], str]:
    """One size for all images, steps that lead to it, and what else the processor does, if it does.

    Where the processor keeps the aspect ratio of an image, the size is one that is usual for it.
    """
    processor = processor_of(_folder(preset), preset)
    try:
        steps = steps_of(preset)
    except InputError as error:
        steps, why = {}, error.message
    else:
        why = "the processor gives images of several sizes"
    own = steps.get("crop") or steps.get("letterbox", {}).get("size") or steps.get("resize")
    if isinstance(own, tuple) and "multiple_of" not in steps:
        return own, steps, ""
    sides: dict[str, int] = dict(getattr(processor, "size", {}) or {})
    height = sides.get("height") or sides.get("shortest_edge") or _USUAL[0]
    width = sides.get("width") or round(height * 4 / 3 / 32) * 32
    fixed = int(height), int(width)
    return fixed, declared(processor, preset, fixed), why


def processor_of(folder: Path, place: str, backend: str | None = None) -> Any:
    """The image processor in a folder, without its code. Raises `InputError`."""
    transformers = torch_libraries.library("transformers")
    try:
        return transformers.AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, backend=backend
        )
    except Exception as error:  # whatever a folder from elsewhere leads to
        raise InputError(
            f"transformers reads no image processor (trust_remote_code is off): {first_line(error)}",
            place=place,
            hint=_HINT,
        ) from error


def declared(processor: Any, place: str, size: tuple[int, int] | None = None) -> dict[str, Any]:
    """The steps that the settings of a processor say; `size` is one for all images, in place of its.

    Raises `InputError` for sizes that `prepare` does not have, and for settings of an unknown form.
    """
    try:
        return _declared(processor, place, size)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"the settings of {type(processor).__name__} have a form that `prepare` does not read:"
            f" {first_line(error)}",
            place=place,
            hint=_HINT,
        ) from error


def _declared(processor: Any, place: str, size: tuple[int, int] | None) -> dict[str, Any]:
    has: dict[str, Any] = {
        name: getattr(processor, name, None) for name in dir(processor) if not name.startswith("_")
    }
    steps: dict[str, Any] = {"channel_order": "bgr" if has.get("do_flip_channel_order") else "rgb"}
    mean, std = (
        _values(has.get(f"image_{name}"), default) for name, default in (("mean", 0), ("std", 1))
    )
    if not has.get("do_normalize"):
        mean, std = (0.0,), (1.0,)
    if has.get("do_rescale"):
        steps["scale"] = has["rescale_factor"]
        # EfficientNet's values go from -1 to 1 before they are normalized.
        offset = 1.0 if has.get("rescale_offset") else 0.0
        mean = tuple(value + offset for value in mean)
    if has.get("include_top"):  # EfficientNet's is divided by it twice
        std = tuple(value**2 for value in std)
    if any(mean) or any(value != 1 for value in std):
        steps |= {"mean": mean, "std": std}
    fill = tuple(value / steps.get("scale", 1.0) for value in mean)
    resample = has.get("resample")
    interpolation = _FILTERS[2 if resample is None else int(resample)]
    if size is not None:
        return {**steps, "resize": size, "interpolation": interpolation}
    if has.get("do_resize"):
        steps |= {**_sizes(has, fill, place), "interpolation": interpolation}
    if has.get("do_center_crop") and has.get("crop_size"):
        crop: dict[str, int] = dict(has["crop_size"])
        side = crop.get("shortest_edge")
        sides = crop.get("height") or side, crop.get("width") or side
        steps |= {"crop": sides, "crop_rounding": "down"}
    return steps


def _values(value: Any, default: float) -> tuple[float, ...]:
    if value is None:
        return (float(default),)
    values = (
        tuple(float(each) for each in value) if isinstance(value, list | tuple) else (float(value),)
    )
    return values if len(set(values)) > 1 else values[:1]


def _sizes(has: Mapping[str, Any], fill: tuple[float, ...], place: str) -> dict[str, Any]:
    """The size after resizing, by the forms in which processors say it."""
    size = {name: value for name, value in dict(has.get("size") or {}).items() if value}
    divisor, padded = has.get("size_divisor"), dict(has.get("pad_size") or {})
    box = size.get("longest_edge")
    if padded and has.get("do_pad"):
        if size.keys() == {"longest_edge"} and set(padded.values()) == {box}:
            return {"letterbox": {"size": (box, box), "fill": fill, "align": "top_left"}}
        sides = [padded.get("height"), padded.get("width")]
        greys = [round(value) for value in fill]
        raise InputError(
            f"the processor resizes to {size or 'no size'} and pads to {sides}: no step of `prepare`"
            " does",
            place=place,
            hint=f"{_HINT}; nearest is letterbox: {{size: {sides}, fill: {greys}, align: top_left}}",
        )
    if size.keys() == {"height", "width"} and not has.get("keep_aspect_ratio"):
        return {"resize": (size["height"], size["width"])}
    if size.keys() == {"shortest_edge"}:
        shortest, share = size["shortest_edge"], has.get("crop_pct")
        if share is None:
            return {"resize": shortest}
        if shortest >= 384:  # ConvNeXt's large sizes are not cropped
            return {"resize": (shortest, shortest)}
        return {"resize": int(shortest / share), "crop": (shortest, shortest), "crop_rounding": "down"}
    if size.keys() == {"shortest_edge", "longest_edge"}:
        return {"resize": size["shortest_edge"], "longest": size["longest_edge"]}
    if not size and divisor:
        return {"multiple_of": divisor}
    ratio_text = ", keeping the aspect ratio" if has.get("keep_aspect_ratio") else ""
    raise InputError(
        f"the processor resizes to {size or 'a size of its own'}{ratio_text}:"
        " `prepare` has no such size",
        place=place,
        hint=f"{_HINT}; one size for all images is resize: [HEIGHT, WIDTH]",
    )


def _difference(processor: Any, steps: Mapping[str, Any], place: str, share: float = 1.0) -> str | None:
    """How they differ on odd sizes; None where this share of values is within a grey level."""
    import numpy as np

    from optcli.data.preparation import Preparation
    from optcli.data.steps import transformed

    preparation = Preparation(**steps)
    unit = steps.get("scale", 1.0) / np.array(preparation.std)[:, None, None]
    for image in _images():
        try:
            expected = processor(images=image, return_tensors="np")["pixel_values"][0]
            ours = transformed(np.asarray(image), preparation).pixels.transpose(2, 0, 1)
        except InputError as error:
            return error.message
        except Exception as error:  # a processor of another kind of input
            message = f"{type(processor).__name__} takes no image: {first_line(error)}"
            raise InputError(message, place=place, hint=_HINT) from error
        if ours.shape != expected.shape:
            size = f"an image of {image.height} x {image.width}"
            return f"it makes {list(expected.shape)} of {size}, and {steps} makes {list(ours.shape)}"
        apart = float(np.quantile(np.abs(ours - expected) / unit, share))
        if apart > _MOST:
            return f"its values and those of {steps} are up to {apart:.0f} grey levels apart"
    return None


def _images() -> list[Any]:
    """Images with coarse and fine structure, the same every time."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    images = []
    for height, width in _TRIED:
        coarse = Image.fromarray(random.integers(0, 256, (9, 13, 3), np.uint8))
        smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)).astype(np.int16)
        noisy: np.ndarray = smooth + random.integers(-20, 21, smooth.shape)
        images.append(Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)))
    return images
