"""Images with boxes in Pascal VOC's format: `voc:PATH`, one XML file an image."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

from optcli.data.collection import Collection, Finding, RawSamples
from optcli.data.image_files import folders_down_to, id_of, is_image, passed_over
from optcli.data.layouts._annotated import Annotated, AnnotatedImage, AnnotatedItems, disagreements
from optcli.data.selection import choose, split_digest
from optcli.data.text_files import text_of, xml_of
from optcli.errors import InputError, did_you_mean, excerpt
from optcli.files import regular_files
from optcli.files.digest import FileDigests, of_value
from optcli.settings import TensorSpec

_WANTED = "wanted Annotations/*.xml beside JPEGImages, or XML files beside their images"
_HINT = "wanted an annotation of Pascal VOC: objects with a name and a bndbox"
_SIDES = ("xmin", "ymin", "xmax", "ymax")


@dataclass(frozen=True)
class VocObject:
    """An object as its file has it: `sides` are xmin, ymin, xmax, ymax."""

    name: str
    sides: tuple[float, ...]
    difficult: bool


@dataclass(frozen=True)
class VocImage(Annotated):
    """One image with its objects.

    `numbers` has the number of each class, `first` is that of the first pixel, `size` what the
    annotation says of width and height.
    """

    marked: tuple[VocObject, ...]
    numbers: Mapping[str, int]
    first: int
    size: tuple[int, int] | None

    def objects(self) -> Sequence[Mapping[str, Any]]:
        return [
            {
                "category_id": self.numbers[each.name],
                "bbox": self._box(*each.sides),
                "iscrowd": each.difficult,
            }
            for each in self.marked
        ]

    def _box(self, left: float, top: float, right: float, bottom: float) -> list[float]:
        """Left, top, width and height: where pixels count from 1, the last one belongs to the box."""
        return [
            left - self.first,
            top - self.first,
            right - left + self.first,
            bottom - top + self.first,
        ]


class Voc(Collection):
    """Images and boxes. `split: NAME` reads the images that `ImageSets/Main/NAME.txt` lists.

    Without that folder `NAME` is a folder with XML files beside their images, as Roboflow exports
    them. Classes are numbered by the sorted names in all XML files of the source. Targets are those of
    `coco:`; objects marked `difficult` are crowds, which are ignored.

    Pascal VOC counts pixels from 1 and the last one belongs to the box: left = xmin - 1, right = xmax.
    Some tools count from 0: right = xmax then. `first_pixel` says which; by default it is 0 where a
    coordinate of the source is below 1, and 1 elsewhere.
    """

    boxed = True

    @classmethod
    def recognises(cls, path: Path) -> bool:
        return regular_files.is_folder(path) and bool(
            _annotations_in(path) or any(_listed_beside(path))
        )

    def parts(self) -> Sequence[str]:
        return self._parts

    def count(self) -> int:
        return len(self._of_part())

    def problems(self) -> list[Finding]:
        if not regular_files.is_folder(self.path):
            return [("source", f"no such folder: {excerpt(self.settings.place)}", _WANTED)]
        if self.part and not (self._list or self._part_folder):
            hint = did_you_mean(self.part, self._parts) or _WANTED
            return [("split", f"the data have no part {excerpt(self.part)!r}", hint)]
        if not self._files:
            return [("source", f"no XML files in {excerpt(self.settings.place)}", _WANTED)]
        if self._root is None and self.part is None and self._parts:
            hint = f"split: {self._parts[0]}"
            return [("split", f"the data have the parts {', '.join(self._parts)}", hint)]
        return []

    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        marks = [[image.id, digests.of(image.path)] for image in self.chosen]
        annotations = [
            [file.stem, digests.of(file)] for file in self._files
        ]  # all of them name classes
        if self._list:
            digests.of(self._list)
        return {
            "count": len(marks),
            "files": of_value(marks),
            "annotations": of_value(annotations),
            "split": split_digest(self.settings, self.folder, digests.of),
        }

    def listed(self) -> Iterator[Path]:
        return iter(self._images.values())

    def open(self, inputs: Sequence[TensorSpec]) -> RawSamples:
        hint = "use python:FILE.py:CALLABLE, which can feed several"
        name = self.only_input(inputs, "a set of images", hint)
        return AnnotatedItems(name, self.chosen, {n: n for n in range(len(self._names))})

    def class_names(self) -> tuple[str, ...] | None:
        self.require()
        return self._names

    def empty_classes(self) -> tuple[str, ...]:
        used = {each.name for file in self._of_part() for each in self._read[file][0]}
        return tuple(name for name in self._names if name not in used)

    def remarks(self, orient: bool) -> list[str]:
        remarks = []
        if self.settings.first_pixel is None:
            least = "a box begins below 1" if self._first_pixel == 0 else "no box begins below 1"
            remarks = [f"pixels are counted from {self._first_pixel}, because {least} (first_pixel)"]
        folder = self._root or self._part_folder or self.path
        images = (
            AnnotatedImage(each.id, each.path, each.size, [o["bbox"] for o in each.objects()])
            for each in self.chosen
        )
        others = passed_over(folder / "JPEGImages" if self._root else folder)
        return [*remarks, *others, *disagreements(images, orient=orient)]

    @cached_property
    def _root(self) -> Path | None:
        """The folder that holds `Annotations`, as `VOCdevkit/VOC2012` does; None: there is none."""
        return _annotations_in(self.path)

    @property
    def _list(self) -> Path | None:
        """The file that lists the images of the part."""
        if self._root is None or self.part is None:
            return None
        file = self._root / "ImageSets" / "Main" / f"{self.part}.txt"
        return file if regular_files.is_file(file) else None

    @property
    def _part_folder(self) -> Path | None:
        folder = self.path / self.part if self._root is None and self.part else None
        return folder if folder is not None and regular_files.is_folder(folder) else None

    @property
    def _parts(self) -> list[str]:
        if self._root is not None:
            lists = regular_files.names_in(self._root / "ImageSets" / "Main")
            return [name.removesuffix(".txt") for name in lists if name.endswith(".txt")]
        folders = sorted({file.parent for file in self._files} - {self.path})
        return [folder.relative_to(self.path).parts[0] for folder in folders]

    @cached_property
    def _files(self) -> list[Path]:
        """All annotations of the source, whatever the part."""
        return sorted(_below(self._root / "Annotations" if self._root else self.path, ".xml"))

    @cached_property
    def _images(self) -> dict[str, Path]:
        """Image files by the path of their annotation without its suffix."""
        if self._root is None:
            return {str(each.with_suffix("")): each for each in _below(self.path)}
        folder, annotations = self._root / "JPEGImages", self._root / "Annotations"
        folder = folder if folder.is_dir() else self._root / "images"
        return {
            str(annotations / each.relative_to(folder).with_suffix("")): each for each in _below(folder)
        }

    @cached_property
    def _read(self) -> dict[Path, tuple[tuple[VocObject, ...], tuple[int, int] | None]]:
        """The objects in each annotation of the source, and the size of its image."""
        return {file: _objects(file) for file in self._files}

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(sorted({each.name for marked, _ in self._read.values() for each in marked}))

    @property
    def _first_pixel(self) -> int:
        if self.settings.first_pixel is not None:
            return self.settings.first_pixel
        sides = (min(each.sides[:2]) for marked, _ in self._read.values() for each in marked)
        return 0 if min(sides, default=1) < 1 else 1

    def _of_part(self) -> list[Path]:
        """The annotations of the part. Raises `InputError`."""
        if self._part_folder is not None:
            return [file for file in self._files if self._part_folder in file.parents]
        if self._list is None or self._root is None:
            return self._files
        folder, known = self._root / "Annotations", set(self._files)
        files = set()
        for number, line in enumerate(text_of(self._list, _WANTED).splitlines(), 1):
            if words := line.split():  # lists of one class have 1, 0 or -1 behind the name
                name = words[0].removesuffix(".xml") if len(words) < 3 else line.strip()
                file = folder / f"{name}.xml"
                if file not in known:
                    place = f"{self._list}, line {number}"
                    message = f"there is no Annotations/{excerpt(name)}.xml"
                    raise InputError(message, place=place, hint=_WANTED)
                files.add(file)
        return sorted(files)

    @cached_property
    def chosen(self) -> list[VocImage]:
        """The chosen images with their objects. Raises `InputError`."""
        self.require()
        files = self._of_part()
        base = self._part_folder or (self._root / "Annotations" if self._root else self.path)
        ids = [id_of(str(file.relative_to(base).with_suffix(""))) for file in files]
        positions = choose(self.settings, self.folder, ids)
        numbers = {name: number for number, name in enumerate(self._names)}
        first, images = self._first_pixel, []
        for n in positions:
            image = self._images.get(str(files[n].with_suffix("")))
            if image is None:
                hint = "an image has the name of its XML file, in JPEGImages or beside it"
                raise InputError("there is no image of that name", place=str(files[n]), hint=hint)
            marked, size = self._read[files[n]]
            images.append(VocImage(ids[n], image, n, marked, numbers, first, size))
        return images


def _annotations_in(path: Path) -> Path | None:
    """The folder with `Annotations`: the path, or a folder up to two levels below."""
    places = folders_down_to(path, 2)
    return next((each for each in places if any(_below(each / "Annotations", ".xml"))), None)


def _listed_beside(path: Path) -> Iterator[Path]:
    """XML files that lie beside an image of the same name, in the folder or in the folders in it."""
    for folder in folders_down_to(path, 1):
        names = regular_files.names_in(folder)
        images = {name.rpartition(".")[0] for name in names if is_image(name)}
        yield from (folder / name for name in names if name.endswith(".xml") and name[:-4] in images)


def _below(folder: Path, suffix: str = "") -> Iterator[Path]:
    """Files below a folder: those with a suffix, or images."""
    for root, _, names in os.walk(folder):
        for name in names:
            if name.lower().endswith(suffix) if suffix else is_image(name):
                yield Path(root, name)


def _objects(file: Path) -> tuple[tuple[VocObject, ...], tuple[int, int] | None]:
    """The objects of an annotation, and the width and height that it says. Raises `InputError`."""
    root = xml_of(file, _HINT)
    size = tuple(_number(root.find("size"), side, file) for side in ("width", "height"))
    whole = (int(size[0]), int(size[1])) if size[0] and size[1] else None
    return tuple(_marked(each, file) for each in root.findall("object")), whole


def _marked(each: Element, file: Path) -> VocObject:
    name = (each.findtext("name") or "").strip()
    box = each.find("bndbox")
    sides = [_number(box, side, file) for side in _SIDES]
    place = f"{file}, object {excerpt(name)!r}"
    if not name or box is None or None in sides:
        raise InputError("found no name, or no xmin, ymin, xmax and ymax", place=place, hint=_HINT)
    left, top, right, bottom = (side or 0.0 for side in sides)
    if right < left or bottom < top:
        message = f"the box ends before it begins: {left:g}, {top:g}, {right:g}, {bottom:g}"
        raise InputError(message, place=place, hint="wanted xmin, ymin, xmax, ymax in pixels")
    return VocObject(
        name, (left, top, right, bottom), (each.findtext("difficult") or "").strip() == "1"
    )


def _number(parent: Element | None, name: str, file: Path) -> float | None:
    """A number below an element; None where there is no such element. Raises `InputError`."""
    text = parent.findtext(name) if parent is not None else None
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) < 1e30:  # NaN is not below anything
        message = f"found {excerpt(text)!r}, wanted a number"
        raise InputError(message, place=f"{file}, {name}", hint=_HINT)
    return value
