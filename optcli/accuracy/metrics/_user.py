"""A metric of the user's own: `python:FILE.py:CALLABLE`."""

from __future__ import annotations

import inspect
import math
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import ConfigDict

from optcli.accuracy.metrics import Metric, Predictions
from optcli.errors import InputError
from optcli.settings import user_code

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records

_WANTED = "metric(outputs, target, meta) gives a number, a truth value or a row of numbers"


class UserMetric(Metric):
    """Calls the user's function for every sample: `metric(outputs, target, meta)`.

    `outputs` are the sample's arrays by name, or what postprocess made of them. It gives a truth value
    or a number, and the metric is their mean; or, where the callable has a method `total`, a row of
    numbers, of which `total(rows)` makes the value. An attribute `better = "lower"` turns the
    direction; `range = (low, high)` says between which bounds the metric lies, where that is not 0 and
    1: what samples not seen could cost depends on it. `chance = 0.5` is the value that guessing
    reaches; where the function gives truth values and the targets are whole numbers it is, unless
    declared, the share of the most frequent one. A class is made once, with the options; a function
    gets them as keyword arguments.
    """

    needs_labels: ClassVar[bool] = False  # the function may do without
    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    reference: str
    folder: Path
    function: Any = None
    direction: Literal["higher", "lower"] = "higher"
    span: float | None = None
    guessing: float | None = None

    @staticmethod
    def of(reference: str, folder: Path, options: dict[str, Any]) -> UserMetric:
        """Import it. Raises `InputError` where that fails or it cannot be called."""
        loaded = user_code.load(reference, folder)
        bound: Any = loaded
        if inspect.isclass(loaded):
            bound = loaded(**options)
        elif options:

            def bound(*arguments: Any) -> Any:
                return loaded(*arguments, **options)

        if not callable(bound):
            raise InputError(f"{reference} cannot be called", place="accuracy.metric", hint=_WANTED)
        direction = "lower" if getattr(loaded, "better", "higher") == "lower" else "higher"
        return UserMetric(
            reference=reference,
            folder=folder,
            function=bound,
            direction=direction,
            span=_span(getattr(loaded, "range", None), reference),
            guessing=_guessing(getattr(loaded, "chance", None), reference),
        )

    def better(self) -> Literal["higher", "lower"]:
        return self.direction

    def records(self, seen: Predictions) -> Records:
        import numpy as np

        rows = []
        for index, name in enumerate(seen.ids):
            outputs = seen.of_sample(index) if seen.decoded is None else seen.decoded[index]
            rows.append(self._row(outputs, seen.targets[index], seen.meta[index], name))
        try:
            targets = np.array([_whole(target) for target in seen.targets])
            return {"score": np.stack(rows), "whole": targets}
        except ValueError as error:
            raise InputError(
                "the metric gives rows of several lengths", place=self.reference, hint=_WANTED
            ) from error

    def value(self, records: Records) -> float:
        return self._total(records["score"])

    def resampled(self, records: Records, counts: np.ndarray) -> np.ndarray:
        import numpy as np

        score = records["score"]
        if score.ndim == 1 and not hasattr(self.function, "total"):
            shares: np.ndarray = counts @ score.astype(float) / counts.sum(axis=1)
            return shares
        numbers = np.arange(len(score))
        return np.array([self._total(score[np.repeat(numbers, row)]) for row in counts])

    def largest_change(self, records: Records) -> float | None:
        """The declared range, or 1 where all values lie between 0 and 1; twice that of a `total`.

        A ratio of sums, as IoU and F1 are, can lose twice the share of samples that come out wrong.
        """
        import numpy as np

        summed = hasattr(self.function, "total")
        values = np.array([self.value(records)]) if summed else records["score"].astype(float)
        span = self.span
        if span is None and values.min() >= 0 and values.max() <= 1:
            span = 1.0
        return None if span is None else span * (2 if summed else 1)

    def not_numbers(self, records: Records) -> np.ndarray:
        import numpy as np

        score = records["score"].reshape(len(records["score"]), -1)
        positions: np.ndarray = np.flatnonzero(~np.isfinite(score.astype(float)).all(axis=1))
        return positions

    def right(self, records: Records) -> np.ndarray | None:
        score = records["score"]
        plain = score.dtype == bool and score.ndim == 1 and not hasattr(self.function, "total")
        return score if plain and self.direction == "higher" else None

    def chance(self, records: Records) -> float | None:
        import numpy as np

        if self.guessing is not None or self.right(records) is None:
            return self.guessing
        _, counts = np.unique(records["whole"], return_counts=True)
        # One and the same target for all is no label, and nor is what is no number.
        labelled = len(counts) > 1 and bool(np.isfinite(records["whole"]).all())
        return float(counts.max() / counts.sum()) if labelled else None

    def _row(self, outputs: Any, target: Any, meta: Any, name: str) -> np.ndarray:
        import numpy as np

        with self._running(f"sample {name}"):
            row = np.asarray(self.function(outputs, target, dict(meta)))
        summed = hasattr(self.function, "total")
        if row.dtype.kind not in "biuf" or (row.ndim and not summed):
            raise InputError(
                f"the metric gives {row.dtype} {list(row.shape)} for sample {name}",
                place=self.reference,
                hint=f"{_WANTED}; rows need a class with a method total(rows)",
            )
        return row if row.dtype == bool else row.astype(np.float64)

    def _total(self, score: np.ndarray) -> float:
        if not hasattr(self.function, "total"):
            return float(score.mean())
        with self._running("total"):
            return float(self.function.total(score))

    def _running(self, where: str) -> AbstractContextManager[None]:
        hint = "correct the code; optcli calls metric(outputs, target, meta)"
        return user_code.running(self.reference, self.folder, f"the metric, in {where},", hint)


def _whole(target: Any) -> float:
    """A target that is one whole number; NaN for any other."""
    import numpy as np

    array = np.asarray(target) if isinstance(target, int | np.ndarray | np.generic) else None
    if array is None or array.size != 1 or array.dtype.kind not in "biu":
        return float("nan")
    return float(array.item())


def _guessing(declared: Any, reference: str) -> float | None:
    """The declared value of guessing; None where none is declared. Raises `InputError`."""
    if declared is None:
        return None
    is_number = isinstance(declared, int | float) and not isinstance(declared, bool)
    if not is_number or not math.isfinite(declared):
        raise InputError(
            f"the metric's chance is {declared!r}, wanted a number",
            place=reference,
            hint="such as chance = 0.1, the value that guessing without the inputs reaches",
        )
    return float(declared)


def _span(bounds: Any, reference: str) -> float | None:
    """How far the declared bounds lie apart; None where none are declared. Raises `InputError`."""
    if bounds is None:
        return None
    try:
        low, high = (float(bound) for bound in bounds)
    except (TypeError, ValueError):
        low = high = 0.0
    if not 0 < high - low < float("inf"):
        raise InputError(
            f"the metric's range is {bounds!r}, wanted (low, high)",
            place=reference,
            hint="range = (0, 1), the smallest and the largest value that it can have",
        )
    return high - low
