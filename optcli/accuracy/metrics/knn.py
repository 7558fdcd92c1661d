"""kNN accuracy of embeddings: the share of samples that their nearest neighbours name rightly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from optcli.accuracy.metrics._embeddings import Retrieval, mates, nearest

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records


class Knn(Retrieval):
    """The `k` nearest others by the cosine vote for their class, each sample left out of its own vote.

    Of classes with as many votes the one with the nearer neighbours wins. Reads an embedding `[batch,
    size]`; targets are class numbers. A sample whose class no other has does not count. The interval
    takes the samples as questions and the set that is searched as given: it speaks of other images
    that are looked up in this very set.
    """

    k: int = Field(5, ge=1, description="how many neighbours vote")

    def over_all(self, records: Records) -> Records:
        import numpy as np

        label, embedding = records["label"], records["embedding"]
        classes, codes = np.unique(label, return_inverse=True)
        predicted = np.full(len(label), -1, np.int64)
        # Less than a vote in all: it decides between as many votes alone.
        weights = 1 + (self.k - np.arange(self.k)) / (2.0 * self.k * (self.k + 1))
        for rows, near in nearest(embedding, self.k):
            votes = np.zeros((len(near), len(classes)))
            np.add.at(votes, (np.arange(len(near))[:, None], codes[near]), weights)
            predicted[rows] = classes[votes.argmax(axis=1)]
        predicted[np.isnan(embedding).any(axis=1)] = -1
        return {"label": label, "predicted": predicted, "mates": mates(label)}

    def chance(self, records: Records) -> float | None:
        """Who does not look names the most frequent class."""
        import numpy as np

        _, sizes = np.unique(records["label"][records["mates"] > 0], return_counts=True)
        return float(sizes.max() / sizes.sum())

    def _right(self, records: Records) -> np.ndarray:
        right: np.ndarray = records["predicted"] == records["label"]
        return right
