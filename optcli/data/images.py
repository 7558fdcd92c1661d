"""From the bytes of an image to the model's input, as `images.json` beside this file says.

optcli's own data take their steps from here too; bundles have a copy of this file, which imports
nothing of optcli. The steps are those of the recipe that the model was built with. They run in a
fixed order:

    decode > resize > crop or letterbox > channel order > scale > mean and std > layout > type

Between the steps an image is an array [height, width, channels]. Grey has one channel; three are
RGB. Pillow does the resizing, on 8-bit values and on floats alike, so that an image file and the same
image in an npz come out equal. Needs NumPy and Pillow. Whatever is wrong with an image is a
`ValueError` of one sentence.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

FILE = "images.json"
_NAMES = {1: "grey", 2: "grey with alpha", 3: "RGB", 4: "RGB with alpha"}


class NoImageError(ValueError):
    """The bytes are no image of a format that is taken."""


class ImageStepError(ValueError):
    """An image that a step cannot take. `args` are the sentence, the step, and channels it wants."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass
class PlacedImage:
    """An image on its way, and where its pixels lie: place in the input = place · scale + padding.

    `pixels` are [height, width, channels]. `original_size` is (height, width), `scale` (vertical,
    horizontal), `padding` (top, left) in pixels, negative where a crop cut. `network_size` is the size
    of the input where the model itself brings the image to it.
    """

    pixels: np.ndarray
    original_size: tuple[int, int]
    scale: tuple[float, float] = (1.0, 1.0)
    padding: tuple[int, int] = (0, 0)
    network_size: tuple[int, int] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Height and width."""
        return int(self.pixels.shape[0]), int(self.pixels.shape[1])

    def placement(self) -> dict[str, Any]:
        """What brings boxes back to the original."""
        place = {"original_size": self.original_size, "scale": self.scale, "padding": self.padding}
        return place if self.network_size is None else {**place, "network_size": self.network_size}


class Images:
    """Turns images into inputs. Safe to call from several threads; Pillow releases the GIL.

    `input` is the name of the model's input that takes the image. Others have a value.
    """

    def __init__(self, settings: dict[str, Any]) -> None:
        if settings.get("schema") != 1:
            raise ValueError(f"{FILE} has schema {settings.get('schema')}, wanted 1")
        self.input: str = settings["input"]
        self._dtype = np.dtype(settings["dtype"])
        self._shape: list[int | str] = settings["shape"]
        self._ranges: dict[str, list[int]] = settings["ranges"]
        self._layout: str = settings["layout"]
        self._formats: list[str] = settings["formats"]
        self._most_pixels: int = settings["most_pixels"]
        self._steps: dict[str, Any] = settings["steps"]
        self._values: dict[str, dict[str, Any]] = settings.get("values", {})

    @classmethod
    def from_file(cls, path: Path) -> Images:
        """The steps that a file declares. Raises OSError and ValueError."""
        return cls(json.loads(path.read_text(encoding="utf-8")))

    def prepared(self, body: bytes | bytearray) -> tuple[np.ndarray, dict[str, Any]]:
        """One image as one row of the input, without the batch, and where its pixels lie in it.

        Raises `NoImageError` for bytes that are none, ValueError for one that the model cannot take.
        """
        pixels = pixels_of(self.decoded(body), self._steps["channel_order"], self._steps.get("range"))
        image = transformed(pixels, self._steps, self._most_pixels, self._dtype)
        return self._fitted(laid_out(image.pixels, self._layout, self._shape)), image.placement()

    def feed(
        self, rows: Sequence[np.ndarray], placements: Sequence[dict[str, Any]]
    ) -> dict[str, np.ndarray]:
        """All inputs of a call: prepared images, and what other inputs hold for each of them."""
        feed = {self.input: np.stack(rows)}
        for name, how in self._values.items():
            sizes = [placement["original_size"] for placement in placements]
            known = {
                "original_size": sizes,
                "original_size_wh": [size[::-1] for size in sizes],
                "scale_factor": [placement["scale"] for placement in placements],
            }
            value = how["value"]
            values = np.array(known[value] if isinstance(value, str) else [value] * len(rows))
            if how["whole"]:
                feed[name] = values[0].reshape(how["shape"]).astype(how["dtype"])
            else:
                feed[name] = values.reshape(len(rows), *how["shape"]).astype(how["dtype"])
        return feed

    def size_of(self, row: np.ndarray) -> tuple[int, int]:
        """Height and width of a prepared image."""
        sizes = row.shape[1:] if self._layout.endswith("chw") else row.shape[:2]
        return int(sizes[0]), int(sizes[1])

    def decoded(self, body: bytes | bytearray) -> Image.Image:
        """One image as it is stored, turned where the steps say so. Raises as `prepared` does."""
        if not body:
            raise NoImageError("found no bytes, wanted an image")
        wanted = " or ".join(self._formats)
        try:
            image = Image.open(io.BytesIO(body), formats=self._formats)
        except Image.DecompressionBombError as error:
            raise ValueError(f"the image is too large: {_first_line(error)}") from error
        except Exception as error:  # Pillow's readers raise many kinds over broken headers
            raise NoImageError(f"this is not a {wanted} image that can be read") from error
        width, height = image.size
        if width * height > self._most_pixels:
            raise ValueError(
                f"the image has {height} x {width} pixels, wanted at most {self._most_pixels} in all"
            )
        try:
            image.load()
            return ImageOps.exif_transpose(image) if self._steps["orient"] else image
        except Exception as error:  # the same
            raise ValueError(f"the image is damaged or cut short: {_first_line(error)}") from error

    def _fitted(self, value: np.ndarray) -> np.ndarray:
        """The array in the input's element type, its shape and values checked."""
        sizes: dict[str, int] = {}
        fits = len(self._shape) == value.ndim and all(
            wanted == size
            if isinstance(wanted, int)
            else self._ranges[wanted][0] <= size <= self._ranges[wanted][1]
            and sizes.setdefault(wanted, size) == size
            for wanted, size in zip(self._shape, value.shape, strict=True)
        )
        if not fits:
            actual, wanted = (" x ".join(map(str, shape)) for shape in (value.shape, self._shape))
            raise ValueError(f"the image becomes {actual} values, the model wants {wanted}")
        cast = np.ascontiguousarray(value, dtype=self._dtype)
        if cast.dtype.kind == "f":
            if not np.isfinite(cast).all():
                raise ValueError(f"the image has values that are too large for {self._dtype}")
        elif not np.array_equal(cast, value):
            raise ValueError(f"the prepared image has values that do not fit into {self._dtype}")
        return cast


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def _named(channels: int) -> str:
    name = _NAMES.get(channels)
    return f"{channels} channel{'s' if channels > 1 else ''}" + (f" ({name})" if name else "")


