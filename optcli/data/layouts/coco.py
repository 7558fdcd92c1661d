"""Images with boxes in COCO's format: `coco:PATH`, a folder with `instances.json`, or that file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from optcli import regular_files
from optcli.data.annotations import Annotations, read
from optcli.data.collection import Collection, Finding, Item, Items
from optcli.data.image_files import open_image
from optcli.data.selection import choose, split_digest
from optcli.digest import FileDigests, of_file
from optcli.errors import InputError, excerpt
from optcli.settings import TensorSpec

_WANTED = "instances.json beside a folder images, or annotations/instances_NAME.json with split: NAME"


@dataclass(frozen=True)
class Annotated:
    """One image: its file, its number in the annotations, and its boxes as they stand there."""

    name: str
    path: Path
    number: int
    boxes: tuple[dict[str, Any], ...]


class Coco(Collection):
    """Images and boxes, in the order of file names, which are the ids.

    A target is `{boxes, labels, category_ids, areas, crowd}`: boxes [n, 4] as left, top, right, bottom
    in pixels of the original image; labels count the sorted category ids from 0. Where the annotations
    have them, `segmentation` is a list of polygons or run-length encodings, None for an object without,
    and `keypoints` are [n, k, 3] with visibilities of 0 for an object without. `meta` has `image_id`
    beside size, scale and padding of the preparation, by which boxes are brought back. `root` names
    the folder of the images where it is not found beside the annotations.
    """

    def problems(self) -> list[Finding]:
        if regular_files.is_folder(self.path):
            if not regular_files.is_file(self._annotations):
                field = "split" if self.part else "source"
                name = excerpt(self._annotations.name)
                return [(field, f"there is no {name} in the data", f"wanted {_WANTED}")]
        elif wrong := regular_files.problem(self.path, excerpt(self.settings.place)):
            return [("source", wrong, f"wanted {_WANTED}")]
        if self._images is None:
            hint = "root: FOLDER names the folder of the images"
            return [("source", f"no folder of images beside {self._annotations.name}", hint)]
        return []

    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        marks = {each.name: digests.of(each.path) for each in self.chosen}
        return {
            "annotations": digests.of(self._annotations),
            "files": marks,
            "split": split_digest(self.settings, self.folder, digests.of),
        }

    def open(self, inputs: Sequence[TensorSpec]) -> Items:
        hint = "use python:FILE.py:CALLABLE, which can feed several"
        name = self.only_input(inputs, "a set of images", hint)
        return CocoItems(name, self.chosen, self._labels, self._read)

    def class_names(self) -> tuple[str, ...] | None:
        self.require()
        names, categories = self._read.names, sorted(self._read.categories)
        return tuple(names[each] for each in categories) if names.keys() >= {*categories} else None

    @property
    def _annotations(self) -> Path:
        """The file of annotations; the one that is wanted where there is none."""
        if regular_files.is_file(self.path):
            return self.path
        if self.part is None:
            return self.path / "instances.json"
        below = self.path / "annotations" / f"instances_{self.part}.json"
        beside = self.path / f"instances_{self.part}.json"
        return beside if regular_files.is_file(beside) else below

    @property
    def _images(self) -> Path | None:
        if self.settings.root is not None:
            return self.folder / regular_files.expanded(self.settings.root)
        base = self._annotations.parent
        base = base.parent if base.name == "annotations" else base
        part = self.part or self._annotations.stem.removeprefix("instances").strip("_")
        places = [base / "images" / part, base / part, base / "images"]
        return next(
            (place for place in places if place != base and regular_files.is_folder(place)), None
        )

    @cached_property
    def _read(self) -> Annotations:
        return read(self._annotations)

    @property
    def _labels(self) -> dict[int, int]:
        """Category id to label."""
        return {category: label for label, category in enumerate(sorted(self._read.categories))}

    @cached_property
    def chosen(self) -> list[Annotated]:
        """The chosen images, sorted by file name. Raises `InputError`."""
        self.require()
        root = self._images
        assert root is not None
        everything = [
            Annotated(name, root / name, number, self._read.boxes[number])
            for number, name in sorted(self._read.images, key=lambda image: image[1])
        ]
        positions = choose(self.settings, self.folder, [each.name for each in everything])
        images = [everything[position] for position in positions]
        for image in images:
            if wrong := regular_files.problem(image.path, excerpt(image.name)):
                raise InputError(
                    f"the annotations name an image that cannot be read: {wrong}",
                    place=str(root),
                    hint="copy the images, or name their folder with root:",
                )
        return images


class CocoItems(Items):
    """The chosen images, opened one at a time."""

    def __init__(
        self, name: str, chosen: Sequence[Annotated], labels: dict[int, int], read: Annotations
    ) -> None:
        self._name, self._chosen, self._labels = name, chosen, labels
        self._segmented, self._keypoints = read.segmented, read.keypoints

    def __len__(self) -> int:
        return len(self._chosen)

    def read(self, index: int) -> Item:
        image = self._chosen[index]
        raw = {self._name: open_image(str(image.path))}
        return Item(image.name, str(image.path), raw, self._target(image), {"image_id": image.number})

    def targets(self) -> Iterator[tuple[str, Any]]:
        return ((each.name, self._target(each)) for each in self._chosen)

    def identity(self, index: int) -> tuple[str, str]:
        image = self._chosen[index]
        return image.name, of_file(image.path)

    def _target(self, image: Annotated) -> dict[str, Any]:
        import numpy as np

        corners = np.array([box["bbox"] for box in image.boxes], np.float64).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        ids = [box["category_id"] for box in image.boxes]
        areas = [float(box.get("area", box["bbox"][2] * box["bbox"][3])) for box in image.boxes]
        target: dict[str, Any] = {
            "boxes": corners,
            "labels": np.array([self._labels[number] for number in ids], np.int64),
            "category_ids": np.array(ids, np.int64),
            "areas": np.array(areas, np.float64),
            "crowd": np.array([bool(box.get("iscrowd", 0)) for box in image.boxes], bool),
        }
        if self._segmented:
            target["segmentation"] = [box.get("segmentation") or None for box in image.boxes]
        if self._keypoints:
            none = [0] * 3 * self._keypoints
            points = [box.get("keypoints") or none for box in image.boxes]
            target["keypoints"] = np.array(points, np.float64).reshape(-1, self._keypoints, 3)
        return target
