"""Label files of YOLO, one object a line. All lines are checked, as Ultralytics checks them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli.data.text_files import text_of
from optcli.errors import InputError, excerpt

# Ultralytics takes one percent beyond the image for rounding.
_LEAST, _MOST = -0.01, 1.01
_HINT = "wanted a class and x y width height, a polygon, or four corners, in fractions of the image"


@dataclass(frozen=True)
class LabelLine:
    """One object: its class, and what follows the class, in fractions of the image.

    `box` is x and y of the centre, width and height; else `points` are x and y of a polygon's. `marks`
    are x, y and visibility of keypoints.
    """

    category: int
    box: tuple[float, ...] = ()
    points: tuple[float, ...] = ()
    marks: tuple[float, ...] = ()

    def object(self, width: int, height: int) -> dict[str, Any]:
        """The object in pixels of an image, with the keys of COCO's annotations."""
        fields: dict[str, Any] = {"category_id": self.category}
        if self.box:
            x, y, wide, high = self.box
            fields["bbox"] = [
                (x - wide / 2) * width,
                (y - high / 2) * height,
                wide * width,
                high * height,
            ]
        else:
            xs = [x * width for x in self.points[::2]]
            ys = [y * height for y in self.points[1::2]]
            polygon = [value for point in zip(xs, ys, strict=True) for value in point]
            fields["bbox"] = [min(xs), min(ys), max(xs) - min(xs), max(ys) - min(ys)]
            fields |= {"area": _area(xs, ys), "segmentation": [polygon], "corners": polygon}
        if self.marks:
            scales = (width, height, 1)
            fields["keypoints"] = [value * scales[n % 3] for n, value in enumerate(self.marks)]
        return fields


def parts_of(lines: Iterable[LabelLine]) -> tuple[str, ...]:
    """What the objects have beside a box: nothing of it where some objects have a box alone."""
    every = list(lines)
    if not every:
        return ()
    parts = []
    if all(line.points for line in every):
        parts.append("segmentation")
        if all(len(line.points) == 8 for line in every):
            parts.append("corners")
    if all(line.marks for line in every):
        parts.append("keypoints")
    return tuple(parts)


def read(
    path: Path, keypoints: tuple[int, int] | None, classes: int | None
) -> tuple[tuple[LabelLine, ...], int]:
    """The objects of a label file, and how many lines stand there twice: these count once.

    `keypoints` is how many there are and how many numbers each has, 2 or 3. `classes` is how many there
    are, None: nobody says. Raises `InputError` with the first line that is wrong.
    """
    lines: list[LabelLine] = []
    for number, text in enumerate(text_of(path, _HINT).splitlines(), 1):
        if words := text.split():
            try:
                lines.append(_line(words, keypoints, classes))
            except ValueError as error:
                place = f"{path}, line {number}"
                raise InputError(excerpt(str(error), 300), place=place, hint=_HINT) from error
    distinct = tuple(dict.fromkeys(lines))
    return distinct, len(lines) - len(distinct)


def _line(words: Sequence[str], keypoints: tuple[int, int] | None, classes: int | None) -> LabelLine:
    """One line in its words. Raises ValueError with what is wrong."""
    category, *values = (_number(word) for word in words)
    if category < 0 or category != int(category):
        raise ValueError(f"found the class {words[0]}, wanted a whole number of at least 0")
    if classes is not None and category >= classes:
        raise ValueError(f"found the class {words[0]}, and the classes are 0 to {classes - 1}")
    number, count = int(category), len(values)
    if keypoints is not None:
        points, size = keypoints
        if count != 4 + points * size:
            raise ValueError(
                f"found {count} numbers behind the class, wanted {4 + points * size}: a box, and {size}"
                f" for each of {points} keypoints (kpt_shape)"
            )
        marks = [values[n : n + size] for n in range(4, count, size)]
        _fractions([*values[:4], *(value for mark in marks for value in mark[:2])])
        whole = [value for mark in marks for value in (*mark[:2], _visibility(mark))]
        return LabelLine(number, tuple(values[:4]), marks=tuple(whole))
    if count != 4 and (count < 6 or count % 2):
        more = ": a prediction with its score?" if count == 5 else ""
        raise ValueError(f"found {count} numbers behind the class{more}")
    _fractions(values)
    if count > 4:
        return LabelLine(number, points=tuple(values))
    if values[2] < 0 or values[3] < 0:
        raise ValueError(f"found a width and height of {values[2]:g} and {values[3]:g}")
    return LabelLine(number, tuple(values))


def _number(word: str) -> float:
    try:
        value = float(word)
    except ValueError:
        raise ValueError(f"found {excerpt(word, 40)!r}, wanted a number") from None
    if not math.isfinite(value):
        raise ValueError(f"found {word}, wanted a finite number")
    return value


def _fractions(values: Sequence[float]) -> None:
    wrong = next((value for value in values if not _LEAST <= value <= _MOST), None)
    if wrong is not None:
        raise ValueError(f"found {wrong:g}, wanted 0 to 1: pixels are divided by the image's size")


def _visibility(mark: Sequence[float]) -> float:
    """Of a keypoint without one: a point in the corner is one that is not there."""
    if len(mark) == 3:
        return mark[2]
    return 0.0 if mark[0] <= 0 and mark[1] <= 0 else 2.0


def _area(xs: Sequence[float], ys: Sequence[float]) -> float:
    """The area of a polygon (shoelace formula)."""
    following = zip([*xs[1:], xs[0]], [*ys[1:], ys[0]], strict=True)
    pairs = zip(zip(xs, ys, strict=True), following, strict=True)
    return abs(sum(x * next_y - next_x * y for (x, y), (next_x, next_y) in pairs)) / 2
