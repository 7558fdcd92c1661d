"""Images whose labels stand in a table: each row finds its image, each image its row."""

from __future__ import annotations

import csv
import json
import math
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optcli.data.image_files import id_of, images_below
from optcli.data.settings import DataSettings
from optcli.data.table_labels import OBJECTS, column_of, label_of, labelling, objects_of
from optcli.data.text_files import text_of
from optcli.errors import InputError, counted, excerpt
from optcli.files import regular_files

_HINT = "wanted a row for each image: its path and its label"


_SEPARATORS = (",", ";", "\t")


_FILE_NAME, _LABEL = "0", "1"  # columns of a table without a header


@dataclass(frozen=True)
class DataTable:
    """Rows by the names of their columns; `lines` has where each stands in the file.

    Columns without a header are called 0, 1 and so on. A text file whose first line may be a header or
    a row has it as `first`.
    """

    path: Path
    rows: tuple[Mapping[str, Any], ...]
    first: Sequence[str] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns."""
        return tuple(dict.fromkeys(name for row in self.rows for name in row))

    def with_header(self) -> DataTable:
        """The same table where its first row names the columns."""
        named = [
            {self.first[int(name)]: value for name, value in row.items() if int(name) < len(self.first)}
            for row in self.rows[1:]
        ]
        return DataTable(self.path, tuple(named))


_BOXES = (("xmin", "ymin", "xmax", "ymax"), ("x1", "y1", "x2", "y2"))


METADATA = ("metadata.csv", "metadata.jsonl")


_LOOKED_AT = 200  # rows by which the column of the paths is found


@dataclass(frozen=True)
class Tabled:
    """Images by their ids, paths relative to the root: the file, and its label or its objects.

    `names` are those of the `classes`, as far as known; `boxes` says whether there are objects.
    `missing` rows name images that are not there, and are left out.
    """

    images: Mapping[str, tuple[str, Any]]
    names: tuple[str, ...] | None
    classes: int
    boxes: bool
    missing: int = 0


def metadata_in(*folders: Path) -> Path | None:
    """The table that lies beside images of its own accord; None: there is none."""
    files = (folder / name for folder in folders for name in METADATA)
    return next((file for file in files if regular_files.is_file(file)), None)


def tabled(file: Path, root: Path, base: Path, settings: DataSettings) -> Tabled:
    """The images below `base` with what the table says of them; ids are relative to `root`.

    Raises `InputError` for rows without an image, images without a row, and labels of which it is not
    known which class they are.
    """
    places = sorted(images_below(base))
    index = _Index(places, root, base)
    table, paths = _with_paths(read(file), index)
    hot = _hot(table, paths) if settings.target is None else ()
    column = "" if hot else _labels(table, paths, settings.target)
    sides = _sides(table)
    values: dict[str, Any] = {place: [] for place in places} if sides else {}
    missing: list[str] = []
    for number, row in enumerate(table.rows, 1):
        place = index.find(row.get(paths)) if paths else places[number - 1]
        if place is None:
            if not regular_files.is_file(root / str(row.get(paths))):  # else it is of another part
                missing.append(f"row {number} {excerpt(str(row.get(paths)))!r}")
        elif sides:
            values[place] += _object(row, sides, column, f"{file}, row {number}")
        elif repr(values.setdefault(place, value := _value(row, column, hot))) != repr(value):
            message = f"{os.path.basename(place)} has two rows with different labels"
            raise InputError(message, place=str(file), hint="leave one of them")
    if missing and settings.missing != "skip":
        absent = "row names an image that is not there", "rows name images that are not there"
        message = f"{counted(len(missing), *absent)}, the first is {missing[0]}"
        raise InputError(
            message, place=str(file), hint="copy the images, or leave these rows out with missing: skip"
        )
    without = next((place for place in places if place not in values), None)
    if without is not None:
        images = counted(len(places) - len(values), "image has no row", "images have no row")
        message = f"{images}, the first is {excerpt(without)}"
        raise InputError(message, place=str(file), hint="add their rows, or move the images elsewhere")
    if hot:
        known = _of_columns(values, root, hot)
    else:
        boxes = bool(sides) or column in OBJECTS
        known = _numbered(values, root, str(file), settings.first_label, boxes=boxes)
    return replace(known, missing=len(missing))


def _sides(table: DataTable) -> Sequence[str]:
    """The columns with left, top, right and bottom of a box a row; none where there are none."""
    lower = {name.lower().replace("_", ""): name for name in table.columns}
    return next(([lower[each] for each in four] for four in _BOXES if {*four} <= lower.keys()), ())


def _object(
    row: Mapping[str, Any], sides: Sequence[str], column: str, place: str
) -> list[dict[str, Any]]:
    """The object of a row; none where it has no box. Raises `InputError`."""
    cells = [str(row.get(name) or "").strip() for name in sides]
    if not any(cells):
        return []
    try:
        left, top, right, bottom = map(float, cells)
    except ValueError:
        left, top, right, bottom = (math.nan,) * 4
    if not (left <= right and top <= bottom) or max(right, bottom) <= 1:
        raise InputError(
            f"found the box {excerpt(', '.join(cells))}, wanted left, top, right and bottom in pixels",
            place=place,
            hint="boxes in fractions of the image are read by yolo:",
        )
    box = [left, top, right - left, bottom - top]
    return [{"bbox": box, "category": row.get(column)}]


def _value(row: Mapping[str, Any], column: str, hot: Sequence[str]) -> Any:
    return [_flag(row.get(name)) for name in hot] if hot else row.get(column)


def _flag(cell: Any) -> int | None:
    """A cell of a class's column: 1, 0, or -1 where it is empty; None: it is none."""
    text = str("" if cell is None else cell).strip().lower()
    known = {"1": 1, "1.0": 1, "true": 1, "0": 0, "0.0": 0, "false": 0, "-1": -1, "-1.0": -1, "": -1}
    return known.get(text)


