"""The steps of a preparation, on arrays: one image in, one input out.

Between the steps an image is an array [height, width, channels]. Grey has one channel; three are
RGB. Pillow does the resizing, on 8-bit values and on floats alike, so that an image file and the same
image in an npz come out equal.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optcli.data.preparation import Letterbox, Preparation
from optcli.errors import InputError

if TYPE_CHECKING:
    import numpy as np
    from PIL.Image import Image

_CHANNELS = (1, 3, 4)
_NAMES = {1: "grey", 2: "grey with alpha", 3: "RGB", 4: "RGB with alpha"}


@dataclass
class Placed:
    """An image and where it came from: place in the input = place in the original · scale + padding.

    `scale` is (vertical, horizontal), `padding` (top, left) in pixels, negative where a crop cut.
    """

    pixels: np.ndarray
    original_size: tuple[int, int]
    scale: tuple[float, float] = (1.0, 1.0)
    padding: tuple[int, int] = (0, 0)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        height, width = self.pixels.shape[:2]
        return int(height), int(width)

    def meta(self) -> dict[str, Any]:
        """What a metric needs to bring boxes back to the original. Plain data."""
        return {"original_size": self.original_size, "scale": self.scale, "padding": self.padding}


def decoded(image: Image, steps: Preparation) -> np.ndarray:
    """The pixels of a PIL image, [height, width, 1 or 3], uint8. Raises `InputError`."""
    import numpy as np
    from PIL import ImageOps

    if steps.orient:
        image = ImageOps.exif_transpose(image)
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA" if "transparency" in image.info or image.mode == "PA" else "RGB")
    if image.mode == "1":
        image = image.convert("L")
    if image.mode not in ("L", "RGB"):
        image = _converted(image, steps)
    pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def _converted(image: Image, steps: Preparation) -> Image:
    if image.mode.startswith(("I", "F")):
        raise InputError(
            f"found a {image.mode} image (more than 8 bits a value), wanted 8 bits",
            hint="convert it to 8 bits, or store the values in an npz",
        )
    if steps.channel_order is None:
        raise InputError(
            f"found a {image.mode} image, wanted grey (L) or RGB",
            hint="prepare: {channel_order: rgb} converts it (alpha is dropped)",
        )
    return image.convert("L" if image.mode in ("LA", "La") else "RGB")


def from_array(array: np.ndarray, layout: str | None) -> np.ndarray:
    """A stored array as [height, width, channels]. Raises `InputError` where its layout is unclear."""
    if layout is not None and array.ndim != len(layout):
        raise InputError(
            f"found an array of shape {array.shape}, wanted {layout}", hint="correct array_layout"
        )
    if array.ndim == 2:
        return array[:, :, None]
    if array.ndim == 3:
        first, last = array.shape[0] in _CHANNELS, array.shape[2] in _CHANNELS
        if layout == "chw" or (layout is None and first and not last):
            return array.transpose(1, 2, 0)
        if layout == "hwc" or (layout is None and last and not first):
            return array
    raise InputError(
        f"cannot tell the layout of an array of shape {array.shape}",
        hint="prepare: {array_layout: hwc} or chw",
    )


def transformed(pixels: np.ndarray, steps: Preparation) -> Placed:
    """Resize, crop or letterbox, channel order, scale, mean and std; float64 where values change."""
    import numpy as np

    image = Placed(pixels, (int(pixels.shape[0]), int(pixels.shape[1])))
    if steps.resize_in == "float32":
        image.pixels = pixels.astype(np.float32)
    if steps.resize is not None:
        _resize(image, _target_size(image.size, steps.resize), steps.interpolation)
    if steps.crop is not None:
        _crop(image, steps.crop)
    if steps.letterbox is not None:
        _letterbox(image, steps.letterbox, steps.interpolation)
    if steps.channel_order is not None:
        image.pixels = _ordered(image.pixels, steps.channel_order)
    if steps.scale != 1 or any(steps.mean) or any(value != 1 for value in steps.std):
        _check_channels(steps, image.pixels.shape[2])
        values = image.pixels.astype(np.float64) * steps.scale
        image.pixels = (values - np.array(steps.mean)) / np.array(steps.std)
    return image


def laid_out(pixels: np.ndarray, layout: str) -> np.ndarray:
    """[height, width, channels] in the order of `layout`. Raises `InputError`."""
    if layout == "hw":
        if pixels.shape[2] != 1:
            raise InputError(
                f"found {_named(pixels.shape[2])}, the input has no channel dimension",
                hint="prepare: {channel_order: grey}",
            )
        return pixels[:, :, 0]
    return pixels.transpose(2, 0, 1) if layout.endswith("chw") else pixels


def check_channels(channels: int, wanted: int) -> None:
    """Raise `InputError` where the image's channels are not the input's."""
    if channels != wanted:
        order = {1: "grey", 3: "rgb"}.get(wanted)
        hint = f"prepare: {{channel_order: {order}}}" if order else "convert the data"
        raise InputError(
            f"found {_named(channels)}, the input wants {wanted} channel{'s' if wanted > 1 else ''}",
            hint=hint,
        )


def _named(channels: int) -> str:
    name = _NAMES.get(channels)
    return f"an image of {channels} channels" + (f" ({name})" if name else "")


def _target_size(size: tuple[int, int], wanted: int | tuple[int, int]) -> tuple[int, int]:
    """Height and width; one number is the shorter side. The longer is cut to whole pixels."""
    if not isinstance(wanted, int):
        return wanted
    height, width = size
    if height <= width:
        return wanted, int(wanted * width / height)
    return int(wanted * height / width), wanted


def _resize(image: Placed, size: tuple[int, int], interpolation: str) -> None:
    height, width = image.size
    if size != (height, width):
        image.pixels = _resampled(image.pixels, size, interpolation)
    image.scale = (image.scale[0] * size[0] / height, image.scale[1] * size[1] / width)


def _resampled(pixels: np.ndarray, size: tuple[int, int], interpolation: str) -> np.ndarray:
    import numpy as np
    from PIL import Image

    method = Image.Resampling[interpolation.upper()]
    extent = (size[1], size[0])
    if pixels.dtype == np.uint8 and pixels.shape[2] in (1, 3):
        flat = pixels[:, :, 0] if pixels.shape[2] == 1 else pixels
        resized = np.asarray(Image.fromarray(flat).resize(extent, method))
        return resized.reshape(*size, pixels.shape[2])
    planes = [
        np.asarray(Image.fromarray(pixels[:, :, plane].astype(np.float32)).resize(extent, method))
        for plane in range(pixels.shape[2])
    ]
    return np.stack(planes, axis=2)


def _crop(image: Placed, size: tuple[int, int]) -> None:
    height, width = image.size
    if height < size[0] or width < size[1]:
        raise InputError(
            f"the image is {height} x {width} before the crop, wanted at least {size[0]} x {size[1]}",
            hint=f"prepare: {{resize: {max(size)}, crop: ...}} enlarges it first",
        )
    # round() to the even neighbour is what torchvision's centre crop does.
    top, left = round((height - size[0]) / 2), round((width - size[1]) / 2)
    image.pixels = image.pixels[top : top + size[0], left : left + size[1]]
    image.padding = (image.padding[0] - top, image.padding[1] - left)


def _letterbox(image: Placed, box: Letterbox, interpolation: str) -> None:
    import numpy as np

    height, width = image.size
    ratio = min(box.size[0] / height, box.size[1] / width)
    if not box.enlarge:
        ratio = min(ratio, 1.0)
    size = (max(1, round(height * ratio)), max(1, round(width * ratio)))
    _resize(image, size, interpolation)
    top, left = ((box.size[0] - size[0]) // 2, (box.size[1] - size[1]) // 2)
    if box.align == "top_left":
        top = left = 0
    channels = image.pixels.shape[2]
    if len(box.fill) not in (1, channels):
        raise InputError(
            f"letterbox fill has {len(box.fill)} values, the image {channels} channels",
            hint="give one value, or one a channel",
        )
    canvas = np.empty((*box.size, channels), image.pixels.dtype)
    canvas[:] = np.array(box.fill).astype(image.pixels.dtype)
    canvas[top : top + size[0], left : left + size[1]] = image.pixels
    image.pixels, image.padding = canvas, (top, left)


def _ordered(pixels: np.ndarray, order: str) -> np.ndarray:
    """Grey or RGB as declared. Grey is ITU-R 601 luma, computed by Pillow for 8 bits."""
    import numpy as np
    from PIL import Image

    if pixels.shape[2] == 4:
        pixels = pixels[:, :, :3]
    if order == "grey" and pixels.shape[2] == 3:
        if pixels.dtype == np.uint8:
            return np.asarray(Image.fromarray(pixels).convert("L"))[:, :, None]
        return pixels @ np.array([[0.299], [0.587], [0.114]], np.float64)
    if order != "grey" and pixels.shape[2] == 1:
        return np.repeat(pixels, 3, axis=2)
    return pixels[:, :, ::-1] if order == "bgr" else pixels


def _check_channels(steps: Preparation, channels: int) -> None:
    for name in ("mean", "std"):
        count = len(getattr(steps, name))
        if count not in (1, channels):
            hint = f"prepare: {{channel_order: {'rgb' if count == 3 else 'grey'}}}"
            raise InputError(f"{name} has {count} values, found {_named(channels)}", hint=hint)
