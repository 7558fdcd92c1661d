"""What can be said of samples not seen: the bootstrap, and bounds where hardly a sample changed.

Every evaluation of one set draws the same resamples, so that the difference of two artifacts, resample
by resample, is the paired bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 1993).
Its percentiles are off-centre where the metric of a resample is not the set's on average (an image
that is drawn twice has its mAP twice) or where its spread grows with it; BCa corrects for both.

A bootstrap of values that are all the same sees no spread and claims certainty. But a change that n
samples do not show can still happen to other samples: where none of n changed, the share that changes
is up to 1 - tail^(1/n), the exact binomial bound of Clopper and Pearson (Biometrika 26, 1934, 404-413).
The bounds therefore assume one more sample, with the worst possible loss. Weighted as in the Bayesian
bootstrap its share is Beta(1, n). For samples that either change or do not, this is the bound of
Clopper and Pearson for every number of changes. For the mean of any bounded values it is Gaffke's
(Three test statistics for a nonparametric one-sided hypothesis on the mean of a nonnegative variable,
2005).

Samples of the same content are one piece of evidence: `count` is that of different ones, by Kish's
(Σm)² / Σm² where contents occur m times (Survey Sampling, 1965, section 11.7).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from optcli.results.statistics import drop_interval

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


_POINTS = 2001
_STEPS = 60
_SEED = 1


def effective(clusters: np.ndarray) -> float:
    """How many samples count as evidence; `clusters[samples]` numbers their contents."""
    import numpy as np

    sizes = np.bincount(clusters).astype(float)
    return float(sizes.sum() ** 2 / np.sum(sizes**2))


def counted(regressed: float, improved: float, count: float, tail: float) -> tuple[float, float]:
    """One-sided bounds of the loss (regressed - improved) / count, each wrong with probability `tail`.

    The wider of Tango's score interval, which is right for many changes, and the exact kind above.
    Counts may be fractions, where some samples are the same.
    """
    regressed, improved = min(regressed, count), min(improved, count - min(regressed, count))
    low, high = drop_interval(regressed, improved, count, 1 - 2 * tail)
    return (
        min(low, -_worst(improved, regressed, count, tail)),
        max(high, _worst(regressed, improved, count, tail)),
    )


def _worst(lost: float, gained: float, count: float, tail: float) -> float:
    """The upper bound of (lost - gained) / count with one more sample lost.

    The shares are Dirichlet(lost + 1, gained, the rest): lost and gained together are Beta, and of
    these the lost ones are Beta again. Their difference's distribution is averaged over the former.
    """
    import numpy as np
    from scipy.special import betainc, betaincinv

    rest = count - lost - gained
    if gained <= 0:
        return 1.0 if rest <= 0 else float(betaincinv(lost + 1, rest, 1 - tail))
    together = np.ones(1)
    if rest > 1e-9:
        middles = (np.arange(_POINTS) + 0.5) / _POINTS
        together = betaincinv(lost + 1 + gained, rest, middles)
    low, high = -1.0, 1.0
    for _ in range(_STEPS):
        loss = (low + high) / 2
        below = betainc(lost + 1, gained, np.clip((loss / together + 1) / 2, 0, 1)).mean()
        low, high = (loss, high) if below < 1 - tail else (low, loss)
    return high


def of_drops(drops: np.ndarray, largest: float, count: float, tail: float) -> tuple[float, float]:
    """One-sided bounds of the loss from its bootstrap `drops`, with one more sample lost, or gained.

    A share of samples costs the metric at most `largest` times that share.
    """
    import numpy as np

    share = np.random.default_rng(_SEED).beta(1, count, len(drops))
    remaining = (1 - share) * drops
    return (
        float(np.quantile(remaining - share * largest, tail)),
        float(np.quantile(remaining + share * largest, 1 - tail)),
    )


def at_best(count: float, largest: float, tail: float) -> float:
    """The smallest upper bound of the loss that so many samples can give: where none changed."""
    return float(largest * -math.expm1(math.log(tail) / count))


def needed(margin: float, largest: float, tail: float) -> int | None:
    """How many samples of which none changed bring the upper bound below `margin`; None: none do."""
    if margin <= 0:
        return None
    share = margin / largest if largest > 0 else 1.0
    return 1 if share >= 1 else math.floor(math.log(tail) / math.log1p(-share)) + 1
