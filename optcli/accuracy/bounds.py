"""What can be said of samples not seen: bounds of a loss that hold where hardly a sample changed.

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
from typing import TYPE_CHECKING

from optcli.results.statistics import drop_interval

if TYPE_CHECKING:
    import numpy as np

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


def resampled(drops: np.ndarray, largest: float, count: float, tail: float) -> tuple[float, float]:
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
