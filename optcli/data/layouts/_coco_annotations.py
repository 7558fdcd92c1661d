"""Annotations in COCO's format. All are checked: a wrong one would change a metric without an error."""

from __future__ import annotations

import math
import posixpath
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, TypeAlias

from optcli.errors import InputError, excerpt
from optcli.files import regular_files

_HINT = "wanted images, annotations with bbox, and categories"
_LONGEST_ID = 200
ImageId: TypeAlias = int | str


@dataclass(frozen=True)
class Annotations:
    """What a file says: `images` as (id, file name), boxes by image id, and the category ids.

    `names` has the names of the categories by id, as far as the file has them, and `sizes` the width
    and height of images by theirs. Ids that are text are numbers where they are written as such;
    categories with other texts count from 1, in the order of these. `segmented`: some objects have a
    mask. `keypoints` is how many an object has; 0 where none has any.
    """

    images: tuple[tuple[ImageId, str], ...]
    boxes: dict[ImageId, tuple[dict[str, Any], ...]]
    categories: tuple[int, ...]
    names: dict[int, str] = field(default_factory=dict)
    segmented: bool = False
    keypoints: int = 0
    sizes: dict[ImageId, tuple[int, int]] = field(default_factory=dict)


def read(path: Path) -> Annotations:
    """The annotations of a file. Raises `InputError` with the first place that is wrong.

    Refused: ids that stand twice or are neither whole numbers nor text, boxes of unknown images or
    categories, boxes that are not four finite numbers of which width and height are not negative, an
    `iscrowd` other than 0, 1 and null, keypoints that are not as many triples of numbers in all
    objects, and images that lie outside the folder of the images.
    """
    try:
        record = regular_files.json_of(path, regular_files.MOST_JSON_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"these are no annotations in COCO's format: {excerpt(reason, 200)}",
            place=str(path),
            hint=_HINT,
        ) from error
    return _Checked(path, record).annotations()


