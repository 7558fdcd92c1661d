"""The bootstrap over samples: what the metric would have been on other samples of the same kind.

Every evaluation of one set draws the same resamples, so that the difference of two artifacts, resample
by resample, is the paired bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 1993).
Its percentiles are off-centre where the metric of a resample is not the set's on average (an image
that is drawn twice has its mAP twice) or where its spread grows with it; BCa corrects for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Metric, Records

RESAMPLES = 5000
SEED = 0
GROUPS = 1000
"""Of the jackknife; a set of more samples is left out in as many parts instead of one by one."""
_CELLS = 2_000_000  # of one table of counts


def resampled(metric: Metric, records: Records, clusters: np.ndarray) -> np.ndarray:
    """The metric of `RESAMPLES` draws with replacement, in a fixed order.

    `clusters[samples]` numbers the samples' contents from 0: what has the same content is drawn
    together, as one.
    """
    import numpy as np

    generator = np.random.default_rng(SEED)
    contents, size = int(clusters.max()) + 1, max(1, _CELLS // len(clusters))
    values = []
    for start in range(0, RESAMPLES, size):
        rows = min(size, RESAMPLES - start)
        drawn = generator.integers(contents, size=(rows, contents))
        flat = (drawn + np.arange(rows)[:, None] * contents).ravel()
        counts = np.bincount(flat, minlength=rows * contents).reshape(rows, contents)
        with np.errstate(invalid="ignore", divide="ignore"):  # a resample without any of a class
            values.append(np.asarray(metric.resampled(records, counts[:, clusters]), np.float64))
    return np.concatenate(values)


def left_out(metric: Metric, records: Records, clusters: np.ndarray) -> np.ndarray:
    """The metric without each content, `[contents]`; of large sets without each of `GROUPS` parts."""
    import numpy as np

    groups, size = min(int(clusters.max()) + 1, GROUPS), max(1, _CELLS // len(clusters))
    values = []
    for start in range(0, groups, size):
        rows = np.arange(start, min(start + size, groups))
        counts = (clusters % groups != rows[:, None]).astype(int)
        with np.errstate(invalid="ignore", divide="ignore"):  # a class that only this sample has
            values.append(np.asarray(metric.resampled(records, counts), np.float64))
    return np.concatenate(values)


def bca(
    value: float, resamples: np.ndarray, without: np.ndarray, shares: Sequence[float]
) -> list[float]:
    """Bounds below which the true value lies with these probabilities, bias-corrected and accelerated.

    `resamples` are the bootstrap's values, `without` those of the jackknife; both finite. With
    z0 = Φ⁻¹(share of resamples below the value) and a = ΣU³ / 6(ΣU²)^1.5 over the influences U of the
    jackknife the bound is the resamples' quantile at Φ(z0 + (z0 + z) / (1 - a(z0 + z))). B. Efron,
    Better Bootstrap Confidence Intervals, JASA 82 (1987) 171-185.
    """
    import numpy as np
    from scipy.special import ndtr, ndtri

    below = np.mean(resamples < value) + np.mean(resamples == value) / 2
    # A value beyond all resamples: as far as so many can tell.
    edge = 0.5 / len(resamples)
    z0 = float(ndtri(np.clip(below, edge, 1 - edge)))
    influence = without.mean() - without if len(without) else np.zeros(1)
    spread = float(np.sum(influence**2))
    a = float(np.sum(influence**3)) / (6 * spread**1.5) if spread > 0 else 0.0
    moved = z0 + ndtri(np.asarray(shares))
    levels = ndtr(z0 + moved / np.maximum(1 - a * moved, 1e-3))
    return [float(bound) for bound in np.quantile(resamples, levels)]
