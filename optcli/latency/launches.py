"""Intervals over launches: a fresh process of the same artifact is what is repeated.

Rounds of one process share where its memory lies and how its threads are placed; calls of one round
share what else the machine was doing. An interval over calls would be far too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from optcli.results import Estimate
from optcli.statistics import percentile, percentile_over_rounds, t_interval

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# Resampling fewer launches than this gives intervals that are too narrow.
_FEWEST_FOR_BOOTSTRAP = 20
_RESAMPLES = 2000
# By how much the log ratio of one pair of launches differs from that of another (standard deviation):
# 0.7 to 1 % with pairs of eight rounds side by side, part of which is noise of the rounds.
_BETWEEN_PAIRS = 0.0075


def percentile_over_launches(
    launches: Sequence[Sequence[ArrayLike]], q: float, confidence: float = 0.95
) -> Estimate | None:
    """The q-quantile of all samples with an interval over launches and rounds.

    `launches` holds the rounds of each launch. The logarithms of the launches' own quantiles give an
    interval around the common one; beyond the median it is widened to the one over all rounds, since a
    tail is made by rare events that some launches do not see. One launch: the interval over rounds.
    """
    rounds = [each for launch in launches for each in launch]
    found = percentile_over_rounds(rounds, q, confidence)
    if found is None or len(launches) < 2:
        return found
    import numpy as np

    logs = [math.log(percentile(np.concatenate(launch), q)) for launch in map(list, launches)]
    centre, low, high = mean_interval(logs, confidence)
    lower, upper = found.value * math.exp(low - centre), found.value * math.exp(high - centre)
    if q != 0.5 and found.low is not None and found.high is not None:
        lower, upper = min(lower, found.low), max(upper, found.high)
    return Estimate(value=found.value, low=lower, high=upper)


def ratio_over_launches(log_ratios: Sequence[float], confidence: float = 0.95) -> Estimate | None:
    """How many times as fast, from one log ratio for each launch pair; None where there is none.

    The mean with a t-interval, from 20 launches on with a bootstrap.
    """
    if not log_ratios:
        return None
    if len(log_ratios) == 1:
        return Estimate(value=math.exp(log_ratios[0]))
    value, low, high = mean_interval(log_ratios, confidence)
    return Estimate(value=math.exp(value), low=math.exp(low), high=math.exp(high))


def of_one_launch(found: Estimate | None, confidence: float = 0.95) -> Estimate | None:
    """A ratio over rounds of a single launch, its interval widened by what launches usually differ by.

    One launch cannot show that itself, and its rounds may agree to a tenth of a percent.
    """
    if found is None or found.low is None or found.high is None:
        return found
    from scipy.stats import norm

    usual = float(norm.ppf((1 + confidence) / 2)) * _BETWEEN_PAIRS
    below = math.hypot(math.log(found.value / found.low), usual)
    above = math.hypot(math.log(found.high / found.value), usual)
    return Estimate(
        value=found.value, low=found.value * math.exp(-below), high=found.value * math.exp(above)
    )


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> tuple[float, float, float]:
    """Mean, lower and upper bound: Student's t; from 20 values on the percentile bootstrap, seeded."""
    if len(values) < _FEWEST_FOR_BOOTSTRAP:
        return t_interval(values, confidence)
    import numpy as np

    x = np.asarray(values, dtype=float)
    drawn = np.random.default_rng(0).integers(0, x.size, (_RESAMPLES, x.size))
    means = np.mean(x[drawn], axis=1)
    tail = (1 - confidence) / 2
    return float(np.mean(x)), percentile(means, tail), percentile(means, 1 - tail)
