"""What metrics of embeddings share: rows of length 1, and each sample's nearest among the others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from optcli.accuracy.metrics import ByClass, Metric, Predictions
from optcli.accuracy.metrics._classes import class_number, rows_of_scores, shares_by_class
from optcli.errors import InputError
from optcli.settings.outputs import Kind

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records

_CELLS = 4_000_000  # of one table of similarities
_CLASSES = 1 << 31  # an embedding does not say how many there are


class Retrieval(Metric):
    """Each sample is looked up among all others of the evaluation set, by the cosine.

    `label` is a sample's class, `mates` how many others have it. A sample whose class no other has
    cannot be right, and does not count.

    Resampling draws samples as questions and leaves the set that is searched as it is: a sample that a
    resample has twice would find itself. The interval therefore speaks of other images that are looked
    up in this very set.
    """

    reads: ClassVar[Kind | None] = "embedding"

    def records(self, seen: Predictions) -> Records:
        import numpy as np

        labels = [_label(target, name) for target, name in zip(seen.targets, seen.ids, strict=True)]
        return {"embedding": unit_rows(seen.scores()), "label": np.array(labels, np.int64)}

    def check(self, target: Any, place: str, seen: Predictions) -> None:
        _label(target, place)

    def value(self, records: Records) -> float:
        return float(self._right(records)[records["mates"] > 0].mean())

    def right(self, records: Records) -> np.ndarray | None:
        return self._right(records) if (records["mates"] > 0).all() else None

    def resampled(self, records: Records, counts: np.ndarray) -> np.ndarray:
        counted = (records["mates"] > 0).astype(float)
        shares: np.ndarray = counts @ (counted * self._right(records)) / (counts @ counted)
        return shares

    def by_class(self, records: Records) -> ByClass | None:
        counted = records["mates"] > 0
        return shares_by_class(records["label"][counted], self._right(records)[counted])

    @abstractmethod
    def _right(self, records: Records) -> np.ndarray:
        """Whether each sample is right, bool `[samples]`."""


def mates(label: np.ndarray) -> np.ndarray:
    """How many others have a sample's class. Raises `InputError` where nobody has any."""
    import numpy as np

    _, position, sizes = np.unique(label, return_inverse=True, return_counts=True)
    others: np.ndarray = sizes[position] - 1
    if not others.any():
        raise InputError(
            f"no two of the {len(label)} samples have the same class: none can be found",
            place="data.evaluation",
            hint="evaluate on a set with at least two images of a class",
        )
    return others


def nearest(embedding: np.ndarray, count: int) -> Iterator[tuple[slice, np.ndarray]]:
    """The numbers of the `count` others nearest to each sample, nearest first, some rows at a time.

    `embedding[samples, size]` are rows of length 1. Equally near ones stand in their order. Raises
    `InputError` where there are not so many others.
    """
    import numpy as np

    total = len(embedding)
    if count >= total:
        raise InputError(
            f"found {total} samples, and each is compared with its {count} nearest others",
            place="accuracy.options",
            hint="evaluate on more samples, or set a smaller k",
        )
    clean = np.nan_to_num(embedding)
    step = max(1, _CELLS // total)
    for start in range(0, total, step):
        rows = slice(start, min(start + step, total))
        similar = clean[rows] @ clean.T
        similar[np.arange(len(similar)), np.arange(start, rows.stop)] = -np.inf
        near = np.sort(np.argpartition(-similar, count - 1, axis=1)[:, :count], axis=1)
        order = np.argsort(-np.take_along_axis(similar, near, axis=1), axis=1, kind="stable")
        yield rows, np.take_along_axis(near, order, axis=1)


def unit_rows(output: np.ndarray) -> np.ndarray:
    """Embeddings as float32 `[samples, size]` of length 1; a row of zeros stays as it is.

    Raises `InputError` for another shape.
    """
    import numpy as np

    rows = rows_of_scores(output)
    if rows is None:
        shape = " x ".join(str(size) for size in output.shape)
        raise InputError(
            f"the metric wants embeddings of shape batch x size, found {shape}",
            place="accuracy.output",
            hint="name the output that holds them under `accuracy: {output: ...}`",
        )
    rows = rows.astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)


def _label(target: Any, place: str) -> int:
    return class_number(target, _CLASSES, place)
