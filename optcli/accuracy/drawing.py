"""An evaluation image with boxes, masks and keypoints as a JPEG, and a map of classes in colours."""

from __future__ import annotations

import colorsys
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image, ImageDraw

# Boxes that both have, that the variant alone has or gives another class, and that it has not.
BOTH, NEW, LOST = (0, 114, 178), (200, 80, 10), (168, 32, 26)
_OPAQUE = 0.45  # of a mask
_VISIBLE = 0.5  # as a model says of a keypoint
# COCO's lines between its 17 keypoints, from 0.
_PERSON = 17
_LINES = (
    *((15, 13), (13, 11), (16, 14), (14, 12), (11, 12), (5, 11), (6, 12), (5, 6), (5, 7), (6, 8)),
    *((7, 9), (8, 10), (1, 2), (0, 1), (0, 2), (1, 3), (2, 4), (3, 5), (4, 6)),
)
_USUAL_SIDE = 320  # of pictures in a page, in pixels
# Classes of a map that are named: those with most pixels, each of this share at least.
_MOST_NAMED, _LEAST_NAMED = 6, 0.02
_GOLDEN = 0.618034  # hues of neighbouring numbers lie far apart


@dataclass(frozen=True)
class DrawnBox:
    """A box `(left, top, right, bottom)` in pixels of its image, what is written to it, its colour.

    It may have a mask as COCO's run lengths, keypoints `[k, 2 or 3]`, or corners `[4, 2]`, which are
    drawn in place of the box.
    """

    box: Sequence[float]
    text: str
    colour: tuple[int, int, int] = BOTH
    mask: Mapping[str, Any] | None = None
    keypoints: Sequence[Sequence[float]] | None = None
    corners: Sequence[Sequence[float]] | None = None


def jpeg(
    image: Image.Image,
    marked: Sequence[DrawnBox],
    side: int,
    quality: int,
    original: tuple[int, int] | None = None,
) -> bytes:
    """An RGB image with boxes as a JPEG, its longest side `side` pixels.

    A tiny image is enlarged by a whole number, to half of that at most. `original` is the width and
    height of the image that boxes are for, where it is not this one.
    """
    from PIL import Image, ImageDraw, ImageFont

    longest = max(image.size)
    larger = side // 2 // longest
    scale = larger if larger > 1 else min(1.0, side / longest)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    filtered = Image.Resampling.BILINEAR if scale < 1 else Image.Resampling.NEAREST
    font = ImageFont.load_default(10 if side < _USUAL_SIDE else 11)
    shown = Image.new("RGB", size, "white")
    shown.paste(image.resize(size, filtered))
    of = original or image.size
    for each in reversed(marked):
        if each.mask is not None and each.mask["size"] == [of[1], of[0]]:
            shown.paste(each.colour, (0, 0), _veil(each.mask, size))
    pen = ImageDraw.Draw(shown)
    # Names last, so that no box crosses them; the first one on top.
    ordered = [(_scaled(each.box, size, of), each) for each in reversed(marked)]
    for box, each in ordered:
        if each.corners is None:
            pen.rectangle(box, outline=each.colour, width=2)
        else:
            pen.polygon(_points(each.corners, size, of), outline=each.colour, width=2)
        _draw_keypoints(pen, each, size, of)
    for (left, top, *_), each in ordered:
        text = _written(each.text)
        width = pen.textlength(text, font)
        x, y = max(0.0, min(left, size[0] - width - 4)), top - 13 if top >= 13 else top
        pen.rectangle((x, y, x + width + 4, y + 13), fill=each.colour)
        pen.text((x + 2, y), text, "white", font)
    content = io.BytesIO()
    shown.save(content, "JPEG", quality=quality, optimize=True)
    return content.getvalue()


def _veil(mask: Mapping[str, Any], size: tuple[int, int]) -> Image.Image:
    """How opaque the colour of a mask is in each pixel of the picture."""
    from PIL import Image
    from pycocotools import mask as library

    opaque = (library.decode(dict(mask)) * round(255 * _OPAQUE)).astype("uint8")
    return Image.fromarray(opaque).resize(size, Image.Resampling.BILINEAR)


def _points(
    points: Sequence[Sequence[float]], size: tuple[int, int], original: tuple[int, int]
) -> list[tuple[float, float]]:
    """Points in pixels of the picture, not far outside of it."""
    return [
        tuple(  # type: ignore[misc]
            min(2.0 * side, max(-1.0 * side, float(value) * side / whole))
            for value, side, whole in zip(point, size, original, strict=False)
        )
        for point in points
    ]


def _draw_keypoints(
    pen: ImageDraw.ImageDraw, each: DrawnBox, size: tuple[int, int], original: tuple[int, int]
) -> None:
    """The keypoints that are visible as dots; COCO's of a person with lines between them."""
    keypoints = () if each.keypoints is None else each.keypoints
    points = _points(keypoints, size, original)
    seen = [len(point) < 3 or point[2] >= _VISIBLE for point in keypoints]
    for first, second in _LINES if len(points) == _PERSON else ():
        if seen[first] and seen[second]:
            pen.line((points[first], points[second]), fill=each.colour, width=2)
    for (x, y), is_seen in zip(points, seen, strict=True):
        if is_seen:
            pen.ellipse((x - 2, y - 2, x + 2, y + 2), fill="white", outline=each.colour)


def _scaled(
    box: Sequence[float], size: tuple[int, int], original: tuple[int, int]
) -> tuple[float, float, float, float]:
    """A box in pixels of the picture, its corners in order and inside."""
    ends = [min(size[i % 2] - 1.0, max(0.0, box[i] * size[i % 2] / original[i % 2])) for i in range(4)]
    (left, right), (top, bottom) = sorted(ends[::2]), sorted(ends[1::2])
    return left, top, right, bottom


def _written(text: str) -> str:
    """A text as far as Pillow's own font can write it."""
    return text.encode("latin-1", "replace").decode("latin-1")


def colours_of(classes: np.ndarray, side: int) -> Image.Image:
    """A map of class numbers `[height, width]` as an image; 0 is dark.

    It is enlarged by a whole number, its longest side at most to `side` pixels.
    """
    import numpy as np
    from PIL import Image

    numbers, places = np.unique(classes, return_inverse=True)
    palette = np.array([_colour(int(number)) for number in numbers], np.uint8)
    larger = max(1, side // max(classes.shape))
    pixels = palette[places.reshape(classes.shape)].repeat(larger, 0).repeat(larger, 1)
    return Image.fromarray(pixels)


def names_in(classes: np.ndarray, name: Callable[[int], str]) -> Iterator[DrawnBox]:
    """The classes with most pixels of a map `[height, width]`, each marked where much of it lies."""
    import numpy as np

    numbers, counts = np.unique(classes, return_counts=True)
    for index in np.argsort(-counts, kind="stable")[:_MOST_NAMED]:
        if counts[index] >= _LEAST_NAMED * classes.size:
            number = int(numbers[index])
            rows, columns = np.nonzero(classes == number)
            middle = (rows - np.median(rows)) ** 2 + (columns - np.median(columns)) ** 2
            nearest = int(middle.argmin())
            x, y = float(columns[nearest]), float(rows[nearest])
            yield DrawnBox((x, y, x, y), name(number), _colour(number))


def _colour(number: int) -> tuple[int, int, int]:
    """The colour of a class; white can be read on it."""
    if number == 0:
        return (48, 48, 48)
    shares = colorsys.hsv_to_rgb(number * _GOLDEN % 1, 0.75, 0.7)
    red, green, blue = (round(255 * share) for share in shares)
    return red, green, blue
