"""Images with objects in them, whatever the layout: their items, and what a target has."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from optcli.data.collection import Item, Items
from optcli.data.image_files import open_image
from optcli.files.digest import of_file


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


class AnnotatedItems(Items):
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

    def read(self, index: int) -> Item:
        image = self._images[index]
        raw = {self._name: open_image(str(image.path))}
        return Item(image.id, str(image.path), raw, self._target(image), {"image_id": image.number})

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
