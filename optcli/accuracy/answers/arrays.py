"""Outputs of another machine: an npz with `ids` and an array by output, or an array by sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optcli.accuracy.answers import Answers, Outputs
from optcli.accuracy.metrics import Predictions
from optcli.data.layouts.npz import Archive
from optcli.errors import InputError, did_you_mean, excerpt
from optcli.sample import Batch

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records
    from optcli.accuracy.work import EvaluationWork

_IDS = ("ids", "id")
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
                raise InputError(
                    f"without an array `ids` each array is a sample's output: found {shapes_text}",
                    place=str(path),
                    hint=_WANTED,
                )
            arrays = {work.output or (outputs[0][0] if outputs else ""): np.stack(rows)}
        super().__init__(path, ids)
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
        raise self.wrong(
            f"a sample of output {name!r} has the shape {list(array.shape[1:])}, the baseline's"
            f" {list(shape)}",
            "write the output as the model gives it, in the same order of dimensions",
        )


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
