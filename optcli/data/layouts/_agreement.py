"""Whether images and their annotations agree: sizes, EXIF orientation, boxes outside; from headers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli.data.image_files import FORMATS
from optcli.errors import counted, excerpt, plural
from optcli.files import regular_files

_ORIENTATION = 0x0112
_QUARTER_TURNS = (5, 6, 7, 8)
_BEYOND = 1.0  # pixels: annotations are rounded
_THREADS = 8


@dataclass(frozen=True)
class AnnotatedImage:
    """An image's file, width and height as annotated, and its boxes as left, top, width, height."""

    name: str
    path: Path
    size: tuple[int, int] | None
    boxes: Sequence[Sequence[float]] = ()


def disagreements(images: Iterable[AnnotatedImage], *, orient: bool) -> list[str]:
    """What is wrong, in sentences with counts; images that cannot be read are left to who reads them.

    `orient`: the images are turned as their EXIF orientation says.
    """
    images = list(images)
    with ThreadPoolExecutor(_THREADS) as pool:
        headers = list(pool.map(_header, images))
    turned: list[str] = []
    untold: list[str] = []
    resized: list[str] = []
    outside: list[tuple[str, int]] = []
    for image, header in zip(images, headers, strict=True):
        if header is None:
            continue
        stored, orientation = header
        quarter = orientation in _QUARTER_TURNS
        size = stored[::-1] if orient and quarter else stored
        if image.size is not None and image.size != size:
            turns = quarter and image.size == size[::-1]
            (turned if turns else resized).append(_sizes(image, size))
            continue
        is_known = quarter and image.size is not None and size[0] != size[1]
        if orientation != 1 and not orient and not is_known:
            untold.append(excerpt(image.name))
        if beyond := sum(_is_outside(box, size) for box in image.boxes):
            outside.append((excerpt(image.name), beyond))
    of = f"of {counted(len(images), 'image')}"
    return list(_sentences(turned, untold, resized, outside, of, orient=orient))


def _sentences(
    turned: list[str],
    untold: list[str],
    resized: list[str],
    outside: list[tuple[str, int]],
    of: str,
    *,
    orient: bool,
) -> Iterator[str]:
    """What was counted; each list has what is said of the image for each that is counted."""
    elsewhere = "boxes lie elsewhere"
    if turned and orient:
        yield (
            f"{len(turned)} {of} {plural(len(turned), 'is', 'are')} annotated as stored, and `orient`"
            f" turns by the EXIF orientation: {turned[0]}; {elsewhere}: take `orient: true` out of"
            " `prepare`"
        )
    elif turned:
        yield (
            f"{len(turned)} {of} {plural(len(turned), 'is', 'are')} annotated as turned by the EXIF"
            f" orientation, and read as stored: {turned[0]}; {elsewhere}: mend it with prepare:"
            " {orient: true}"
        )
    if untold:
        yield (
            f"{len(untold)} {of} {plural(len(untold), 'has', 'have')} an EXIF orientation, the first is"
            f" {untold[0]}, and sizes do not tell whether that was annotated as turned: prepare:"
            " {orient: true} turns it"
        )
    if resized:
        yield (
            f"{len(resized)} {of} {plural(len(resized), 'has', 'have')} another size than the"
            f" annotations say: {resized[0]}; {elsewhere}: take the images that were annotated"
        )
    if outside:
        boxes = sum(count for _, count in outside)
        yield (
            f"{counted(boxes, 'box reaches beyond its', 'boxes reach beyond their')} image, in"
            f" {len(outside)} {of}, the first in {outside[0][0]}:"
            f" {plural(boxes, 'it counts as it stands', 'they count as they stand')}"
        )


def _header(image: AnnotatedImage) -> tuple[tuple[int, int], int] | None:
    """Width and height as stored, and the EXIF orientation (1: as it is); None for what is no image."""
    from PIL import Image

    try:
        with regular_files.opened(image.path) as stream, Image.open(stream, formats=FORMATS) as opened:
            orientation: Any = opened.getexif().get(_ORIENTATION)
            return opened.size, orientation if orientation in range(1, 9) else 1
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None


def _is_outside(box: Sequence[float], size: tuple[int, int]) -> bool:
    left, top, width, height = box
    beyond = max(left + width - size[0], top + height - size[1], -left, -top)
    return beyond > _BEYOND


def _sizes(image: AnnotatedImage, size: tuple[int, int]) -> str:
    width, height = image.size or size
    first = f"the first, {excerpt(image.name)}, has {size[0]} x {size[1]} pixels"
    return f"{first}, and {width} x {height} in the annotations"
