"""Cosine to the baseline's embedding, the average over samples; it needs no labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from optcli.accuracy.metrics import Metric, Predictions
from optcli.accuracy.metrics._embeddings import unit_rows
from optcli.settings.outputs import Kind

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records


class Cosine(Metric):
    """The cosine between a sample's embedding and the one that the baseline gives for it.

    The baseline has 1. Reads an embedding `[batch, size]`. What is lost against the baseline is 1 minus
    the cosine, sample by sample; resampling draws samples.
    """

    reads: ClassVar[Kind | None] = "embedding"
    needs_labels: ClassVar[bool] = False
    low: ClassVar[float | None] = None

    def records(self, seen: Predictions) -> Records:
        return {"embedding": unit_rows(seen.scores())}

    def over_all(self, records: Records) -> Records:
        """`cosine` is each sample's to itself: 1, or 0 where a row is all zero."""
        embedding = records["embedding"]
        return {"embedding": embedding, "cosine": cosines(embedding, embedding)}

    def value(self, records: Records) -> float:
        return float(records["cosine"].mean())

    def resampled(self, records: Records, counts: np.ndarray) -> np.ndarray:
        means: np.ndarray = counts @ records["cosine"] / counts.sum(axis=1)
        return means

    def largest_change(self, records: Records) -> float | None:
        return 2.0  # from 1 to -1


def cosines(candidate: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """The cosine of each pair of rows of length 1, `[samples]`."""
    import numpy as np

    products: np.ndarray = np.einsum(
        "ij,ij->i", candidate.astype(np.float64), reference.astype(np.float64)
    )
    return products.clip(-1, 1)
