"""The bootstrap over samples: what the metric would have been on other samples of the same kind.

Every evaluation of one set draws the same resamples, so that the difference of two artifacts, resample
by resample, is the paired bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 1993).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Metric, Records

RESAMPLES = 5000
SEED = 0
_CELLS = 2_000_000  # of one table of counts


def resampled(metric: Metric, records: Records, samples: int) -> np.ndarray:
    """The metric of `RESAMPLES` draws of `samples` samples with replacement, in a fixed order."""
    import numpy as np

    generator = np.random.default_rng(SEED)
    size = max(1, _CELLS // samples)
    found = []
    for start in range(0, RESAMPLES, size):
        rows = min(size, RESAMPLES - start)
        drawn = generator.integers(samples, size=(rows, samples))
        flat = (drawn + np.arange(rows)[:, None] * samples).ravel()
        counts = np.bincount(flat, minlength=rows * samples).reshape(rows, samples)
        found.append(np.asarray(metric.resampled(records, counts), np.float64))
    return np.concatenate(found)
