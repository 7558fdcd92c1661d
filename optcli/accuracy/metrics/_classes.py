"""What all metrics of classification read: scores of shape batch x classes, and class numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from optcli.accuracy.metrics import ByClass, Metric, Predictions
from optcli.errors import InputError
from optcli.settings.outputs import Kind

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records

BINS = 15


class Classification(Metric):
    """Records of every classification metric: `label`, `predicted`, `rank` and `confidence`.

    `rank` is how many scores stand before the label's, equal ones in their order; `confidence` is the
    largest softmax probability, or the largest score where a row is probabilities already.
    """

    guesses: ClassVar[int] = 1
    """How many classes count as one answer."""
    reads_scores: ClassVar[bool] = False
    """Whether the order of the classes does not suffice."""
    reads: ClassVar[Kind | None] = "logits"

    def scores_of(self, seen: Predictions) -> np.ndarray:
        """Scores of classes, float64 `[samples, classes]`. Raises `InputError`."""
        return score_rows(seen.scores())

    def records(self, seen: Predictions) -> Records:
        import numpy as np

        scores = self.scores_of(seen)
        labels = np.array(
            [class_number(t, scores.shape[1], i) for t, i in zip(seen.targets, seen.ids, strict=True)]
        )
        predicted, confidence = best(scores)
        clean = ~np.isnan(scores).any(axis=1)
        own = scores[np.arange(len(labels)), labels][:, None]
        before = np.arange(scores.shape[1])[None] < labels[:, None]
        rank = (scores > own).sum(1) + ((scores == own) & before).sum(1)
        # A row with NaN in it is never right: NaN could stand anywhere in the order.
        rank = np.where(clean, rank, scores.shape[1])
        return {
            "label": labels.astype(np.int32),
            "predicted": predicted,
            "rank": rank.astype(np.int32),
            "confidence": confidence,
            "classes": np.full(len(labels), scores.shape[1], np.int32),
        }

    def check(self, target: Any, place: str, seen: Predictions) -> None:
        class_number(target, self.scores_of(seen).shape[1], place)

    def value(self, records: Records) -> float:
        right = self.right(records)
        assert right is not None
        return float(right.mean())

    def resampled(self, records: Records, counts: np.ndarray) -> np.ndarray:
        right = self.right(records)
        assert right is not None
        shares: np.ndarray = counts @ right.astype(float) / counts.sum(axis=1)
        return shares

    def chance(self, records: Records) -> float | None:
        return guessed(records, self.guesses)

    def by_class(self, records: Records) -> ByClass | None:
        right = self.right(records)
        return None if right is None else shares_by_class(records["label"], right)

    def figures(self, records: Records) -> dict[str, float]:
        """Top-1, top-5 and calibration error; of classes without scores what these tell."""
        figures = {"top1": float((records["rank"] < 1).mean())}
        if records["classes"][0] > 5 and records.get("listed", [5])[0] >= 5:
            figures["top5"] = float((records["rank"] < 5).mean())
        if "confidence" in records:
            figures["calibration_error"] = calibration_error(records)
        return figures


def shares_by_class(label: np.ndarray, right: np.ndarray) -> ByClass:
    """The share of each class's samples that is right; arrays `[samples]`."""
    import numpy as np

    labels, position, samples = np.unique(label, return_inverse=True, return_counts=True)
    return ByClass(labels, samples, np.bincount(position, weights=right) / samples)


def guessed(records: Records, guesses: int) -> float:
    """The share that is right for whoever always names the `guesses` most frequent labels."""
    import numpy as np

    counts = np.sort(np.bincount(records["label"]))[::-1]
    return float(max(guesses / int(records["classes"][0]), counts[:guesses].sum() / counts.sum()))


def calibration_error(records: Records, counts: np.ndarray | None = None) -> Any:
    """Expected calibration error over 15 equal bins of confidence, as a fraction.

    Σ over bins of |right - confidence| summed in the bin, over all samples (Guo et al., On
    Calibration of Modern Neural Networks, 2017). With `counts[resamples, samples]` an array of it.
    """
    import numpy as np

    confidence = records["confidence"].astype(float)
    gap = (records["rank"] < 1).astype(float) - confidence
    place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    binned = np.zeros((len(gap), BINS))
    binned[np.arange(len(gap)), place] = gap
    if counts is None:
        return float(np.abs(binned.sum(axis=0)).sum() / len(gap))
    return np.abs(counts @ binned).sum(axis=1) / counts.sum(axis=1)


def best(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The first of the largest scores of each row, -1 where it has NaN, and its probability."""
    import numpy as np

    # A class of minus infinity, which a mask forbids, has no probability.
    clean = np.isfinite(scores.max(axis=1))
    safe = np.where(clean[:, None], scores, 0.0)
    predicted = np.where(np.isnan(scores).any(axis=1), -1, np.argmax(scores, axis=1)).astype(np.int32)
    top = safe.max(axis=1)
    softmax = 1 / np.exp(safe - top[:, None]).sum(axis=1)
    # Probabilities in 8 bits do not add up to 1 to the last digit.
    already = (safe.min(axis=1) >= 0) & (top <= 1.001) & (np.abs(safe.sum(axis=1) - 1) < 0.05)
    return predicted, np.clip(np.where(already, top, softmax), 0, 1)


def score_rows(outputs: np.ndarray) -> np.ndarray:
    """Scores as float64 `[samples, classes]`. Raises `InputError` for another shape."""
    import numpy as np

    rows = rows_of_scores(outputs)
    if rows is None:
        shape = " x ".join(str(size) for size in outputs.shape)
        raise InputError(
            f"the metric wants scores of shape batch x classes, found {shape}",
            place="accuracy.output",
            hint="name the output that holds the scores under `accuracy: {output: ...}`",
        )
    return rows.astype(np.float64)


def rows_of_scores(outputs: np.ndarray) -> np.ndarray | None:
    """`[samples, classes]`, with trailing ones taken away; None for another shape."""
    if outputs.ndim > 2 and all(size == 1 for size in outputs.shape[2:]):
        outputs = outputs.reshape(outputs.shape[:2])
    return outputs if outputs.ndim == 2 else None


def class_number(target: Any, classes: int, place: str) -> int:
    """A label as a number of one of `classes`. Raises `InputError` at `place`."""
    import numpy as np

    value = (
        target.item() if isinstance(target, np.ndarray | np.generic) and target.size == 1 else target
    )
    if isinstance(value, bool) or not isinstance(value, int):
        shown = repr(target) if len(repr(target)) < 60 else f"a {type(target).__name__}"
        raise InputError(
            f"the metric wants class numbers as labels, found {shown}",
            place=place,
            hint="give the data whole numbers from 0 as labels, or remove `accuracy:`",
        )
    if not 0 <= value < classes:
        raise InputError(
            f"label {value} is out of range: the model has {classes} classes, 0 to {classes - 1}",
            place=place,
            hint="the labels must be the class numbers that the model was trained with",
        )
    return value