def _hot(table: DataTable, paths: str) -> Sequence[str]:
    """The columns beside the paths, where all are a class each, with 0 and 1; else none."""
    columns = [name for name in table.columns if name != paths]
    named = len(columns) > 1 and not any(map(str.isdecimal, columns))
    if not named or column_of(columns, None, "") is not None:
        return ()
    flags = {_flag(row.get(name)) for row in table.rows for name in columns}
    return columns if 1 in flags and None not in flags else ()


def _of_columns(values: Mapping[str, Any], root: Path, names: Sequence[str]) -> Tabled:
    """Images with the classes of their columns: one number where each image has one alone."""
    start = len(str(root)) + 1
    if not any(0 in row for row in values.values()):  # CelebA writes -1 for what is not there
        values = {image: [max(0, each) for each in row] for image, row in values.items()}
    alone = all(row.count(1) == 1 and -1 not in row for row in values.values())
    images = {
        id_of(image[start:]): (image, values[image].index(1) if alone else values[image])
        for image in sorted(values)
    }
    return Tabled(images, tuple(names), len(names), boxes=False)


def _numbered(
    values: Mapping[str, Any], root: Path, place: str, first: int | None, *, boxes: bool
) -> Tabled:
    start = len(str(root)) + 1
    if not boxes:
        labels = {image: label_of(value) for image, value in values.items()}
        known = labelling(labels.values(), first, place)
        targets: dict[str, Any] = {image: known.numbers[label] for image, label in labels.items()}
    else:
        targets = {
            image: objects_of(value, f"{place}, {image[start:]}") for image, value in values.items()
        }
        every = [each for objects in targets.values() for each in objects]
        known = labelling((each["category_id"] for each in every), first, place)
        for each in every:
            each["category_id"] = known.numbers[each["category_id"]]
    images = {id_of(image[start:]): (image, targets[image]) for image in sorted(values)}
    return Tabled(images, known.names, known.count, boxes)


class _Index:
    """Images by what a table may call them: a path from some folder, the file's name, its stem."""

    def __init__(self, places: Sequence[str], root: Path, base: Path) -> None:
        self._count = len(places)
        self._by_path: dict[str, str] = {}
        names: Counter[str] = Counter()
        for place in places:
            name = os.path.basename(place)
            names.update({name, os.path.splitext(name)[0]})
            for start in (root, base):
                self._by_path[os.path.relpath(place, start).replace(os.sep, "/")] = place
        self._by_name = {
            called: place
            for place in places
            for called in (os.path.basename(place), os.path.splitext(os.path.basename(place))[0])
            if names[called] == 1
        }

    def __len__(self) -> int:
        return self._count

    def find(self, called: Any) -> str | None:
        if not isinstance(called, str):
            return None
        path = called.replace("\\", "/").removeprefix("./")
        return self._by_path.get(path) or self._by_name.get(path.rpartition("/")[2])


