"""Answers that another machine gave for the evaluation set, read from a file: one file, one form.

`arrays` are outputs by sample (npz), `detections` COCO's results (JSON), `classes` a table (CSV).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from optcli.accuracy.metrics import Predictions
from optcli.errors import InputError, excerpt
from optcli.sample import Batch

if TYPE_CHECKING:
    from optcli.accuracy.metrics import Records
    from optcli.accuracy.work import EvaluationWork

Outputs = Sequence[tuple[str, tuple[int, ...] | None]]
_SHOWN = 3
WANTED = "wanted .npz (outputs by sample), .json (COCO's results) or .csv (a table of classes)"


class Answers(ABC):
    """The answers of a file. `keys` are what it calls the samples that it answers.

    `are_outputs` says that a postprocess and the metric have all their work to do yet. `can_be_empty`:
    a sample that is not named has an answer all the same, and it is nothing.
    """

    are_outputs = False
    can_be_empty = False

    def __init__(self, path: Path, keys: Sequence[str]) -> None:
        self.path = path
        self.positions = {key: position for position, key in enumerate(keys)}
        if len(self.positions) < len(keys):
            seen: set[str] = set()
            twice = next(key for key in keys if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise self.wrong(f"sample {excerpt(twice)!r} has two answers", "write one for each sample")
        self._taken: dict[str, str] = {}

    def place_of(self, name: str, meta: Mapping[str, Any]) -> int | None:
        """Where the answer for a sample is; None where there is none.

        A sample is named by its id, by the number of its image, or by its file's name with or without
        suffix. Raises `InputError` where one name means two samples.
        """
        file = PurePosixPath(name)
        for key in (name, str(meta.get("image_id", name)), file.name, file.stem):
            if key in self.positions:
                other = self._taken.setdefault(key, name)
                if other != name:
                    raise self.wrong(
                        f"the name {excerpt(key)!r} fits two samples: {listed([other, name])}",
                        "name samples by their ids: verify-accuracy --write-inputs writes them",
                    )
                return self.positions[key]
        return None

    def require_known(self) -> None:
        """Raise `InputError` where the file answers what no sample is called."""
        unknown = [key for key in self.positions if key not in self._taken]
        if unknown:
            raise self.wrong(
                f"{len(unknown)} of {len(self.positions)} answers are for no sample of the evaluation"
                f" set: {listed(unknown)}",
                "name samples by their ids: verify-accuracy --write-inputs writes them",
            )

    @abstractmethod
    def seen(
        self, work: EvaluationWork, batch: Batch, places: Sequence[int | None]
    ) -> tuple[Predictions, Records]:
        """What the answers say of these samples, and the metric's records. Raises `InputError`.

        `places` are those of their answers; None: there is none.
        """

    def wrong(self, message: str, hint: str) -> InputError:
        """An error of this file."""
        return InputError(message, place=str(self.path), hint=hint)


def read(path: Path, outputs: Outputs, work: EvaluationWork) -> Answers:
    """The answers of a file, checked as far as it is read alone.

    `outputs` are the baseline's, each with the shape of one sample; none: whom it answers is asked for
    alone. Raises `InputError`, and `TrustError` for pickled arrays.
    """
    from optcli.accuracy.answers.arrays import Arrays
    from optcli.accuracy.answers.classes import Classes
    from optcli.accuracy.answers.detections import DetectionAnswers

    try:
        if path.suffix == ".npz":
            return Arrays(path, outputs, work)
        if path.suffix == ".json":
            return DetectionAnswers(path, work)
        if path.suffix in (".csv", ".tsv"):
            return Classes(path, outputs, work)
    except OSError as error:
        raise InputError(
            f"the answers cannot be read: {error.strerror or error}", place=str(path), hint=WANTED
        ) from error
    raise InputError(f"found the suffix {path.suffix!r}", place=str(path), hint=WANTED)


def listed(names: Sequence[str]) -> str:
    """The first of some names."""
    return ", ".join(excerpt(name) for name in names[:_SHOWN]) + (
        ", ..." if len(names) > _SHOWN else ""
    )


def part_of(batch: Batch, rows: Sequence[int]) -> Batch:
    """Some samples of a batch."""
    inputs = {
        name: array if name in batch.whole else array[list(rows)]
        for name, array in batch.inputs.items()
    }
    return Batch(
        ids=tuple(batch.ids[row] for row in rows),
        inputs=inputs,
        targets=tuple(batch.targets[row] for row in rows),
        meta=tuple(batch.meta[row] for row in rows),
        whole=batch.whole,
    )
