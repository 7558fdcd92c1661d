"""Images in Parquet files, as Hugging Face writes them: `parquet:PATH`, a file or a folder."""

from __future__ import annotations

import bisect
import io
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from optcli.data.collection import Collection, Finding, RawSample, RawSamples
from optcli.data.image_files import decoded, folders_down_to
from optcli.data.layouts._annotated import target_of
from optcli.data.selection import choose, split_digest
from optcli.data.table_labels import OBJECTS, column_of, label_of, labelling, objects_of
from optcli.environment import Needs
from optcli.errors import InputError, did_you_mean, excerpt, raised_as
from optcli.files import regular_files
from optcli.files.digest import FileDigests, of_bytes, of_value
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import pyarrow
    from pyarrow.parquet import ParquetFile

_WANTED = "wanted .parquet files with a column of images and one of labels"
_SUFFIXES = (".parquet", ".pq")
_BYTES, _PATH = "bytes", "path"


class Parquet(Collection):
    """Rows of Parquet files in the order of their names; ids are the numbers of rows.

    `split: train` reads the files called `train-…` or `train.parquet`, and those in folders of that
    name. Images are the column that holds `{bytes, path}` or bytes; `array` names it where there are
    several. Labels are the column `label` or `objects`, or what `target` names. Class names come from
    the file's own description, else labels that are names are numbered in sorted order. `objects` are
    boxes as left, top, width, height: targets are those of `coco:` then.
    """

    needs = Needs(("pyarrow",))

    @classmethod
    def recognises(cls, path: Path) -> bool:
        if not regular_files.is_folder(path):
            return path.suffix.lower() in _SUFFIXES
        names = (name for each in folders_down_to(path, 2) for name in regular_files.names_in(each))
        return any(name.lower().endswith(_SUFFIXES) for name in names)

    def parts(self) -> Sequence[str]:
        return sorted({_part_of(file) for file in self._below}) if self.path.is_dir() else ()

    def count(self) -> int:
        return self._rows.count

    def class_count(self) -> int | None:
        return self._targets.classes if self._targets is not None else None

    @property
    def boxed(self) -> bool:
        return self._targets is not None and self._targets.boxes

    def problems(self) -> list[Finding]:
        place = self.settings.place
        if not regular_files.is_folder(self.path):
            wrong = regular_files.problem(self.path, excerpt(place))
            return [("source", wrong, _WANTED)] if wrong else []
        if not self._files:
            if self.part and (parts := self.parts()):
                message = f"the data have no part {excerpt(self.part)!r}"
                return [("split", message, did_you_mean(self.part, parts))]
            return [("source", f"no Parquet files in {excerpt(place)}", _WANTED)]
        return []

    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        return {
            "files": of_value([digests.of(file) for file in self._files]),
            "split": split_digest(self.settings, self.folder, digests.of),
        }

    def open(self, inputs: Sequence[TensorSpec]) -> RawSamples:
        self.require()
        name = self.only_input(inputs, "a table of images", "use an npz with one array per input")
        rows = self._rows
        chosen = choose(self.settings, self.folder, [str(row) for row in range(rows.count)])
        place = self.settings.place
        return ParquetItems(place, name, rows, chosen, self._targets, self._image_column)

    def class_names(self) -> tuple[str, ...] | None:
        self.require()
        return self._targets.names if self._targets is not None else None

    @cached_property
    def _below(self) -> list[Path]:
        return sorted(_below(self.path))

    @cached_property
    def _files(self) -> list[Path]:
        """The files of the part."""
        if not regular_files.is_folder(self.path):
            return [self.path]
        if self.part is None:
            return self._below
        return [
            file
            for file in self._below
            if _part_of(file) == self.part or self.part in file.relative_to(self.path).parts[:-1]
        ]

    @cached_property
    def _rows(self) -> _Rows:
        return _Rows(self._files)

    @cached_property
    def _image_column(self) -> str:
        """The column of the images. Raises `InputError`."""
        import pyarrow.types as kinds

        schema = self._rows.schema
        if self.settings.array is not None and self.settings.array not in schema.names:
            hint = did_you_mean(self.settings.array, schema.names)
            raise self.wrong(f"there is no column {self.settings.array!r}", hint)
        names = [
            field.name
            for field in schema
            if kinds.is_binary(field.type)
            or kinds.is_large_binary(field.type)
            or (kinds.is_struct(field.type) and field.type.get_field_index(_BYTES) >= 0)
        ]
        if self.settings.array is not None:
            return self.settings.array
        if len(names) != 1:
            names_text = excerpt(", ".join(names or schema.names), 200)
            raise self.wrong(
                f"which column has the images is not known: {names_text}", "array: its name"
            )
        return str(names[0])

    @cached_property
    def _targets(self) -> _Targets | None:
        """The labels or objects of all rows; None where there is no such column."""
        place = self.settings.source
        others = [name for name in self._rows.schema.names if name != self._image_column]
        column = column_of(others, self.settings.target, place)
        if column is None:
            return None
        values = self._rows.column(column)
        names = _declared(self._rows.schema, column)
        if column not in OBJECTS:
            labels = [label_of(value) for value in values]
            known = labelling(labels, self.settings.first_label, place, names)
            numbers = [known.numbers[label] for label in labels]
            return _Targets(numbers, known.names, known.count, False)
        objects = [objects_of(value, f"{place}, row {n}") for n, value in enumerate(values)]
        every = [each for row in objects for each in row]
        ids = [each["category_id"] for each in every]
        known = labelling(ids, self.settings.first_label, place, names)
        for each in every:
            each["category_id"] = known.numbers[each["category_id"]]
        return _Targets(objects, known.names, known.count, True)


