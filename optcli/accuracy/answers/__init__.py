"""Answers that another machine gave for the evaluation set, read from a file.

Outputs by sample (npz: `Arrays`), COCO's results (JSON: `detections`), or a table (CSV: `classes`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from optcli.accuracy.metrics import Predictions
from optcli.data.layouts.npz import Archive
from optcli.errors import InputError, did_you_mean, excerpt
from optcli.sample import Batch

if TYPE_CHECKING:
    import numpy as np

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


_IDS = ("ids", "id")
_BY_SAMPLE = "without an array `ids` each array is a sample's output"
_WANTED = "wanted an array `ids`, and one by each output's name with a row a sample"


class Arrays(Answers):
    """Rows of outputs as the model gives them.

    Of one output the name does not count. Shapes are the baseline's; dimensions of 1 may be left out or
    added.
    """

    are_outputs = True

    def __init__(self, path: Path, outputs: Outputs, work: EvaluationWork) -> None:
        import numpy as np

        archive = Archive.of(path)
        ids_name = next((name for name in _IDS if name in archive.names), None)
        if ids_name is not None:
            ids = [_text(each) for each in archive.rows(ids_name).ravel()]
            arrays = {name: archive.rows(name) for name in archive.names if name not in _IDS}
        else:
            ids = list(archive.names)
            rows = [archive.rows(name) for name in ids]
            shapes = sorted({row.shape for row in rows})
            if len(shapes) != 1:
                shapes_text = " and ".join(str(list(shape)) for shape in shapes[:2]) or "no array"
                raise InputError(f"{_BY_SAMPLE}: found {shapes_text}", place=str(path), hint=_WANTED)
            arrays = {work.output or (outputs[0][0] if outputs else ""): np.stack(rows)}
        super().__init__(path, ids)
        self._by_sample = ids_name is None
        self._outputs = self._named(arrays, outputs) if outputs else {}

    def seen(
        self, work: EvaluationWork, batch: Batch, places: Sequence[int | None]
    ) -> tuple[Predictions, Records]:
        rows = [place for place in places if place is not None]
        outputs = {name: array[rows] for name, array in self._outputs.items()}
        seen = work.seen(batch, len(batch.ids), outputs)
        return seen, work.records(seen)

    def _named(self, arrays: dict[str, np.ndarray], outputs: Outputs) -> dict[str, np.ndarray]:
        """The arrays by the baseline's names, in its order and shapes."""
        shapes = dict(outputs)
        if not arrays:
            raise self.wrong("the file has ids and no output", _WANTED)
        if len(arrays) == len(shapes) == 1:
            arrays = {next(iter(shapes)): next(iter(arrays.values()))}
        for name, array in arrays.items():
            if name not in shapes:
                raise self.wrong(
                    f"the baseline has no output {excerpt(name)!r}, it has {', '.join(shapes)}",
                    did_you_mean(name, list(shapes)) or "call the arrays as the baseline's outputs",
                )
            if array.dtype.kind not in "biuf":
                raise self.wrong(f"output {name!r} holds {array.dtype} values", "write numbers")
            if len(array) != len(self.positions):
                raise self.wrong(
                    f"output {name!r} has {len(array)} rows, and there are {len(self.positions)} ids",
                    _WANTED,
                )
            arrays[name] = self._fitted(name, array, shapes[name])
        return {name: arrays[name] for name in shapes if name in arrays}

    def _fitted(self, name: str, array: np.ndarray, shape: tuple[int, ...] | None) -> np.ndarray:
        if shape is None or array.shape[1:] == shape:
            return array
        if [size for size in array.shape[1:] if size != 1] == [size for size in shape if size != 1]:
            return array.reshape(len(array), *shape)
        if self._by_sample:
            raise self.wrong(f"{_BY_SAMPLE}: found {list(array.shape[1:])}, not {list(shape)}", _WANTED)
        raise self.wrong(
            f"a sample of output {name!r} has the shape {list(array.shape[1:])}, the baseline's"
            f" {list(shape)}",
            "write the output as the model gives it, in the same order of dimensions",
        )


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
