"""Images with boxes in COCO's format: `coco:PATH`, a folder with `instances.json`, or that file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from optcli.data.collection import Collection, Finding, Item, Items
from optcli.data.imagefolder import open_image
from optcli.data.selection import choose, split_digest
from optcli.digest import FileDigests
from optcli.errors import InputError
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
    in pixels of the original image; labels count the sorted category ids from 0. `meta` has `image_id`
    beside size, scale and padding of the preparation, by which boxes are brought back. `root` names
    the folder of the images where it is not found beside the annotations.
    """

    def problems(self) -> list[Finding]:
        if not self.path.exists():
            return [("source", f"no such file or folder: {self.settings.place}", f"wanted {_WANTED}")]
        if not self._annotations.is_file():
            field = "split" if self.part else "source"
            return [(field, f"there is no {self._annotations.name} in the data", f"wanted {_WANTED}")]
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
        names = [spec.name for spec in inputs]
        name = self.settings.input or names[0]
        if names != [name]:
            raise InputError(
                f"a set of images feeds one input, the model has {', '.join(names)}",
                place=self.settings.source,
                hint="use python:FILE.py:CALLABLE, which can feed several",
            )
        return CocoItems(name, self.chosen, self._labels)

    @property
    def _annotations(self) -> Path:
        """The file of annotations; the one that is wanted where there is none."""
        if self.path.is_file():
            return self.path
        if self.part is None:
            return self.path / "instances.json"
        below = self.path / "annotations" / f"instances_{self.part}.json"
        beside = self.path / f"instances_{self.part}.json"
        return beside if beside.is_file() else below

    @property
    def _images(self) -> Path | None:
        if self.settings.root is not None:
            return self.folder / Path(self.settings.root).expanduser()
        base = self._annotations.parent
        base = base.parent if base.name == "annotations" else base
        part = self.part or self._annotations.stem.removeprefix("instances").strip("_")
        places = [base / "images" / part, base / part, base / "images"]
        return next((place for place in places if place != base and place.is_dir()), None)

    @cached_property
    def _read(self) -> dict[str, Any]:
        try:
            record = json.loads(self._annotations.read_bytes())
            for image in record["images"]:
                _ = image["id"], image["file_name"]
            for box in record["annotations"]:
                _ = box["image_id"], box["category_id"], [float(value) for value in box["bbox"]]
            _ = [category["id"] for category in record["categories"]]
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"these are no annotations in COCO's format: {type(error).__name__} {error}",
                place=str(self._annotations),
                hint="wanted images, annotations with bbox, and categories",
            ) from error
        return dict(record)

    @property
    def _labels(self) -> dict[int, int]:
        """Category id to label."""
        known = sorted({category["id"] for category in self._read["categories"]})
        return {category: label for label, category in enumerate(known)}

    @cached_property
    def chosen(self) -> list[Annotated]:
        """The chosen images, sorted by file name. Raises `InputError`."""
        for _, message, hint in self.problems():
            raise InputError(message, place=self.settings.source, hint=hint)
        images = self._images
        boxes: dict[Any, list[dict[str, Any]]] = {}
        assert images is not None
        for box in self._read["annotations"]:
            boxes.setdefault(box["image_id"], []).append(box)
        everything = [
            Annotated(
                each["file_name"],
                images / each["file_name"],
                each["id"],
                tuple(boxes.get(each["id"], ())),
            )
            for each in sorted(self._read["images"], key=lambda image: str(image["file_name"]))
        ]
        positions = choose(self.settings, self.folder, [each.name for each in everything])
        found = [everything[position] for position in positions]
        for each in found:
            if not each.path.is_file():
                raise InputError(
                    f"the annotations name an image that is not there: {each.name}",
                    place=str(images),
                    hint="copy the images, or name their folder with root:",
                )
        return found


class CocoItems(Items):
    """The chosen images, opened one at a time."""

    def __init__(self, name: str, chosen: Sequence[Annotated], labels: dict[int, int]) -> None:
        self._name, self._chosen, self._labels = name, chosen, labels

    def __len__(self) -> int:
        return len(self._chosen)

    def read(self, index: int) -> Item:
        each = self._chosen[index]
        raw = {self._name: open_image(str(each.path))}
        return Item(each.name, str(each.path), raw, self._target(each), {"image_id": each.number})

    def targets(self) -> Iterator[tuple[str, Any]]:
        return ((each.name, self._target(each)) for each in self._chosen)

    def identity(self, index: int) -> tuple[str, str]:
        each = self._chosen[index]
        with each.path.open("rb") as stream:
            return each.name, hashlib.file_digest(stream, "sha256").hexdigest()

    def _target(self, each: Annotated) -> dict[str, Any]:
        import numpy as np

        corners = np.array([box["bbox"] for box in each.boxes], np.float64).reshape(-1, 4)
        corners[:, 2:] += corners[:, :2]
        ids = [int(box["category_id"]) for box in each.boxes]
        unknown = [number for number in ids if number not in self._labels]
        if unknown:
            raise InputError(
                f"a box has the category {unknown[0]}, which the annotations do not list",
                place=str(each.path),
                hint="add it to categories",
            )
        areas = [float(box.get("area", box["bbox"][2] * box["bbox"][3])) for box in each.boxes]
        return {
            "boxes": corners,
            "labels": np.array([self._labels[number] for number in ids], np.int64),
            "category_ids": np.array(ids, np.int64),
            "areas": np.array(areas, np.float32),
            "crowd": np.array([bool(box.get("iscrowd", 0)) for box in each.boxes], bool),
        }