@dataclass(frozen=True)
class _Targets:
    values: Sequence[Any]
    names: tuple[str, ...] | None
    classes: int
    boxes: bool


class _Rows:
    """The rows of several files, read by row groups: the last group of images stays in memory."""

    def __init__(self, files: Sequence[Path]) -> None:
        from pyarrow.parquet import ParquetFile

        self._lock = threading.Lock()
        self._group: tuple[tuple[int, int, str], Any] | None = None
        self._files: list[ParquetFile] = []
        self._groups: list[tuple[int, int, int]] = []  # first row, file, row group
        self.count = 0
        for number, file in enumerate(files):
            with _readable(file):
                regular_files.check(file)
                opened = ParquetFile(file)
            self._files.append(opened)
            for group in range(opened.num_row_groups):
                self._groups.append((self.count, number, group))
                self.count += opened.metadata.row_group(group).num_rows
        self.schema: pyarrow.Schema = self._files[0].schema_arrow

    def column(self, name: str) -> list[Any]:
        """All values of a column, as Python has them. Raises `InputError`."""
        values: list[Any] = []
        for file in self._files:
            with _readable(file):
                values += file.read(columns=[name]).column(name).to_pylist()
        return values

    def cell(self, row: int, name: str) -> Any:
        """One value. Raises `InputError`."""
        at = bisect.bisect_right(self._groups, (row, len(self._files), 0)) - 1
        first, number, group = self._groups[at]
        with self._lock:
            key = (number, group, name)
            if self._group is None or self._group[0] != key:
                file = self._files[number]
                with _readable(file):
                    read = file.read_row_group(group, columns=[name]).column(name)
                self._group = (key, read)
            return self._group[1][row - first].as_py()


class ParquetItems(RawSamples):
    """The chosen rows, decoded one at a time."""

    parallel: ClassVar[bool] = True

    def __init__(
        self,
        place: str,
        name: str,
        rows: _Rows,
        chosen: Sequence[int],
        targets: _Targets | None,
        column: str,
    ) -> None:
        self._place, self._name, self._rows, self._chosen = place, name, rows, chosen
        self._targets, self._column = targets, column

    def __len__(self) -> int:
        return len(self._chosen)

    def read(self, index: int) -> RawSample:
        row = self._chosen[index]
        place = f"{self._place}, row {row}"
        image = decoded(io.BytesIO(self._bytes(row, place)), place)
        number = {"image_id": row} if self._targets is not None and self._targets.boxes else {}
        return RawSample(str(row), place, {self._name: image}, self._target(row), number)

    def targets(self) -> Iterator[tuple[str, Any]] | None:
        if self._targets is None:
            return None
        return ((str(row), self._target(row)) for row in self._chosen)

    def identity(self, index: int) -> tuple[str, str]:
        row = self._chosen[index]
        return str(row), of_bytes(self._bytes(row, f"{self._place}, row {row}"))

    def _bytes(self, row: int, place: str) -> bytes:
        cell = self._rows.cell(row, self._column)
        content = cell.get(_BYTES) if isinstance(cell, Mapping) else cell
        if not isinstance(content, bytes):
            message = "the row holds no bytes of an image"
            hint = "write the images into the file: Dataset.to_parquet does so"
            raise InputError(message, place=place, hint=hint)
        return content

    def _target(self, row: int) -> Any:
        if self._targets is None:
            return None
        value = self._targets.values[row]
        if not self._targets.boxes:
            return value
        return target_of(value, {each["category_id"]: each["category_id"] for each in value})


def _below(folder: Path) -> Iterator[Path]:
    return (each for each in folder.rglob("*") if each.suffix.lower() in _SUFFIXES)


def _readable(file: Any) -> AbstractContextManager[None]:
    """What pyarrow raises over a file becomes an `InputError`."""
    hint = "the file is damaged, or no Parquet file: copy or write it again"
    return raised_as(InputError, "not a readable Parquet file", place=str(file), hint=hint)


def _part_of(file: Path) -> str:
    """The part of a data set that a file belongs to: `train-00000-of-00001` or `train/0000`."""
    name = file.stem.partition("-")[0]
    return file.parent.name if name.isdecimal() else name


def _declared(schema: pyarrow.Schema, column: str) -> tuple[str, ...] | None:
    """The names that Hugging Face's description of the file has for the numbers of a column."""
    text = (schema.metadata or {}).get(b"huggingface")
    try:
        feature = json.loads(text)["info"]["features"][column] if text else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return next(_names_in(feature), None)


def _names_in(feature: Any) -> Iterator[tuple[str, ...]]:
    """The names of `ClassLabel` anywhere within a feature."""
    if isinstance(feature, dict):
        names = feature.get("names")
        if feature.get("_type") == "ClassLabel" and isinstance(names, list):
            yield tuple(map(str, names))
        feature = list(feature.values())
    if isinstance(feature, list):
        for each in feature:
            yield from _names_in(each)
