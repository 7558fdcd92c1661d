"""Mean average precision of images with several classes each, the average over classes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli.accuracy.metrics import ByClass
from optcli.accuracy.metrics._multi_label import MultiLabel
from optcli.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records

_CELLS = 4_000_000  # of one table of resamples by samples


class MultilabelMap(MultiLabel):
    """Average precision of each class over all images, averaged over the classes that are there.

    AP is that of scikit-learn's `average_precision_score`: Σ (R(n) - R(n-1)) · P(n) over all
    thresholds. Reads scores or logits `[batch, classes]`, whose order alone counts. A target is 0 and 1
    for every class, where -1 is not known and does not count, or the numbers of the classes that are
    there. A class that no image shows is left out.
    """

    def value(self, records: Records) -> float:
        import numpy as np

        if not (records["truth"] == 1).any():
            raise InputError(
                f"multilabel_map finds no class in {len(records['truth'])} targets",
                place="data.evaluation",
                hint="look at the labels: 1 says that a class is there",
            )
        return float(self.resampled(records, np.ones((1, len(records["truth"]))))[0])

    def resampled(self, records: Records, counts: np.ndarray) -> np.ndarray:
        """A class that no image of a resample has is left out there."""
        import numpy as np

        total, present = np.zeros(len(counts)), np.zeros(len(counts))
        step = max(1, _CELLS // counts.shape[1])
        for score, truth in zip(records["score"].T, records["truth"].T, strict=True):
            if not (truth == 1).any():
                continue
            for start in range(0, len(counts), step):
                rows = slice(start, start + step)
                precision = _average_precision(score, truth, counts[rows].astype(float))
                there = np.isfinite(precision)
                total[rows] += np.where(there, precision, 0.0)
                present[rows] += there
        return total / present

    def by_class(self, records: Records) -> ByClass | None:
        import numpy as np

        positives = (records["truth"] == 1).sum(axis=0)
        there, every = np.flatnonzero(positives), np.ones((1, len(records["truth"])))
        values = [
            float(_average_precision(records["score"][:, c], records["truth"][:, c], every)[0])
            for c in there
        ]
        return ByClass(there, positives[there], np.array(values))

    def chance(self, records: Records) -> float | None:
        """Any order has the share of images that show a class as its AP."""
        import numpy as np

        positives, known = (records["truth"] == 1).sum(axis=0), (records["truth"] >= 0).sum(axis=0)
        there = positives > 0
        return float(np.mean(positives[there] / known[there])) if there.any() else None

    def largest_change(self, records: Records) -> float | None:
        """Where a share w of what is there is lost to wrong answers: 2 · mAP · w at most."""
        return 2 * self.value(records)


def _average_precision(score: np.ndarray, truth: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """AP of one class, `[resamples]`; NaN where a resample has no image of it."""
    import numpy as np

    known = truth >= 0
    ranked = np.where(np.isnan(score), -np.inf, score)[known]
    order = np.argsort(-ranked, kind="stable")
    weights = counts[:, known][:, order]
    # Images of the same score stand behind one threshold: the last of them counts for all.
    last = np.flatnonzero(np.append(np.diff(ranked[order]) != 0, True))
    every = np.cumsum(weights, axis=1)[:, last]
    right = np.cumsum(weights * (truth[known][order] == 1), axis=1)[:, last]
    with np.errstate(invalid="ignore", divide="ignore"):
        precision = np.where(every > 0, right / every, 0.0)
        areas: np.ndarray = (np.diff(right, axis=1, prepend=0) * precision).sum(axis=1) / right[:, -1]
    return areas
