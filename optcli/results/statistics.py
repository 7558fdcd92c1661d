"""Order statistics, intervals over rounds, and paired comparison.

Everything here is deterministic and distribution-free where that is possible. Timed calls that
follow each other are alike (a neighbour's burst of work slows a whole round), so an interval that
took them for independent would be too narrow: intervals of latencies are computed over rounds.

Distributions come from `scipy.special`: importing `scipy.stats`, which calls it, takes a second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import quantiles
from typing import TYPE_CHECKING

from optcli.results import Estimate

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

# From so many pairs on, Wilcoxon's signed-rank distribution has a two-sided 95 % interval.
_FEWEST_FOR_RANKS = 6


def percentile(samples: ArrayLike, q: float) -> float:
    """The q-quantile (0 < q <= 1) as an order statistic: the smallest x with at least q·n samples <= x.

    The same as `numpy.percentile(..., method="inverted_cdf")`: always a value that was measured.
    """
    import numpy as np

    values = np.sort(np.asarray(samples).ravel())
    return float(values[_rank(q * values.size, values.size) - 1])


def _rank(position: float, count: int) -> int:
    """A 1-based rank from a real position; 1e-9 forgives 0.95·20 being a hair above 19."""
    return min(max(math.ceil(position - 1e-9), 1), count)


def needed(q: float, confidence: float = 0.95) -> int:
    """How many samples the two-sided interval of the q-quantile needs: 6 (p50), 36, 72, 368 (p99)."""
    return math.ceil(math.log((1 - confidence) / 2) / math.log(max(q, 1 - q)))


def percentile_ranks(count: int, q: float, confidence: float = 0.95) -> tuple[int, int] | None:
    """1-based ranks (low, high) that enclose the q-quantile; None where n is too small.

    The number of independent samples below the quantile is binomial(n, q); each tail holds at most
    (1 - confidence) / 2 (David and Nagaraja, Order Statistics, section 7.1).
    """
    if count < needed(q, confidence):
        return None
    tail = (1 - confidence) / 2
    return _binomial_quantile(tail, count, q), _binomial_quantile(1 - tail, count, q) + 1


def _binomial_quantile(share: float, count: int, q: float) -> int:
    """The smallest k with P(X <= k) >= share for X of the binomial distribution of `count` and `q`."""
    from scipy.special import bdtr, bdtrik

    inverse = float(bdtrik(share, count, q))
    rank = math.ceil(inverse) if inverse > 0 else 0  # there is none below the chance of 0
    # The inverse is worked out to a few digits: beside a whole number it may lie on either side.
    while rank and float(bdtr(rank - 1, count, q)) >= share:
        rank -= 1
    while float(bdtr(rank, count, q)) < share:
        rank += 1
    return rank


def percentile_over_rounds(
    rounds: Sequence[ArrayLike], q: float, confidence: float = 0.95
) -> Estimate | None:
    """The q-quantile of all samples with an interval that holds although samples of a round are alike.

    The ranks are the wider of the binomial ones and Woodruff's (1952): the share of samples at or
    below the quantile varies between rounds; its t-interval over rounds is turned back into ranks.
    None where there are fewer than `needed(q)` samples; no interval with fewer than two rounds.
    """
    import numpy as np
    from scipy.special import stdtrit

    arrays = [np.asarray(each).ravel() for each in rounds]
    values = np.sort(np.concatenate(arrays))
    ranks = percentile_ranks(values.size, q, confidence)
    if ranks is None:
        return None
    value = percentile(values, q)
    if len(arrays) < 2:
        return Estimate(value=value)
    sizes = np.array([each.size for each in arrays])
    below = np.array([np.count_nonzero(each <= value) for each in arrays])
    # Cluster-robust standard error of a proportion, as a ratio estimator (Cochran, section 11.8).
    residuals = below - sizes * (below.sum() / sizes.sum())
    error = math.sqrt(len(arrays) / (len(arrays) - 1) * float(np.sum(residuals**2))) / values.size
    reach = float(stdtrit(len(arrays) - 1, (1 + confidence) / 2)) * error
    low = min(ranks[0], _rank((q - reach) * values.size, values.size))
    high = max(ranks[1], _rank((q + reach) * values.size, values.size))
    return Estimate(value=value, low=float(values[low - 1]), high=float(values[high - 1]))


def monotone(values: Sequence[float]) -> list[float]:
    """The nearest values, by least squares, that never fall (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in values:
        mean, count = value, 1
        while pools and pools[-1][0] > mean:
            other, more = pools.pop()
            mean, count = (mean * count + other * more) / (count + more), count + more
        pools.append((mean, count))
    return [mean for mean, count in pools for _ in range(count)]


def log_ratios(
    base_rounds: Sequence[ArrayLike], other_rounds: Sequence[ArrayLike], q: float = 0.5
) -> list[float]:
    """ln(quantile of base / quantile of other), round by round; unpaired rounds are left out."""
    return [
        math.log(percentile(base, q) / percentile(other, q))
        for base, other in zip(base_rounds, other_rounds, strict=False)
    ]


def ratio_interval(
    base_rounds: Sequence[ArrayLike], other_rounds: Sequence[ArrayLike], confidence: float = 0.95
) -> Estimate | None:
    """How many times as fast `other` is as `base`, from rounds measured side by side.

    From six rounds on, the Hodges-Lehmann estimate of the rounds' log ratios with its exact
    signed-rank interval (Hollander, Wolfe and Chicken, Nonparametric Statistical Methods, section
    3.3): a burst of load in one round moves it little. With two to five rounds their mean with a
    t-interval, with one the bare ratio, with none None.
    """
    ratios = log_ratios(base_rounds, other_rounds)
    if not ratios:
        return None
    if len(ratios) == 1:
        return Estimate(value=math.exp(ratios[0]))
    if len(ratios) < _FEWEST_FOR_RANKS:
        value, low, high = t_interval(ratios, confidence)
    else:
        value, low, high = hodges_lehmann(ratios, confidence)
    return Estimate(value=math.exp(value), low=math.exp(low), high=math.exp(high))


def hodges_lehmann(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Median of the Walsh averages (x_i + x_j) / 2, i <= j, with its exact interval. Needs 6 values."""
    import numpy as np

    low, high = signed_rank_bounds(values, (1 - confidence) / 2)
    return float(np.median(_walsh(values))), low, high


def signed_rank_bounds(values: Sequence[float], tail: float) -> tuple[float, float]:
    """One-sided bounds of the centre of symmetry, each wrong with probability `tail` at most.

    From Wilcoxon's signed-rank distribution (Hollander, Wolfe and Chicken, section 3.3); infinite
    where so few values give no bound, that is where 2^-n > tail.
    """
    walsh = _walsh(values)
    rank = _signed_rank(len(values), tail)
    return (float(walsh[rank - 1]), float(walsh[-rank])) if rank else (-math.inf, math.inf)


def sign_bounds(values: Sequence[float], tail: float) -> tuple[float, float]:
    """One-sided bounds of the median from the signs alone; infinite where 2^-n > tail.

    Order statistics (David and Nagaraja, section 7.1): weaker than ranks for calm data, stronger
    where some values are grossly wrong.
    """
    from scipy.special import bdtr

    ordered = sorted(values)
    rank = _binomial_quantile(tail, len(ordered), 0.5)
    if float(bdtr(rank, len(ordered), 0.5)) > tail:
        rank -= 1
    return (ordered[rank], ordered[-rank - 1]) if rank >= 0 else (-math.inf, math.inf)


def _walsh(values: Sequence[float]) -> NDArray[np.float64]:
    """All averages of two values, each with itself too, ascending."""
    import numpy as np

    x = np.asarray(values, dtype=float)
    first, second = np.triu_indices(x.size)
    return np.sort((x[first] + x[second]) / 2)


def _signed_rank(count: int, tail: float) -> int:
    """The 1-based rank of the bound among the Walsh averages: the largest k with P(T < k) <= tail."""
    import numpy as np

    ways = np.ones(1)  # how many of the 2^n sign patterns give each value of the rank sum T
    for rank in range(1, count + 1):
        grown = np.zeros(ways.size + rank)
        grown[: ways.size] += ways
        grown[rank:] += ways
        ways = grown / 2
    cumulated = np.cumsum(ways)
    return int(np.searchsorted(cumulated, tail, side="right"))


def t_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean, lower and upper bound by Student's t. Needs 2 values."""
    return moderated_interval(values, 0.0, 0.0, confidence)


def moderated_interval(
    values: Sequence[float], usual_sd: float, weight: float, confidence: float = 0.95
) -> tuple[float, float, float]:
    """Mean, lower and upper bound where the values are too few to tell their own spread.

    Their variance is moderated by the usual one, which counts as `weight` degrees of freedom:
    (weight * usual_sd^2 + (n - 1) * s^2) / (weight + n - 1), with Student's t of as many degrees (G. K.
    Smyth, Linear models and empirical Bayes methods, Statistical Applications in Genetics and Molecular
    Biology 3 (2004), article 3). A single value has the usual spread.
    """
    import numpy as np
    from scipy.special import stdtrit

    x = np.asarray(values, dtype=float)
    own = float(np.sum((x - np.mean(x)) ** 2))
    degrees = weight + x.size - 1
    error = math.sqrt((weight * usual_sd**2 + own) / degrees / x.size)
    reach = float(stdtrit(degrees, (1 + confidence) / 2)) * error
    mean = float(np.mean(x))
    return mean, mean - reach, mean + reach


def median_uncertainty(values: Sequence[float]) -> float:
    """How far the median of some values may be off, as a share of it; single wild values do not count.

    1.57 times the spread of their middle half over the root of their number (McGill, Tukey and Larsen,
    The American Statistician 32, 1978, 12-16). Needs two values.
    """
    low, middle, high = quantiles(values, n=4, method="inclusive")
    return 1.57 * (high - low) / (middle * math.sqrt(len(values)))


def spread(samples: ArrayLike) -> float:
    """Interquartile range over the median: 0.15 is called fluctuating, 0.25 not fit to be compared."""
    return (percentile(samples, 0.75) - percentile(samples, 0.25)) / percentile(samples, 0.5)


def drop_interval(
    regressed: float, improved: float, count: float, confidence: float = 0.95
) -> tuple[float, float]:
    """Score interval of the loss (regressed - improved) / count of two classifiers on the same samples.

    `regressed` samples only the first had right, `improved` only the second. T. Tango, Equivalence
    test and confidence interval for the difference in proportions for the paired-sample design,
    Statistics in Medicine 17 (1998) 891-908. Holds for no discordant pairs at all, too.
    """
    if count < 1 or regressed < 0 or improved < 0 or regressed + improved > count:
        raise ValueError(f"wanted counts within {count} samples, found {regressed} and {improved}")
    from scipy.special import ndtri

    z = float(ndtri((1 + confidence) / 2))
    difference = (regressed - improved) / count

    def score(loss: float) -> float:
        return _tango_score(regressed, improved, count, loss)

    # The score falls as the assumed loss grows: +z at the lower bound, -z at the upper one.
    low = -1.0 if score(-1.0) <= z else _root(lambda loss: score(loss) - z, -1.0, difference)
    high = 1.0 if score(1.0) >= -z else _root(lambda loss: score(loss) + z, difference, 1.0)
    return low, high


def _tango_score(b: float, c: float, n: float, loss: float) -> float:
    """The score statistic of an assumed loss, the share of `improved` at its restricted maximum."""
    linear = -b - c + (2 * n - b + c) * loss
    constant = -c * loss * (1 - loss)
    share = (math.sqrt(max(linear * linear - 8 * n * constant, 0.0)) - linear) / (4 * n)
    variance = n * (2 * share + loss * (1 - loss))
    distance = b - c - n * loss
    if variance <= 1e-15:
        return 0.0 if abs(distance) < 1e-12 else math.copysign(math.inf, distance)
    return distance / math.sqrt(variance)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function crosses zero, by bisection."""
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) > 0 else (low, middle)
    return (low + high) / 2


def mcnemar(regressed: int, improved: int) -> float:
    """McNemar's exact two-sided p value; 1 without discordant pairs."""
    from scipy.special import bdtr

    # Two tails that are alike; they meet where both counts are the same.
    rarer = float(bdtr(min(regressed, improved), regressed + improved, 0.5))
    return min(1.0, 2 * rarer)
