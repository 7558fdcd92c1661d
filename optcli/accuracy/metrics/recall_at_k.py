"""Recall@k of embeddings: the share of samples with one of their class among the k nearest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from optcli.accuracy.metrics._embeddings import Retrieval, mates, nearest

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records

_SHOWN = (1, 5, 10)


class RecallAtK(Retrieval):
    """One of the `k` nearest others by the cosine has the sample's class.

    Targets are class numbers, or numbers of persons or products. What else is read, what does not count
    and what the interval speaks of: as with `knn`.
    """

    k: int = Field(1, ge=1, description="how many of the nearest count")

    def over_all(self, records: Records) -> Records:
        import numpy as np

        label, embedding = records["label"], records["embedding"]
        count = max(self.k, min(_SHOWN[-1], len(label) - 1))
        first, predicted = np.empty(len(label), np.int64), np.empty(len(label), np.int64)
        for rows, near in nearest(embedding, count):
            same = label[near] == label[rows, None]
            first[rows] = np.where(same.any(axis=1), same.argmax(axis=1), count)
            predicted[rows] = label[near[:, 0]]
        broken = np.isnan(embedding).any(axis=1)
        first[broken], predicted[broken] = count, -1
        return {"label": label, "predicted": predicted, "first": first, "mates": mates(label)}

    def figures(self, records: Records) -> dict[str, float]:
        first = records["first"][records["mates"] > 0]
        shown = [k for k in _SHOWN if k < len(records["first"]) and k != self.k]
        return {f"recall_at_{k}": float((first < k).mean()) for k in shown}

    def chance(self, records: Records) -> float | None:
        """Any k others: 1 - (1 - m / (n - 1))^k of a sample with m others of its class."""
        counted = records["mates"][records["mates"] > 0]
        return float((1 - (1 - counted / (len(records["mates"]) - 1)) ** self.k).mean())

    def _right(self, records: Records) -> np.ndarray:
        right: np.ndarray = records["first"] < self.k
        return right
