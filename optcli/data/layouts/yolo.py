"""Images with labels of YOLO: `yolo:PATH`, a `data.yaml` or the folder with it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from optcli.data.collection import Collection, Finding, Items
from optcli.data.image_files import id_of, images_below, passed_over, size_of
from optcli.data.layouts import _yolo_labels as yolo_labels
from optcli.data.layouts._agreement import AnnotatedImage, disagreements
from optcli.data.layouts._annotated import Annotated, AnnotatedItems
from optcli.data.layouts._yolo_description import (
    OTHER_NAMES,
    YoloDescription,
    about,
    described_below,
    describes,
    place,
)
from optcli.data.layouts._yolo_labels import LabelLine
from optcli.data.selection import choose, split_digest
from optcli.data.text_files import text_of
from optcli.errors import InputError, counted, did_you_mean, excerpt, plural
from optcli.files import regular_files
from optcli.files.digest import FileDigests, of_value
from optcli.settings import TensorSpec

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

    def open(self, inputs: Sequence[TensorSpec]) -> Items:
        hint = "use python:FILE.py:CALLABLE, which can feed several"
        name = self.only_input(inputs, "a set of images", hint)
        numbers = range(self.class_count() or 0)
        parts = yolo_labels.parts_of(line for image in self.chosen for line in image.lines)
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
        return yolo_labels.read(file, self._about.keypoints, self._about.count) if file else ((), 0)


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
        places = (os.path.normpath(base / name) for base in (file.parent, *roots))
        image = next((each for each in places if regular_files.is_file(each)), None)
        if image is None:
            message = f"there is no image {excerpt(name)}"
            raise InputError(message, place=f"{file}, line {number}", hint=hint)
        yield image