def pixels_of(
    image: Image.Image, channel_order: str | None, value_range: Sequence[float] | None = None
) -> np.ndarray:
    """[height, width, 1 or 3], uint8. Raises `ImageStepError`.

    Values of more than 8 bits are float32: `value_range`, black and white, becomes 0 and 255.
    """
    if image.mode in ("P", "PA"):
        image = image.convert("RGBA" if "transparency" in image.info or image.mode == "PA" else "RGB")
    if image.mode == "1":
        image = image.convert("L")
    if image.mode not in ("L", "RGB"):
        deep = image.mode.startswith(("I", "F"))
        if deep and value_range is not None:
            low, high = value_range
            values = (np.asarray(image).astype(np.float32) - low) * (255 / (high - low))
            clipped: np.ndarray = np.clip(values, 0, 255)[:, :, None]
            return clipped
        if deep:
            message = f"the image has more than 8 bits a value (mode {image.mode}), wanted 8 bits"
            raise ImageStepError(message, "bits")
        if channel_order is None:
            message = f"the image has the mode {image.mode}, wanted grey (L) or RGB"
            raise ImageStepError(message, "channel_order")
        image = image.convert("L" if image.mode in ("LA", "La") else "RGB")
    pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def transformed(
    pixels: np.ndarray,
    steps: dict[str, Any],
    most_pixels: float = math.inf,
    dtype: np.dtype | None = None,
) -> PlacedImage:
    """Resize, crop or letterbox, channel order, scale, mean and std; float64 where values change.

    With a floating `dtype` the values of bytes come in it at once, the same to the last bit. Raises
    `ImageStepError`.
    """
    inside = steps.get("inside")
    image = PlacedImage(pixels, (int(pixels.shape[0]), int(pixels.shape[1])))
    if inside == "all":  # a stand-in of one value goes the way of the image
        image.pixels = np.broadcast_to(np.zeros_like(pixels[:1, :1]), pixels.shape)
    if steps["resize_in"] == "float32" and inside is None:
        image.pixels = pixels.astype(np.float32)
    if steps["resize"] is not None or steps["multiple_of"] is not None:
        size = _target_size(image.size, steps["resize"], steps["longest"], steps["multiple_of"])
        # An image of one pixel by a million grows without end where its shorter side is resized.
        if size[0] * size[1] > most_pixels:
            raise ImageStepError(
                f"the image is too narrow: resizing makes {size[0]} x {size[1]} pixels of it,"
                f" wanted at most {most_pixels} in all",
                "resize",
            )
        _resize(image, size, steps["interpolation"])
    if steps["crop"] is not None:
        _crop(image, steps["crop"], steps["crop_rounding"])
    if steps["letterbox"] is not None:
        _letterbox(image, steps["letterbox"], steps["interpolation"])
    if inside == "all":
        image.network_size, image.pixels = image.size, pixels
    if steps["channel_order"] is not None:
        rgb = inside is not None and steps["channel_order"] == "bgr"
        image.pixels = _ordered(image.pixels, "rgb" if rgb else steps["channel_order"])
    if inside is not None:
        return image
    scale, mean, std = steps["scale"], steps["mean"], steps["std"]
    if scale != 1 or any(mean) or any(value != 1 for value in std):
        channels = image.pixels.shape[2]
        for name, values in (("mean", mean), ("std", std)):
            if len(values) not in (1, channels):
                raise ImageStepError(
                    f"{name} has {len(values)} values, the image {_named(channels)}", name
                )
        if dtype is not None and dtype.kind == "f" and image.pixels.dtype == np.uint8:
            table = _normalized(np.arange(256)[:, None], scale, mean, std).astype(dtype)
            image.pixels = _looked_up(table, image.pixels)
        else:
            image.pixels = _normalized(image.pixels, scale, mean, std)
    return image


