"""Tables beside images: CSV, JSON, JSON lines and plain text, with a row for each image."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli.data.text_files import text_of
from optcli.errors import InputError, excerpt
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