class _Checked:
    """The record of a file, its parts taken one at a time."""

    def __init__(self, path: Path, record: Any) -> None:
        self._path, self._record = path, record

    def annotations(self) -> Annotations:
        if not isinstance(self._record, dict):
            raise self._wrong("", f"found {_shown(self._record)}, wanted a mapping", _HINT)
        self._read_texts()
        images = self._images()
        categories = self._ids("categories")
        boxes: dict[ImageId, list[dict[str, Any]]] = {number: [] for number, _ in images}
        category_ids = set(categories)
        for place, box in self._listed("annotations"):
            self._box(place, box, boxes, category_ids)
            boxes[box["image_id"]].append(box)
        self._distinct("annotations", "id", optional=True)
        names = {
            category["id"]: category["name"]
            for _, category in self._listed("categories")
            if isinstance(category.get("name"), str)
        }
        by_image = {number: tuple(each) for number, each in boxes.items()}
        everything = [box for each in boxes.values() for box in each]
        segmented = any(box.get("segmentation") for box in everything)
        sizes = dict(self._sizes())
        return Annotations(images, by_image, categories, names, segmented, self._keypoints(), sizes)

    def _keypoints(self) -> int:
        """How many keypoints an object has; 0 where none has any."""
        known = 0
        for place, box in self._listed("annotations"):
            points = box.get("keypoints")
            if points in (None, []):
                continue
            known = known or (len(points) if isinstance(points, list) else 0)
            sound = isinstance(points, list) and len(points) == known and not known % 3
            if not sound or not all(map(_is_number, points)):
                triples = "triples of x, y and visibility"
                wanted = f"{known // 3} {triples}" if known >= 3 else triples
                message = f"found {_shown(points)}, wanted {wanted}"
                raise self._wrong(f"{place}.keypoints", message, "correct it, or remove the key")
        return known // 3

    def _read_texts(self) -> None:
        """Put numbers in the place of ids that are text."""
        for part, keys in (
            ("images", ("id",)),
            ("categories", ("id",)),
            ("annotations", ("id", "image_id", "category_id")),
        ):
            for _, item in self._listed(part):
                item.update({key: _number(item[key]) for key in keys if isinstance(item.get(key), str)})
        texts = sorted(c["id"] for _, c in self._listed("categories") if isinstance(c.get("id"), str))
        numbers = {text: number for number, text in enumerate(texts, 1)}
        for part, key in (("categories", "id"), ("annotations", "category_id")):
            for _, item in self._listed(part):
                if isinstance(item.get(key), str) and item[key] in numbers:
                    item[key] = numbers[item[key]]

    def _sizes(self) -> Iterator[tuple[ImageId, tuple[int, int]]]:
        for _, image in self._listed("images"):
            size = image.get("width"), image.get("height")
            if all(isinstance(each, int) and each > 0 for each in size):
                yield image["id"], size  # type: ignore[misc]

    def _listed(self, part: str) -> list[tuple[str, dict[str, Any]]]:
        items = self._record.get(part)
        if not isinstance(items, list):
            raise self._wrong(part, f"found {_shown(items)}, wanted a list", _HINT)
        for index, item in enumerate(items):
            if not isinstance(item, dict):
                raise self._wrong(f"{part}[{index}]", f"found {_shown(item)}, wanted a mapping", _HINT)
        return [(f"{part}[{index}]", item) for index, item in enumerate(items)]

    def _images(self) -> tuple[tuple[ImageId, str], ...]:
        numbers = self._ids("images")
        names = []
        for place, image in self._listed("images"):
            name = image.get("file_name")
            if name is None and isinstance(image.get("coco_url"), str):  # LVIS
                name = image["coco_url"].rpartition("/")[2]
            if not isinstance(name, str) or not name or "\0" in name:
                raise self._wrong(
                    f"{place}.file_name", f"found {_shown(name)}, wanted a file's name", _HINT
                )
            if _leads_outside(name):
                raise self._wrong(
                    f"{place}.file_name",
                    f"found {_shown(name)}, wanted a path inside the folder of the images",
                    "write it relative to that folder, without ..; root: names another folder",
                )
            names.append(name)
            image["file_name"] = name
        self._distinct("images", "file_name", same=posixpath.normpath)  # `b//a.png`
        return tuple(zip(numbers, names, strict=True))

    def _ids(self, part: str) -> tuple[Any, ...]:
        self._distinct(part, "id")
        return tuple(item["id"] for _, item in self._listed(part))

    def _distinct(
        self, part: str, key: str, *, optional: bool = False, same: Callable[[Any], Any] = lambda x: x
    ) -> None:
        """Refuse two values of a key that are the `same`."""
        seen: dict[Any, str] = {}
        for place, item in self._listed(part):
            if key not in item and optional:
                continue
            if key == "id":
                self._whole(place, item, key)
            first = seen.setdefault(same(item[key]), place)
            if first != place:
                raise self._wrong(
                    f"{place}.{key}",
                    f"found {_shown(item[key])}, which {first} has already",
                    "give each its own, or remove one of the two",
                )

    def _whole(self, place: str, item: dict[str, Any], key: str) -> None:
        value = item.get(key)
        if isinstance(value, str) and 0 < len(value) <= _LONGEST_ID:
            return
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**63:
            given = _shown(value) if key in item else "nothing"
            raise self._wrong(f"{place}.{key}", f"found {given}, wanted a whole number", _HINT)

    def _box(
        self, place: str, box: dict[str, Any], images: dict[ImageId, Any], categories: set[int]
    ) -> None:
        for key, ids, what in (
            ("image_id", images.keys(), "the id of one of the images"),
            ("category_id", categories, "the id of one of the categories"),
        ):
            self._whole(place, box, key)
            if box[key] not in ids:
                raise self._wrong(
                    f"{place}.{key}",
                    f"found {_shown(box[key])}, wanted {what}",
                    f"add it to {'images' if key == 'image_id' else 'categories'}, or remove the box",
                )
        corners = box.get("bbox")
        if not isinstance(corners, list) or len(corners) != 4 or not all(map(_is_number, corners)):
            raise self._wrong(
                f"{place}.bbox",
                f"found {_shown(corners)}, wanted four finite numbers",
                "write [left, top, width, height] in pixels",
            )
        if corners[2] < 0 or corners[3] < 0:
            raise self._wrong(
                f"{place}.bbox",
                f"found {_shown(corners)}, wanted a width and a height of at least 0",
                "write [left, top, width, height], not two corners",
            )
        self._optional(place, box, "area", lambda area: _is_number(area) and area >= 0, "a size")
        self._optional(place, box, "iscrowd", lambda flag: flag in (0, 1), "0 or 1")

    def _optional(
        self, place: str, box: dict[str, Any], key: str, sound: Callable[[Any], bool], wanted: str
    ) -> None:
        if box.get(key) is not None and not (isinstance(box[key], int | float) and sound(box[key])):
            message = f"found {_shown(box[key])}, wanted {wanted}"
            raise self._wrong(f"{place}.{key}", message, "correct it, or remove the key")

    def _wrong(self, place: str, message: str, hint: str) -> InputError:
        where = f"{self._path}, {place}" if place else str(self._path)
        return InputError(message, place=where, hint=hint)


def _number(text: str) -> int | str:
    """A number that is written as text; other text as it is."""
    digits = text.removeprefix("-")
    return int(text) if digits.isdecimal() and digits.isascii() and len(digits) < 19 else text


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1e30 and math.isfinite(value)


def _leads_outside(name: str) -> bool:
    """Whether a name leaves the folder that it is relative to, on any system."""
    posix, windows = PurePosixPath(name), PureWindowsPath(name)
    return posix.is_absolute() or bool(windows.anchor) or ".." in (*posix.parts, *windows.parts)


def _shown(value: Any) -> str:
    """A value as JSON would show it, cut where it is long."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}" if len(value) > 8 else excerpt(repr(value))
    return "nothing" if value is None else excerpt(repr(value))