def _normalized(values: np.ndarray, scale: float, mean: list[float], std: list[float]) -> np.ndarray:
    normalized: np.ndarray = (values.astype(np.float64) * scale - np.array(mean)) / np.array(std)
    return normalized


def _looked_up(table: np.ndarray, pixels: np.ndarray) -> np.ndarray:
    """`table` [256, 1 or channels] at each pixel; in memory one channel lies behind the other."""
    height, width, channels = pixels.shape
    columns = np.broadcast_to(table, (256, channels)).T.copy()
    planes = np.empty((channels, height, width), table.dtype)
    for channel in range(channels):
        np.take(columns[channel], pixels[:, :, channel], out=planes[channel], mode="clip")
    return planes.transpose(1, 2, 0)


def _target_size(
    size: tuple[int, int],
    wanted: int | Sequence[int] | None,
    longest: int | None = None,
    multiple_of: int | None = None,
) -> tuple[int, int]:
    """Height and width; one number is the shorter side. The longer is cut to whole pixels.

    Where the longer would pass `longest`, that decides, and the shorter side is rounded.
    """
    if isinstance(wanted, int):
        shorter, longer = min(size), max(size)
        exact = float(wanted)
        if longest is not None and longer / shorter * wanted > longest:
            exact = longest * shorter / longer
        sides = round(exact), int(exact * longer / shorter)
        size = sides if size[0] <= size[1] else sides[::-1]
    elif wanted is not None:
        size = wanted[0], wanted[1]
    step = multiple_of or 1
    return max(size[0] // step, 1) * step, max(size[1] // step, 1) * step


def _resize(image: PlacedImage, size: tuple[int, int], interpolation: str) -> None:
    height, width = image.size
    if size != (height, width):
        image.pixels = _resampled(image.pixels, size, interpolation)
    image.scale = (image.scale[0] * size[0] / height, image.scale[1] * size[1] / width)


def _resampled(pixels: np.ndarray, size: tuple[int, int], interpolation: str) -> np.ndarray:
    if not any(pixels.strides):
        return np.broadcast_to(pixels[:1, :1], (*size, pixels.shape[2]))
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


def _crop(image: PlacedImage, size: Sequence[int], rounding: str) -> None:
    height, width = image.size
    if height < size[0] or width < size[1]:
        raise ImageStepError(
            f"the image is {height} x {width} before the crop, wanted at least {size[0]} x {size[1]}",
            "crop",
        )
    # round() goes to the even neighbour, as torchvision's centre crop does.
    whole = round if rounding == "even" else int
    top, left = whole((height - size[0]) / 2), whole((width - size[1]) / 2)
    image.pixels = image.pixels[top : top + size[0], left : left + size[1]]
    image.padding = (image.padding[0] - top, image.padding[1] - left)


def _letterbox(image: PlacedImage, box: dict[str, Any], interpolation: str) -> None:
    height, width = image.size
    ratio = min(box["size"][0] / height, box["size"][1] / width)
    if not box["enlarge"]:
        ratio = min(ratio, 1.0)
    size = (max(1, round(height * ratio)), max(1, round(width * ratio)))
    _resize(image, size, interpolation)
    top, left = (box["size"][0] - size[0]) // 2, (box["size"][1] - size[1]) // 2
    if box["align"] == "top_left":
        top = left = 0
    channels = image.pixels.shape[2]
    if len(box["fill"]) not in (1, channels):
        message = f"the letterbox has {len(box['fill'])} fill values, the image {channels} channels"
        raise ImageStepError(message, "letterbox")
    canvas = np.empty((*box["size"], channels), image.pixels.dtype)
    canvas[:] = np.array(box["fill"]).astype(image.pixels.dtype)
    canvas[top : top + size[0], left : left + size[1]] = image.pixels
    image.pixels, image.padding = canvas, (top, left)


def _ordered(pixels: np.ndarray, order: str) -> np.ndarray:
    """Grey or RGB as declared. Grey is ITU-R 601 luma, computed by Pillow for 8 bits."""
    if pixels.shape[2] == 4:
        pixels = pixels[:, :, :3]
    if order == "grey" and pixels.shape[2] == 3:
        if pixels.dtype == np.uint8:
            return np.asarray(Image.fromarray(pixels).convert("L"))[:, :, None]
        return pixels @ np.array([[0.299], [0.587], [0.114]], np.float64)
    if order != "grey" and pixels.shape[2] == 1:
        return np.repeat(pixels, 3, axis=2)
    return pixels[:, :, ::-1] if order == "bgr" else pixels


def laid_out(pixels: np.ndarray, layout: str, shape: Sequence[int | str]) -> np.ndarray:
    """[height, width, channels] in the order of `layout`, for an input of `shape` without the batch.

    Raises `ImageStepError` where the image's channels are not the input's.
    """
    axis = {"chw": -3, "hwc": -1}.get(layout[-3:])
    wanted = shape[axis] if axis and len(shape) == 3 else None
    channels = pixels.shape[2]
    if isinstance(wanted, int) and channels != wanted:
        plural = "s" if wanted > 1 else ""
        message = f"the image has {_named(channels)}, the model wants {wanted} channel{plural}"
        raise ImageStepError(message, "channels", wanted)
    if layout == "hw":
        if channels != 1:
            raise ImageStepError(f"the image has {_named(channels)}, the model wants grey", "layout")
        return pixels[:, :, 0]
    return pixels.transpose(2, 0, 1) if layout.endswith("chw") else pixels
