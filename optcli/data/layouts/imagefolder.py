"""Image files in a folder: `imagefolder:PATH`, in class folders or flat."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from optcli.data.collection import Collection, Finding, RawSample, RawSamples
from optcli.data.image_files import (
    SUFFIXES,
    folders_in,
    id_of,
    images_below,
    is_image,
    open_image,
    passed_over,
)
from optcli.data.image_tables import Tabled, metadata_in, tabled
from optcli.data.layouts._annotated import Annotated, AnnotatedItems
from optcli.data.selection import choose
from optcli.errors import InputError, counted, did_you_mean, excerpt
from optcli.files import regular_files
from optcli.files.digest import FileDigests, of_file, of_value
from optcli.settings import TensorSpec

_LISTED = 1024  # up to so many files a key names each, so that a reader sees which one changed


@dataclass(frozen=True)
class ImageFile:
    """One image: its id (path relative to the root, with slashes), its place, its class or objects."""

    id: str
    path: str
    target: Any


@dataclass(frozen=True)
class _WithObjects(Annotated):
    marked: tuple[Mapping[str, Any], ...]

    def objects(self) -> Sequence[Mapping[str, Any]]:
        return self.marked


class ImageFolder(Collection):
    """Images below a folder. Each folder in it is a class; targets count the sorted names from 0.

    A folder that holds images itself is flat and has no targets. A root with nothing but one folder of
    class folders is entered. `split: NAME` reads the subfolder of that name. Ids stay relative to
    the root. Hidden files and folders and everything that is no image by its suffix are passed over.

    `table` names a file with the path and the label of each image: text with both on a line, CSV, JSON
    or JSON lines. The folders are no classes then. Of a table with more columns `target` names that of
    the labels. Labels that are names, such as ImageNet's synsets, are numbered in sorted order; numbers
    count from `first_label`. `metadata.csv` and `metadata.jsonl` of Hugging Face beside the images are
    read by themselves. Their `objects` are boxes as left, top, width, height: targets are those of
    `coco:` then, and so are those of a table with a box a row (`xmin`, `ymin`, `xmax`, `ymax`).
    """

    @classmethod
    def recognises(cls, path: Path) -> bool:
        below = folders_in(path) if regular_files.is_folder(path) else []
        return metadata_in(path, *(path / name for name in below)) is not None

    @property
    def boxed(self) -> bool:
        return self._tabled is not None and self._tabled.boxes

    def class_count(self) -> int | None:
        return super().class_count() if self._tabled is None else self._tabled.classes

    def parts(self) -> Sequence[str]:
        return folders_in(self.path)

    def count(self) -> int:
        return sum(1 for _ in images_below(self._base))

    def problems(self) -> list[Finding]:
        if not regular_files.is_folder(self.path):
            return [("source", f"no such folder: {excerpt(self.settings.place)}", _nearest(self.path))]
        if self.part and not regular_files.is_folder(self.path / self.part):
            folders = folders_in(self.path)
            message = f"no folder {excerpt(self.part)!r} in the data"
            return [("split", message, did_you_mean(self.part, folders))]
        try:
            if not any(images_below(self._base)):
                hint = f"images are known by their suffix: {' '.join(SUFFIXES)}"
                there = "".join(f"; {note}" for note in passed_over(self._base))
                return [("source", f"no images in {excerpt(self.settings.place)}{there}", hint)]
            if self._table is None:
                _ = self._classes
            elif wrong := regular_files.problem(self._table, excerpt(self.settings.table or "")):
                return [("table", wrong, "a path relative to the recipe")]
        except InputError as error:
            return [("source", error.message, error.hint)]
        return []

    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        marks = [(file.id, file.target, digests.of(Path(file.path))) for file in self.files]
        record: dict[str, Any] = {"count": len(marks)}
        if len(marks) <= _LISTED:
            record["files"] = {name: digest for name, _, digest in marks}
        else:
            record["files"] = of_value([[name, digest] for name, _, digest in marks])
        record["targets"] = of_value([target for _, target, _ in marks])
        if self._table:
            digests.of(self._table)  # it is read; what it says are the targets
        return record

    def listed(self) -> Iterator[Path]:
        walked = os.walk(self.path, followlinks=True)
        return (Path(parent, name) for parent, _, names in walked for name in names)

    def open(self, inputs: Sequence[TensorSpec]) -> RawSamples:
        hint = "use an npz with one array per input"
        name = self.only_input(inputs, "a folder of images", hint)
        if self._tabled is None or not self._tabled.boxes:
            return ImageItems(name, self.files)
        images = [
            _WithObjects(file.id, Path(file.path), number, file.target)
            for number, file in enumerate(self.files)
        ]
        numbers = {each["category_id"] for file in self.files for each in file.target}
        return AnnotatedItems(name, images, {number: number for number in numbers})

    def class_names(self) -> tuple[str, ...] | None:
        self.require()
        if self._tabled is not None:
            return self._tabled.names
        return tuple(self._classes[1]) or None

    def empty_classes(self) -> tuple[str, ...]:
        if self._table is not None:
            return ()
        base, classes = self._classes
        return tuple(name for name in classes if not any(images_below(base / name)))

    def remarks(self, orient: bool) -> list[str]:
        absent = self._tabled.missing if self._tabled is not None else 0
        phrase = "row of the table names no image, and is", "rows of the table name no image, and are"
        left_out = f"{counted(absent, *phrase)} left out (missing: skip)"
        return [*([left_out] if absent else []), *passed_over(self._base)]

    @property
    def _base(self) -> Path:
        return self.path / self.part if self.part else self.path

    @property
    def _table(self) -> Path | None:
        """The file with the labels; None where folders are the classes."""
        if self.settings.table is not None:
            return self.folder / regular_files.expanded(self.settings.table)
        return metadata_in(self._base, self.path)

    @cached_property
    def _tabled(self) -> Tabled | None:
        return tabled(self._table, self.path, self._base, self.settings) if self._table else None

    @cached_property
    def _classes(self) -> tuple[Path, list[str]]:
        return _class_folders(self._base)

    @cached_property
    def files(self) -> list[ImageFile]:
        """The chosen files, sorted by id. Raises `InputError`."""
        self.require()
        everything = self._everything()
        chosen = choose(self.settings, self.folder, [file.id for file in everything], self.path.name)
        return [everything[position] for position in chosen]

    def _everything(self) -> list[ImageFile]:
        if self._tabled is not None:
            return [ImageFile(name, *each) for name, each in self._tabled.images.items()]
        base, classes = self._classes
        targets = {name: number for number, name in enumerate(classes)}
        files = []
        root, start = len(str(self.path)) + 1, len(str(base)) + 1  # text: sets are large, Path is slow
        for place in images_below(base):
            target = targets[place[start:].partition(os.sep)[0]] if classes else None
            files.append(ImageFile(id_of(place[root:]), place, target))
        return sorted(files, key=lambda file: file.id)


class ImageItems(RawSamples):
    """The chosen files, opened one at a time."""

    parallel: ClassVar[bool] = True

    def __init__(self, name: str, files: Sequence[ImageFile]) -> None:
        self._name = name
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def read(self, index: int) -> RawSample:
        file = self._files[index]
        return RawSample(file.id, file.path, {self._name: open_image(file.path)}, file.target)

    def targets(self) -> Iterator[tuple[str, Any]]:
        return ((file.id, file.target) for file in self._files)

    def identity(self, index: int) -> tuple[str, str]:
        file = self._files[index]
        return file.id, of_file(Path(file.path))


def _class_folders(base: Path) -> tuple[Path, list[str]]:
    """Where the class folders lie, and their sorted names; none for a flat folder.

    A folder without a file is a class without an image: who trains counts it too.
    """
    while True:
        every = folders_in(base)
        direct = {name for name in every if any(map(is_image, os.listdir(base / name)))}
        folders = [name for name in every if name in direct or any(images_below(base / name))]
        flat = any(is_image(entry.name) for entry in os.scandir(base) if entry.is_file())
        if flat and folders:
            raise InputError(
                f"{base.name} holds both images and folders of images ({', '.join(folders[:3])})",
                hint="images lie either flat in the folder or all in class folders",
            )
        if flat:
            return base, []
        if direct:
            empty = [name for name in every if _is_empty(base / name)]
            return base, sorted([*folders, *empty])
        if len(folders) != 1:
            raise InputError(
                f"found folders of folders in {base.name} ({', '.join(folders[:4])}), wanted classes",
                hint=f"choose one of them with split: {folders[0]}",
            )
        base = base / folders[0]


def _is_empty(folder: Path) -> bool:
    return all(name.startswith(".") for _, _, names in os.walk(folder) for name in names)


def _nearest(path: Path) -> str:
    parent = path.parent
    if not regular_files.is_folder(parent):
        return f"{excerpt(str(parent))} does not exist"
    return did_you_mean(path.name, folders_in(parent)) or "a path relative to the recipe"
