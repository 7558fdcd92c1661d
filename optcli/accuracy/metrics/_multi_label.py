"""What metrics of several classes an image read: a score and a truth for each class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from optcli.accuracy.metrics import Metric, Predictions
from optcli.accuracy.metrics._classes import class_number, score_rows
from optcli.errors import InputError
from optcli.settings.outputs import Kind

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records

_WANTED = "wanted 0 and 1 for every class (-1: not known), or the numbers of the classes"


class MultiLabel(Metric):
    """Records are `score` and `truth`, `[samples, classes]`; truth is 1, 0, or -1 where not known."""

    reads: ClassVar[Kind | None] = "scores"
    low: ClassVar[float | None] = 0.25

    targets: Literal["multi_hot", "numbers"] | None = Field(
        None,
        description="what a target is: 0 and 1 for every class, or the numbers of the classes that are"
        " there; default: told from its length and values",
    )

    def records(self, seen: Predictions) -> Records:
        import numpy as np

        scores = score_rows(seen.scores())
        classes = scores.shape[1]
        truths = [
            truth_of(t, classes, i, self.targets) for t, i in zip(seen.targets, seen.ids, strict=True)
        ]
        return {"score": scores.astype(np.float32), "truth": np.stack(truths)}

    def check(self, target: Any, place: str, seen: Predictions) -> None:
        truth_of(target, score_rows(seen.scores()).shape[1], place, self.targets)


def truth_of(target: Any, classes: int, place: str, kind: str | None = None) -> np.ndarray:
    """A target as 1, 0 or -1 for each class, int8 `[classes]`. Raises `InputError` at `place`.

    Of boxes, as data `coco:` gives them, the classes that are in the image count. `absent` are the
    only ones that are known to be none, where there is such an entry.
    """
    import numpy as np

    absent = None
    if isinstance(target, dict) and "labels" in target:
        absent = target.get("absent")
        target, kind = np.unique(np.asarray(target["labels"])), "numbers"
    try:
        row = np.asarray(target if isinstance(target, np.ndarray) else list(target))
    except (TypeError, ValueError):
        row = np.zeros((0, 0))
    if row.ndim != 1 or (row.size and not _is_whole(row)):
        shown = repr(target) if len(repr(target)) < 60 else f"a {type(target).__name__}"
        raise InputError(f"found {shown} as a label of several classes", place=place, hint=_WANTED)
    row = row.astype(np.int64)
    is_hot = len(row) == classes and bool(np.isin(row, (-1, 0, 1)).all())
    numbers = _listed(row)
    if kind is None and is_hot and numbers is not None and numbers.max(initial=-1) < classes:
        raise InputError(
            f"label {row.tolist()} is both 0 or 1 for each of {classes} classes and a list of numbers",
            place=place,
            hint="accuracy: {options: {targets: multi_hot}} or {targets: numbers} says which it is",
        )
    if is_hot and kind != "numbers":
        return row.astype(np.int8)
    if kind == "multi_hot" or numbers is None:
        raise InputError(f"found the label {row.tolist()[:20]}", place=place, hint=_WANTED)
    truth = np.zeros(classes, np.int8) if absent is None else np.full(classes, -1, np.int8)
    for number in absent if absent is not None else ():
        truth[class_number(int(number), classes, place)] = 0
    for number in numbers:
        truth[class_number(int(number), classes, place)] = 1
    return truth


def _is_whole(row: np.ndarray) -> bool:
    import numpy as np

    return row.dtype.kind in "biu" or (row.dtype.kind == "f" and np.array_equal(row, np.rint(row)))


def _listed(row: np.ndarray) -> np.ndarray | None:
    """Class numbers, with the -1 behind them that fill a table up taken away; None: it is no list."""
    import numpy as np

    numbers = row[: len(row) - int(np.argmax(row[::-1] != -1))] if (row != -1).any() else row[:0]
    sound = (numbers >= 0).all() and len(np.unique(numbers)) == len(numbers)
    return numbers if sound else None
