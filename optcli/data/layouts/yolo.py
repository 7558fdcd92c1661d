"""Images with labels of YOLO: `yolo:PATH`, a `data.yaml` or the folder with it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from optcli.data.collection import Collection, Finding, RawSamples
from optcli.data.image_files import id_of, images_below, passed_over, size_of
from optcli.data.layouts._annotated import Annotated, AnnotatedImage, AnnotatedItems, disagreements
from optcli.data.layouts._yolo_description import (
    OTHER_NAMES,
    YoloDescription,
    about,
    described_below,
    describes,
    place,
)
from optcli.data.selection import choose, split_digest
from optcli.data.text_files import text_of
from optcli.errors import InputError, counted, did_you_mean, excerpt, plural
from optcli.files import regular_files
from optcli.files.digest import FileDigests, of_value
from optcli.settings import TensorSpec

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


_IMAGES, _LABELS = f"{os.sep}images{os.sep}", f"{os.sep}labels{os.sep}"


@dataclass(frozen=True)
class Labelled(Annotated):
    """One image with the lines of its label file, and how many stand there twice.

    `orient`: the image is read as its EXIF orientation says.
    """

    lines: tuple[LabelLine, ...]
    repeated: int
    orient: bool

    def objects(self) -> Sequence[Mapping[str, Any]]:
        if not self.lines:
            return ()
        width, height = size_of(self.path, oriented=self.orient)
        return [line.object(width, height) for line in self.lines]


class Yolo(Collection):
    """Images and label files, as Ultralytics reads them. `split:` names `train`, `val` or `test`.

    A part is a folder, a list of folders, or a text file that lists images. Its paths are relative to
    `path`, and that to the file, to the folder of data sets in Ultralytics' settings, or to `root`. The
    label file of `images/a.jpg` is `labels/a.txt`. A line is a class and a box, a polygon, a box with
    keypoints (`kpt_shape`) or four corners, in fractions of the image. An image without a label file
    has no objects. A line that stands twice counts once. A folder without a YAML file is read by its
    `classes.txt`, or as Darknet has it: `obj.names` and `obj_train_data`. Targets are those of `coco:`;
    with `segmentation`, `keypoints` or `corners` of the objects as far as the lines have them.
    """

    boxed = True
    numbered = True

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return describes(path) or (regular_files.is_folder(path) and described_below(path))

    def parts(self) -> Sequence[str]:
        distinct = {places: part for part, places in self._about.parts.items()}
        return tuple(distinct.values())  # of a `val` that is `train` there is one

    def class_count(self) -> int | None:
        return self._about.count or 1 + max(_classes(self.chosen), default=-1)

    def count(self) -> int:
        return len(self._everything)

    def problems(self) -> list[Finding]:
        try:
            about = self._about
            if self.part is None and len(about.parts) > 1:
                hint = f"split: {'val' if 'val' in about.parts else next(iter(about.parts))}"
                named = ", ".join(about.parts)
                return [("split", f"{about.file.name} has the parts {named}, and none is named", hint)]
            if self._part not in about.parts:
                message = f"{about.file.name} has no {excerpt(str(self.part))!r}"
                return [("split", message, did_you_mean(str(self.part), [*about.parts]))]
            if not self._places:
                message = f"{self._part}: there is no {excerpt(about.parts[self._part][0])}"
                hint = "correct `path` in the file, or name its folder with root:"
                return [("split" if self.part else "source", message, hint)]
        except InputError as error:
            return [("source", f"{error.place}: {error.message}", error.hint)]
        return []

    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        marks = []
        for image in self.chosen:
            labels = _labels_of(image.path)
            marks.append([image.id, digests.of(image.path), labels and digests.of(labels)])
        for file in (self._about.file, *self._places):  # they are read, and what they say is paths
            if file.is_file():
                digests.of(file)
        return {
            "count": len(marks),
            "files": of_value(marks),
            "names": self._about.names,
            "keypoints": self._about.keypoints,
            "split": split_digest(self.settings, self.folder, digests.of),
        }

    def listed(self) -> Iterator[Path]:
        for image in self._everything:
            yield image
            if labels := _labels_of(image):
                yield labels

    def open(self, inputs: Sequence[TensorSpec]) -> RawSamples:
        hint = "use python:FILE.py:CALLABLE, which can feed several"
        name = self.only_input(inputs, "a set of images", hint)
        numbers = range(self.class_count() or 0)
        parts = parts_of(line for image in self.chosen for line in image.lines)
        labels = {number: number for number in numbers}
        count, _ = self._about.keypoints or (0, 0)
        return AnnotatedItems(name, self.chosen, labels, parts, count)

    def class_names(self) -> tuple[str, ...] | None:
        self.require()
        return self._about.names

    def empty_classes(self) -> tuple[str, ...]:
        used = set(_classes(self.chosen))
        names = enumerate(self._about.names or ())
        return tuple(name for number, name in names if number not in used)

    def remarks(self, orient: bool) -> list[str]:
        repeated = sum(image.repeated for image in self.chosen)
        lines = counted(repeated, "line stands", "lines stand")
        once = plural(repeated, "counts once", "count once")
        twice = [f"{lines} twice in a label file, and {once}"] if repeated else []
        others = passed_over(*(place for place in self._places if place.is_dir()))
        # Fractions are those of the image as Ultralytics reads it: turned by its EXIF orientation.
        sizes = ((image, size_of(image.path, oriented=True)) for image in self.chosen)
        images = (AnnotatedImage(image.id, image.path, size) for image, size in sizes)
        return [*twice, *others, *disagreements(images, orient=orient)]

    @cached_property
    def _about(self) -> YoloDescription:
        return about(self.path, self.folder)

    @property
    def _part(self) -> str:
        """The part that is read."""
        part = self.part or next(iter(self._about.parts))
        return OTHER_NAMES.get(part, part)

    @cached_property
    def _places(self) -> list[Path]:
        """The folders and lists of the part; none where one of them is not there."""
        root = self.settings.root
        roots = [self.folder / regular_files.expanded(root)] if root else self._about.roots
        for base in roots:
            places = [place(base, text) for text in self._about.parts[self._part]]
            if all(each is not None for each in places):
                return [each for each in places if each is not None]
        return []

    @cached_property
    def _everything(self) -> list[Path]:
        """All images of the part, in the order of their paths. Raises `InputError`."""
        self.require()
        images: dict[str, None] = {}
        for each in self._places:
            paths = images_below(each) if each.is_dir() else _listed(each, self._about.roots)
            images.update(dict.fromkeys(sorted(paths)))
        if not images:
            raise self.wrong(f"there is no image in {self._part}", "look into its folders")
        return [Path(image) for image in images]

    @cached_property
    def chosen(self) -> list[Labelled]:
        """The chosen images with their lines. Raises `InputError`."""
        images = self._everything
        root = os.path.commonpath([str(path.parent) for path in images]) if images else ""
        ids = [id_of(os.path.relpath(path, root)) for path in images]
        positions = choose(self.settings, self.folder, ids)
        if not any(map(_labels_of, images)):
            raise self.wrong(
                f"none of {len(images)} images of {self._part} has a label file: {images[0]}, ...",
                "the labels of images/a.jpg lie in labels/a.txt",
            )
        orient = self.settings.prepare is not None and self.settings.prepare.orient
        return [Labelled(ids[n], images[n], n, *self._lines(images[n]), orient) for n in positions]

    def _lines(self, image: Path) -> tuple[tuple[LabelLine, ...], int]:
        file = _labels_of(image)
        return read(file, self._about.keypoints, self._about.count) if file else ((), 0)


def _classes(images: Iterable[Labelled]) -> Iterator[int]:
    return (line.category for image in images for line in image.lines)


def _labels_of(image: Path) -> Path | None:
    """The label file of an image: with `labels` in place of the last `images`, else beside it."""
    apart = Path(_LABELS.join(str(image).rsplit(_IMAGES, 1)))
    places = (each.with_suffix(".txt") for each in (apart, image))
    return next((each for each in places if regular_files.is_file(each)), None)


def _listed(file: Path, roots: Sequence[Path]) -> Iterator[str]:
    """The images that a text file lists, relative to it or to the data's folder."""
    hint = "one path a line, relative to this file"
    text = text_of(file, hint, regular_files.MOST_JSON_BYTES)
    for number, line in enumerate(text.splitlines(), 1):
        name = line.strip()
        if not name or name.startswith("#"):
            continue
        places = (place(base, name) for base in (file.parent, *roots))
        image = next((each for each in places if each and regular_files.is_file(each)), None)
        if image is None:
            message = f"there is no image {excerpt(name)}"
            raise InputError(message, place=f"{file}, line {number}", hint=hint)
        yield str(image)


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
