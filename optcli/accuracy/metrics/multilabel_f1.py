"""F1 of images with several classes each: over all classes and images together (micro)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from optcli.accuracy.metrics import ByClass
from optcli.accuracy.metrics._multi_label import MultiLabel
from optcli.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records

# Outside of 0 to 1 by more than this, scores are no probabilities: what INT8 rounds is less.
_ROUNDED = 0.1


class MultilabelF1(MultiLabel):
    """2 · TP / (2 · TP + FP + FN) at a threshold, over all classes and images together.

    Outputs and targets are those of `multilabel_map`. A further figure, macro F1, is the average
    over the classes that are there.
    """

    threshold: float = Field(0.5, gt=0, lt=1, description="probability from which a class is named")
    activation: Literal["sigmoid", "none"] | None = Field(
        None,
        description="`sigmoid`: the model gives logits; `none`: it gives probabilities; default: logits"
        " where any score of the set lies below -0.1 or above 1.1",
    )

    def over_all(self, records: Records) -> Records:
        import numpy as np

        score = records["score"]
        activation = self.activation or ("sigmoid" if _are_logits(score) else "none")
        if activation == "none" and self.activation is not None and _are_logits(score):
            raise InputError(
                f"the scores lie between {np.nanmin(score):.3g} and {np.nanmax(score):.3g}, and"
                " `activation: none` takes them for probabilities",
                place="accuracy.options",
                hint="accuracy: {options: {activation: sigmoid}} for logits",
            )
        limit = self.threshold
        if activation == "sigmoid":
            limit = float(np.log(limit) - np.log1p(-limit))
        counted = {k: v for k, v in records.items() if k != "score"}
        return {**counted, "named": score >= np.float32(limit)}  # NaN is not named

    def value(self, records: Records) -> float:
        import numpy as np

        if not (records["truth"] == 1).any():
            raise InputError(
                f"multilabel_f1 finds no class in {len(records['truth'])} targets",
                place="data.evaluation",
                hint="look at the labels: 1 says that a class is there",
            )
        return float(self.resampled(records, np.ones((1, len(records["truth"]))))[0])

    def resampled(self, records: Records, counts: np.ndarray) -> np.ndarray:
        right, named, there = (part.sum(axis=1) for part in _parts(records))
        return _f1(counts @ right, counts @ named, counts @ there)

    def by_class(self, records: Records) -> ByClass | None:
        import numpy as np

        right, named, there = (part.sum(axis=0) for part in _parts(records))
        classes = np.flatnonzero(there)
        return ByClass(classes, there[classes], _f1(right, named, there)[classes])

    def figures(self, records: Records) -> dict[str, float]:
        right, named, there = (part.sum(axis=0) for part in _parts(records))
        return {
            "macro_f1": float(_f1(right, named, there)[there > 0].mean()),
            "precision": float(right.sum() / max(1, named.sum())),
            "recall": float(right.sum() / max(1, there.sum())),
        }

    def chance(self, records: Records) -> float | None:
        """The best that naming the same classes for every image gives: the most frequent ones."""
        import numpy as np

        truth = records["truth"]
        there = np.sort((truth == 1).sum(axis=0))[::-1]
        known = max(1.0, float((truth >= 0).sum() / truth.shape[1]))
        named = known * np.arange(1, truth.shape[1] + 1)
        return float(_f1(np.cumsum(there), named, np.full(len(there), there.sum())).max())

    def largest_change(self, records: Records) -> float | None:
        return 2.0  # a ratio of sums loses at most twice the share of samples that come out wrong


def _are_logits(score: np.ndarray) -> bool:
    return bool(((score < -_ROUNDED) | (score > 1 + _ROUNDED)).any())


def _parts(records: Records) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is named rightly, named, and there, of what is known; bool `[samples, classes]`."""
    there, named = records["truth"] == 1, records["named"] & (records["truth"] >= 0)
    return there & named, named, there


def _f1(right: np.ndarray, named: np.ndarray, there: np.ndarray) -> np.ndarray:
    """2 · right / (named + there); 0 where neither is."""
    import numpy as np

    sums = np.asarray(named + there, np.float64)
    f1: np.ndarray = np.divide(2.0 * right, sums, out=np.zeros_like(sums), where=sums > 0)
    return f1
