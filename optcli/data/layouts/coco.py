"""Images with boxes in COCO's format: `coco:PATH`, a folder with `instances.json`, or such a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from optcli.data.collection import Collection, Finding, RawSamples
from optcli.data.image_files import folders_in, is_image
from optcli.data.layouts._annotated import Annotated, AnnotatedImage, AnnotatedItems, disagreements
from optcli.data.layouts._coco_annotations import Annotations, read
from optcli.data.selection import choose, split_digest
from optcli.errors import InputError, counted, excerpt
from optcli.files import regular_files
from optcli.files.digest import FileDigests
from optcli.settings import TensorSpec

_WANTED = (
    "instances.json beside a folder images, annotations/instances_NAME.json, or"
    " NAME/_annotations.coco.json beside its images, with split: NAME"
)
# What tools call the file of a folder: Roboflow, optcli's own examples, CVAT, FiftyOne, Label Studio.
FILES = ("_annotations.coco.json", "instances.json", "annotations.json", "labels.json", "result.json")


@dataclass(frozen=True)
class CocoImage(Annotated):
    """One image with its annotations as they stand in the file; `number` is its id there."""

    boxes: tuple[dict[str, Any], ...]

    def objects(self) -> Sequence[Mapping[str, Any]]:
        return self.boxes


class Coco(Collection):
    """Images and boxes, in the order of file names, which are the ids.

    A target is `{boxes, labels, category_ids, areas, crowd}`: boxes [n, 4] as left, top, right, bottom
    in pixels of the original image; labels count the sorted category ids from 0. Where the annotations
    have them, `segmentation` is a list of polygons or run-length encodings, None for an object without,
    and `keypoints` are [n, k, 3] with visibilities of 0 for an object without. `meta` has `image_id`
    beside size, scale and padding of the preparation, by which boxes are brought back. `split: NAME`
    reads `annotations/instances_NAME.json`, or `NAME/_annotations.coco.json` of Roboflow beside its
    images. `root` names the folder of the images where it is not found beside the annotations.
    """

    boxed = True
    numbered = True

    @classmethod
    def recognises(cls, path: Path) -> bool:
        if regular_files.is_file(path):
            return path.suffix.lower() == ".json"
        names = [*_named_parts(path), *(name for name in FILES if _has_annotations(path / name))]
        return bool(names)

    def parts(self) -> Sequence[str]:
        return _named_parts(self.path)

    def count(self) -> int:
        return len(self._read.images)

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
        marks = {each.id: digests.of(each.path) for each in self.chosen}
        return {
            "annotations": digests.of(self._annotations),
            "files": marks,
            "split": split_digest(self.settings, self.folder, digests.of),
        }

    def open(self, inputs: Sequence[TensorSpec]) -> RawSamples:
        hint = "use python:FILE.py:CALLABLE, which can feed several"
        name = self.only_input(inputs, "a set of images", hint)
        read = self._read
        there = {"segmentation": read.segmented, "keypoints": read.keypoints}
        parts = [part for part, has in there.items() if has]
        return AnnotatedItems(name, self.chosen, self._labels, parts, read.keypoints)

    def class_names(self) -> tuple[str, ...] | None:
        self.require()
        names, categories = self._read.names, sorted(self._read.categories)
        return tuple(names[each] for each in categories) if names.keys() >= {*categories} else None

    def class_ids(self) -> tuple[int, ...]:
        return tuple(sorted(self._read.categories))

    def empty_classes(self) -> tuple[str, ...]:
        used = {box["category_id"] for boxes in self._read.boxes.values() for box in boxes}
        return tuple(name for each, name in self._read.names.items() if each not in used)

    def remarks(self, orient: bool) -> list[str]:
        sizes = self._read.sizes
        images = (
            AnnotatedImage(
                each.id, each.path, sizes.get(each.number), [box["bbox"] for box in each.boxes]
            )
            for each in self.chosen
        )
        absent = self._everything[1]
        phrase = (
            "image of the annotations has no file, and is",
            "images of the annotations have no file, and are",
        )
        left_out = f"{counted(absent, *phrase)} left out (missing: skip)"
        return [*([left_out] if absent else []), *disagreements(images, orient=orient)]

    @property
    def _annotations(self) -> Path:
        """The file of annotations; the one that is wanted where there is none."""
        if regular_files.is_file(self.path):
            return self.path
        if self.part is None:
            places = [self.path / "instances.json", *(self.path / name for name in FILES)]
        else:
            names = [f"{begin}{self.part}.json" for begin in ("instances_", "")]
            places = [folder / name for name in names for folder in _folders(self.path)]
            places += [self.path / self.part / each for each in FILES]
        return next((each for each in places if regular_files.is_file(each)), places[0])

    @property
    def _images(self) -> Path | None:
        if self.settings.root is not None:
            return self.folder / regular_files.expanded(self.settings.root)
        base = self._annotations.parent
        base = base.parent if base.name == "annotations" else base
        part = self.part or self._annotations.stem.removeprefix("instances").strip("_")
        ending = part.rpartition("_")[2]  # of lvis_v1_val and person_keypoints_val2017
        places = [base / "images" / part, base / part, base / "images" / ending, base / ending]
        places += [base / name for name in folders_in(base) if ending and name.startswith(ending)]
        places += [base / "images", base / "data"]
        folders = (each for each in places if each != base and regular_files.is_folder(each))
        folder = base if any(map(is_image, regular_files.names_in(base))) else None
        return next(folders, folder)

    @cached_property
    def _read(self) -> Annotations:
        return read(self._annotations)

    @property
    def _labels(self) -> dict[int, int]:
        """Category id to label."""
        return {category: label for label, category in enumerate(sorted(self._read.categories))}

    @cached_property
    def _everything(self) -> tuple[list[CocoImage], int]:
        """All images, sorted by file name, and how many were left out for want of a file."""
        self.require()
        root = self._images
        assert root is not None
        everything = [
            CocoImage(name, _image(root, name), number, self._read.boxes[number])
            for number, name in sorted(self._read.images, key=lambda image: image[1])
        ]
        if self.settings.missing != "skip":
            return everything, 0
        there = [each for each in everything if each.path.exists()]
        return there, len(everything) - len(there)

    @cached_property
    def chosen(self) -> list[CocoImage]:
        """The chosen images, sorted by file name. Raises `InputError`."""
        everything, _ = self._everything
        positions = choose(self.settings, self.folder, [each.id for each in everything])
        images = [everything[position] for position in positions]
        for image in images:
            if wrong := regular_files.problem(image.path, excerpt(image.id)):
                raise InputError(
                    f"the annotations name an image that cannot be read: {wrong}",
                    place=str(self._images),
                    hint="copy the images, name their folder with root:, or leave those out with"
                    " missing: skip",
                )
        return images


def _image(root: Path, name: str) -> Path:
    """The file of an image: Label Studio writes `images/` before the names of those in `images`.

    Files that were written on Windows have backslashes.
    """
    tried = [base / each for each in (name, name.replace("\\", "/")) for base in (root, root.parent)]
    inside = [each for each in tried if each.parent != root.parent]
    return next((each for each in inside if regular_files.is_file(each)), root / name)


def _named_parts(path: Path) -> list[str]:
    """The parts of a data set: of COCO's own layout, or folders with a file of their own."""
    files = [
        folder / name
        for folder in _folders(path)
        for name in regular_files.names_in(folder)
        if name.endswith(".json")
    ]
    inner = folders_in(path) if regular_files.is_folder(path) else []
    names = {
        each.stem.removeprefix("instances_") for each in files if each.name.startswith("instances_")
    }
    names |= {name for name in inner if any(_has_annotations(path / name / file) for file in FILES)}
    if not names and not any(_has_annotations(path / file) for file in FILES):
        names = {each.stem for each in files if _has_annotations(each)}
    return sorted(names)


def _folders(path: Path) -> tuple[Path, Path]:
    """The folders in which files of annotations with any name lie."""
    return path / "annotations", path


def _has_annotations(file: Path) -> bool:
    """Whether a file is one of COCO's format: other tables have such names too."""
    if not regular_files.is_file(file):
        return False
    with regular_files.opened(file) as stream:
        content = stream.read(regular_files.MOST_JSON_BYTES)
    return all(key in content for key in (b'"images"', b'"annotations"', b'"categories"'))
