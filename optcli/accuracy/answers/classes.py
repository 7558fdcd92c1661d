"""Classes that another machine named: a CSV with a sample a row, and one class or the first few."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optcli.accuracy.answers import Answers, Outputs
from optcli.accuracy.metrics import Predictions
from optcli.accuracy.metrics._classes import Classification, class_number
from optcli.errors import InputError, did_you_mean, excerpt
from optcli.files import regular_files
from optcli.sample import Batch

if TYPE_CHECKING:
    from optcli.accuracy.metrics import Records
    from optcli.accuracy.work import EvaluationWork

_SAMPLE = ("id", "sample", "image", "image_id", "file", "file_name", "filename", "path", "name")
_CLASS = re.compile(r"(?:class|label|prediction|predicted|category|top)_?(\d*)")
_SCORE = re.compile(r"(?:score|confidence|probability)_?(\d*)")
_WANTED = "wanted a first line such as id,class or id,class,score or id,class1,class2,class3"
_MOST_BYTES = 256 << 20
_MOST_CLASSES = (1 << 31) - 1


class Classes(Answers):
    """The classes of each sample, the surest first, by number or by name; a score goes with the first.

    The score is a probability. Without one there is no calibration error, and with fewer than five
    classes a row there is no top-5.
    """

    def __init__(self, path: Path, outputs: Outputs, work: EvaluationWork) -> None:
        rows = list(_rows(path))
        if not rows:
            raise InputError("the table has no row", place=str(path), hint=_WANTED)
        super().__init__(path, [name for name, _, _ in rows])
        self._listed = len(rows[0][1])
        self._scores = [score for _, _, score in rows]
        metric = work.metric
        name = work.request.settings.metric if work.request.settings else ""
        if metric is not None and not (isinstance(metric, Classification) and metric.reads == "logits"):
            raise self.wrong(
                f"these are classes, and {name} reads more than classes",
                "write the outputs (npz), or name a recipe whose metric is top1",
            )
        if isinstance(metric, Classification) and metric.guesses > self._listed:
            raise self.wrong(
                f"{name} wants {metric.guesses} classes a row, found {self._listed}",
                "write class1 to class5, the surest first",
            )
        if isinstance(metric, Classification) and metric.reads_scores and None in self._scores:
            raise self.wrong(
                f"{name} wants a score in every row",
                "write the largest probability as a column score",
            )
        self._names = work.class_names()
        shape = dict(outputs).get(work.output or (outputs[0][0] if outputs else "")) or ()
        seen = math.prod(shape) if work.request.postprocess is None and shape else _MOST_CLASSES
        self._count = len(self._names) if self._names else seen
        self._classes = self._numbers([classes for _, classes, _ in rows])

    def seen(
        self, work: EvaluationWork, batch: Batch, places: Sequence[int | None]
    ) -> tuple[Predictions, Records]:
        import numpy as np

        rows = [place for place in places if place is not None]
        seen = Predictions(batch.ids, batch.targets, batch.meta, {})
        chosen = np.array([self._classes[row] for row in rows], np.int64)
        predicted = {"predicted": chosen[:, 0].astype(np.int32)}
        if work.metric is None:
            return seen, predicted
        work.require_labels(seen)
        pairs = zip(batch.targets, batch.ids, strict=True)
        labels = np.array([class_number(target, self._count, name) for target, name in pairs])
        hits = chosen == labels[:, None]
        rank = np.where(hits.any(axis=1), hits.argmax(axis=1), self._listed)
        records = {
            **predicted,
            "label": labels.astype(np.int32),
            "rank": rank.astype(np.int32),
            "classes": np.full(len(rows), self._count, np.int32),
            "listed": np.full(len(rows), self._listed, np.int32),
        }
        if None not in self._scores:
            records["confidence"] = np.array([self._scores[row] for row in rows], np.float64)
        return seen, records

    def _numbers(self, rows: Sequence[Sequence[str]]) -> list[list[int]]:
        """The class numbers of every row. Raises `InputError` for what is no class, or two."""
        numbers: dict[str, int] = {}
        words = {word for row in rows for word in row}
        names = {name: number for number, name in enumerate(self._names or ())}
        by_name = words <= names.keys()
        if not by_name and not all(word.isdecimal() for word in words):
            word = min(word for word in words if word not in names and not word.isdecimal())
            wanted = "a class number" + (" or a class name of the data" if names else "")
            raise self.wrong(
                f"found the class {excerpt(word)!r}, wanted {wanted}",
                did_you_mean(word, list(names))
                or "class numbers count from 0, as the data's labels do",
            )
        for word in words:
            number = int(word[:20]) if word.isdecimal() else names[word]
            if by_name and number != names[word]:
                raise self.wrong(
                    f"{excerpt(word)!r} is the name of class {names[word]}, and a class number itself",
                    "rename the classes under class_names:, or write outputs (npz)",
                )
            if number >= self._count:
                last = self._count - 1
                raise self.wrong(
                    f"class {number} is out of range: there are {self._count} classes, 0 to {last}",
                    "class numbers count from 0, as the data's labels do",
                )
            numbers[word] = number
        return [[numbers[word] for word in row] for row in rows]


def _rows(path: Path) -> Iterator[tuple[str, list[str], float | None]]:
    """Name, classes and score of each row. Raises OSError and `InputError`."""
    try:
        text = regular_files.read(path, _MOST_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError("the table is no UTF-8", place=str(path), hint=_WANTED) from error
    table = csv.reader(
        io.StringIO(text, newline=""), delimiter="\t" if path.suffix == ".tsv" else ",", strict=True
    )
    try:
        head = [cell.strip().lower() for cell in next(table, [])]
        sample = next((head.index(name) for name in _SAMPLE if name in head), None)
        classes, scores = (_columns(head, pattern, sample) for pattern in (_CLASS, _SCORE))
        if sample is None or not classes:
            raise InputError(
                f"found the first line {excerpt(','.join(head))!r}", place=str(path), hint=_WANTED
            )
        for row in table:
            if not row:
                continue
            place = f"{path}, line {table.line_num}"
            if len(row) != len(head):
                message = f"found {len(row)} cells, wanted {len(head)}"
                raise InputError(message, place=place, hint=_WANTED)
            score = _score(row[scores[0]], place) if scores else None
            yield row[sample].strip(), [row[column].strip() for column in classes], score
    except csv.Error as error:
        place = f"{path}, line {table.line_num}"
        raise InputError(f"this is no CSV: {error}", place=place, hint=_WANTED) from error


def _columns(head: Sequence[str], pattern: re.Pattern[str], sample: int | None) -> list[int]:
    """The columns whose heads match, in the order of their numbers."""
    ranked = [
        (int(match[1] or 1), column)
        for column, name in enumerate(head)
        if column != sample and (match := pattern.fullmatch(name))
    ]
    return [column for _, column in sorted(ranked)]


def _score(cell: str, place: str) -> float:
    try:
        score = float(cell)
    except ValueError:
        score = math.nan
    if not 0 <= score <= 1:
        message = f"found the score {excerpt(cell)!r}, wanted a probability from 0 to 1"
        raise InputError(message, place=place, hint="write the largest softmax probability")
    return score
