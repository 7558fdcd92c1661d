"""Labels in a table: which column holds them, and which number each is; boxes in a cell as well."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optcli.errors import InputError, excerpt

LABELS = (
    *("label", "labels", "class", "class_name", "category", "target", "fine_label", "class_id"),
    *("label_id", "class_index", "category_id", "wnid", "synset", "predictionstring", "y"),
)
OBJECTS = ("objects", "annotations")
_BOXES = ("bbox", "bboxes", "boxes")
_CATEGORIES = ("categories", "category", "category_id", "labels", "label", "classes", "class")
_SYNSET = re.compile(r"n\d{8}(?=\s)")  # ImageNet's own table has boxes behind it
_NUMBER = re.compile(r"-?\d{1,17}(\.\d{1,17})?", re.ASCII)
_HINT = "objects: {bbox: [[left, top, width, height]], categories: [0]}"


@dataclass(frozen=True)
class Labelling:
    """The number of each label, and the names of the classes where labels are no numbers."""

    numbers: Mapping[Any, int]
    names: tuple[str, ...] | None

    @property
    def count(self) -> int:
        """How many classes there are, as far as the labels tell."""
        return len(self.names) if self.names else 1 + max(self.numbers.values(), default=-1)


def column_of(columns: Sequence[str], wanted: str | None, place: str) -> str | None:
    """The column with the labels or objects: `wanted`, or the first that is called so; else None.

    Raises `InputError` where there is no column `wanted`.
    """
    if wanted is not None:
        if wanted in columns:
            return wanted
        names = excerpt(", ".join(columns), 200)
        hint = "target: the name of a column"
        raise InputError(f"there is no column {wanted!r}, but {names}", place=place, hint=hint)
    lower = {name.lower(): name for name in reversed(columns)}
    return next((lower[name] for name in (*OBJECTS, *LABELS) if name in lower), None)


def labelling(
    labels: Iterable[Any], first: int | None, place: str, names: Sequence[str] | None = None
) -> Labelling:
    """The numbers of all labels of a source: names are sorted, numbers count from `first`.

    `names` are those that the source itself has for its numbers. Raises `InputError` where it is not
    known from where they count, and for a label that is neither.
    """
    distinct = set()
    for label in labels:
        if not isinstance(label, int | str) or isinstance(label, bool) or label == "":
            message = f"found the label {excerpt(repr(label))}, wanted a number or a name"
            raise InputError(message, place=place, hint="target: names the column of the labels")
        distinct.add(label)
    if any(isinstance(label, str) for label in distinct):
        order = sorted(map(str, distinct))
        numbers_of = {label: order.index(str(label)) for label in distinct}
        return Labelling(numbers_of, tuple(order))
    numbers = sorted(label for label in distinct if isinstance(label, int))
    least, most = (numbers[0], numbers[-1]) if numbers else (0, 0)
    if names is not None:
        first = 0
    elif first is None and least != 0:
        raise InputError(
            f"the labels are {least} to {most}: it is not known whether classes count from 0 or 1",
            place=place,
            hint="first_label: 1, or 0 where class 0 has no image here",
        )
    start = first or 0
    if least < start or (names is not None and most >= len(names)):
        wanted = f"at least {start}" if names is None else f"0 to {len(names) - 1}"
        message = f"found the label {least if least < start else most}, wanted {wanted}"
        raise InputError(message, place=place, hint="first_label: the number of the first class")
    numbers_of = {label: label - start for label in numbers}
    return Labelling(numbers_of, tuple(names) if names is not None else None)


def label_of(value: Any) -> Any:
    """A label as a number where it is written as one, and as a name elsewhere."""
    if isinstance(value, str):
        text = value.strip()
        if match := _SYNSET.match(text):
            return match[0]
        if not _NUMBER.fullmatch(text):
            return text
        value = float(text) if "." in text else int(text)
    return int(value) if isinstance(value, float) and value.is_integer() else value


def objects_of(value: Any, place: str) -> list[dict[str, Any]]:
    """The objects of one image, with the keys of COCO's annotations; `category_id` is the label.

    A mapping of lists or a list of mappings, as JSON text as well. Raises `InputError`.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise InputError("the objects are no JSON", place=place, hint=_HINT) from error
    if isinstance(value, Mapping):
        columns = {key: each for key, each in value.items() if isinstance(each, list)}
        if len({len(each) for each in columns.values()}) > 1:
            raise InputError("the objects have lists of several lengths", place=place, hint=_HINT)
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    else:
        rows = [dict(each) if isinstance(each, Mapping) else {} for each in value or ()]
    return [_object(row, place) for row in rows]


def _object(row: Mapping[str, Any], place: str) -> dict[str, Any]:
    box = next((row[key] for key in _BOXES if key in row), None)
    label = next((row[key] for key in _CATEGORIES if key in row), None)
    sound = isinstance(box, list | tuple) and len(box) == 4 and all(map(_is_number, box))
    if not sound or box is None or box[2] < 0 or box[3] < 0 or label is None:
        message = f"found an object {excerpt(str(dict(row)))}, wanted a bbox and a category"
        raise InputError(message, place=place, hint=_HINT)
    crowd = bool(row.get("iscrowd") or row.get("is_crowd"))
    more = {"area": row["area"]} if _is_number(row.get("area")) else {}
    return {"bbox": list(box), "category_id": label_of(label), "iscrowd": crowd, **more}


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
