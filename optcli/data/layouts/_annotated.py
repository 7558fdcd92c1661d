"""Images with objects in them, whatever the layout: their items, their targets, and whether both agree.

What disagrees is seen in the headers: sizes, the EXIF orientation, and boxes outside of the image.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from optcli.data.collection import RawSample, RawSamples
from optcli.data.image_files import FORMATS, open_image
from optcli.errors import counted, excerpt, plural
from optcli.files import regular_files
from optcli.files.digest import of_file

_ORIENTATION = 0x0112
_QUARTER_TURNS = (5, 6, 7, 8)
_BEYOND = 1.0  # pixels: annotations are rounded
_THREADS = 8


@dataclass(frozen=True)
class Annotated(ABC):
    """One image: its id, its file and its number among the images of the source."""

    id: str
    path: Path
    number: int | str

    @abstractmethod
    def objects(self) -> Sequence[Mapping[str, Any]]:
        """What is marked in it, each with keys as in COCO's annotations.

        `bbox` is left, top, width and height in pixels of the original image, `category_id` a number;
        `area`, `iscrowd`, `segmentation`, `keypoints` and `corners` (x and y of four) as far as known.
        Raises `InputError`.
        """


class AnnotatedItems(RawSamples):
    """Annotated images, opened one at a time.

    `labels` has the label of each category id. `parts` are those that the data have beside boxes,
    `segmentation`, `keypoints` or `corners`: every target has them. An object has `keypoints` many.
    """

    parallel: ClassVar[bool] = True

    def __init__(
        self,
        name: str,
        images: Sequence[Annotated],
        labels: Mapping[int, int],
        parts: Sequence[str] = (),
        keypoints: int = 0,
    ) -> None:
        self._name, self._images, self._labels = name, images, labels
        self._parts, self._keypoints = parts, keypoints

    def __len__(self) -> int:
        return len(self._images)

    def read(self, index: int) -> RawSample:
        image = self._images[index]
        raw = {self._name: open_image(str(image.path))}
        return RawSample(
            image.id, str(image.path), raw, self._target(image), {"image_id": image.number}
        )

    def targets(self) -> Iterator[tuple[str, Any]]:
        return ((each.id, self._target(each)) for each in self._images)

    def identity(self, index: int) -> tuple[str, str]:
        image = self._images[index]
        return image.id, of_file(image.path)

    def _target(self, image: Annotated) -> dict[str, Any]:
        return target_of(image.objects(), self._labels, self._parts, self._keypoints)


def target_of(
    objects: Sequence[Mapping[str, Any]],
    labels: Mapping[int, int],
    parts: Sequence[str] = (),
    keypoints: int = 0,
) -> dict[str, Any]:
    """The target of an image with n objects, as `AnnotatedItems` gives it.

    `boxes` [n, 4] are left, top, right, bottom in pixels of the original image, `labels` [n] count from
    0, `category_ids` [n] are the source's own numbers, `areas` [n] in pixels, `crowd` [n] says what is
    ignored. Of `parts`: `segmentation` is a list of n, each COCO's polygons or RLE, None for an object
    without; `keypoints` [n, k, 3] are x, y and visibility, 0 for an object without; `corners` [n, 4, 2]
    are those of rotated boxes.
    """
    import numpy as np

    corners = np.array([each["bbox"] for each in objects], np.float64).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    ids = [each["category_id"] for each in objects]
    areas = [
        each["bbox"][2] * each["bbox"][3] if each.get("area") is None else each["area"]
        for each in objects
    ]
    target: dict[str, Any] = {
        "boxes": corners,
        "labels": np.array([labels[number] for number in ids], np.int64),
        "category_ids": np.array(ids, np.int64),
        "areas": np.array(areas, np.float64),
        "crowd": np.array([bool(each.get("iscrowd")) for each in objects], bool),
    }
    if "segmentation" in parts:
        target["segmentation"] = [each.get("segmentation") or None for each in objects]
    if "keypoints" in parts:
        none = [0.0] * 3 * keypoints
        points = [each.get("keypoints") or none for each in objects]
        target["keypoints"] = np.array(points, np.float64).reshape(-1, keypoints, 3)
    if "corners" in parts:
        points = [each["corners"] for each in objects]
        target["corners"] = np.array(points, np.float64).reshape(-1, 4, 2)
    return target


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