def _with_paths(table: DataTable, index: _Index) -> tuple[DataTable, str]:
    """The table with its header taken off, and the column of the paths.

    The column is empty where a table without paths has one label for each image, in their order.
    """
    if table.first and not any(map(index.find, table.first)) and len(table.rows) > 1:
        titled = table.with_header()
        if path := _paths(titled, index):
            return titled, path
    return table, _paths(table, index) or _in_order(table, index)


def _paths(table: DataTable, index: _Index) -> str | None:
    counts = {
        name: sum(index.find(row.get(name)) is not None for row in table.rows[:_LOOKED_AT])
        for name in table.columns
    }
    best = max(counts, key=lambda name: counts[name], default="")
    return best if counts.get(best) else None


def _in_order(table: DataTable, index: _Index) -> str:
    if table.columns == ("0",) and len(table.rows) == len(index):
        return ""
    row = excerpt(str(dict(table.rows[0])), 200)
    message = f"no column names images of the folder; the first row is {row}"
    raise InputError(message, place=str(table.path), hint="wanted a path and a label for each image")


def _labels(table: DataTable, paths: str, wanted: str | None) -> str:
    """The column of the labels. Raises `InputError`."""
    others = [name for name in table.columns if name != paths]
    column = column_of(others, wanted, str(table.path))
    if column is None and others and (len(others) == 1 or all(name.isdecimal() for name in others)):
        column = others[0]
    if column is None:
        message = f"it is not known which column has the labels: {excerpt(', '.join(others), 200)}"
        hint = "target: the name of the column"
        raise InputError(message, place=str(table.path), hint=hint)
    return column


def read(path: Path) -> DataTable:
    """The table in a file, by its suffix. Raises `InputError`."""
    suffix = path.suffix.lower()
    text = text_of(path, _HINT, regular_files.MOST_JSON_BYTES)
    if suffix in (".json", ".jsonl", ".ndjson"):
        try:
            return DataTable(path, tuple(_json_rows(text, path, lines=suffix != ".json")))
        except (ValueError, RecursionError) as error:
            message = f"this is no JSON: {excerpt(str(error), 200)}"
            raise InputError(message, place=str(path), hint=_HINT) from error
    lines = [line for line in text.splitlines() if line.strip()]
    separator = max(_SEPARATORS, key=lines[0].count) if lines else ","
    if suffix in (".csv", ".tsv") or (lines and separator in lines[0]):
        try:
            cells = [row for row in csv.reader(text.splitlines(), delimiter=separator) if any(row)]
        except csv.Error as error:
            raise InputError(f"this is no table: {error}", place=str(path), hint=_HINT) from error
    else:
        cells = [line.strip().rsplit(None, 1) for line in lines]
    if not cells:
        raise InputError("the table is empty", place=str(path), hint=_HINT)
    rows = ({str(n): cell.strip() for n, cell in enumerate(row)} for row in cells)
    return DataTable(path, tuple(rows), [cell.strip() for cell in cells[0]])


def _json_rows(text: str, path: Path, *, lines: bool) -> Iterator[Mapping[str, Any]]:
    """Rows of JSON: mappings, pairs, or one mapping from paths to labels. Raises ValueError."""
    content: Any = [json.loads(line) for line in text.splitlines() if line.strip()] if lines else None
    content = json.loads(text) if content is None else content
    if isinstance(content, dict) and isinstance(content.get("labels"), list):
        content = content["labels"]
    if isinstance(content, dict):
        content = list(content.items())
    if not isinstance(content, list):
        raise ValueError("found no list and no mapping")
    for number, row in enumerate(content, 1):
        if isinstance(row, list | tuple) and len(row) == 2:
            yield {_FILE_NAME: row[0], _LABEL: row[1]}
        elif isinstance(row, dict):
            yield row
        else:
            raise ValueError(f"row {number} is {excerpt(repr(row))}, wanted a path and a label")
