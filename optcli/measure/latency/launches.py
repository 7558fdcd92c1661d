"""Intervals over launches: a fresh process of the same artifact is what is repeated.

Rounds of one process share where its memory lies and how its threads are placed; calls of one round
share what else the machine was doing. An interval over calls would be far too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

from optcli.results import Estimate
from optcli.results.statistics import moderated_interval, percentile, percentile_over_rounds, t_interval

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# So many launches tell themselves how they differ.
_ENOUGH = 5
# Fewer do not: three may agree by chance, or share a minute in which the machine was slow. Launches
# then count as differing by this much as well (standard deviation of the logarithm), which weighs as
# much as three launches. On a quiet machine it is 1 to 3 %; where neighbours share the host, 5 to 12 %:
# for the times of one artifact more than for the ratio of two, which drift together. Calibrated by
# `benchmarks/headline.py`.
_USUAL = 0.12
_USUAL_RATIO = 0.10
_WEIGHT = 2.0
# Peak memory differs by so much between launches of the same artifact.
MEMORY_SLACK_BYTES = 8_000_000


def percentile_over_launches(launches: Sequence[Sequence[ArrayLike]], q: float) -> Estimate | None:
    """The q-quantile of all samples with an interval over launches and rounds.

    `launches` holds the rounds of each launch. The logarithms of the launches' own quantiles give an
    interval around the common one. For other quantiles than the median it is widened to the interval
    over all rounds: rare events make a tail, and some launches do not see them. With fewer than five
    launches the interval of the median reaches down to the best launch, since other work only slows.
    With one launch it is the interval over rounds, widened by what launches usually differ by.
    """
    rounds = [each for launch in launches for each in launch]
    over_rounds = percentile_over_rounds(rounds, q)
    if over_rounds is None:
        return None
    if len(launches) < 2:
        return of_one_launch(over_rounds, _USUAL)
    import numpy as np

    logs = [math.log(percentile(np.concatenate(launch), q)) for launch in map(list, launches)]
    centre, *ends = mean_interval(logs, _USUAL)
    lower, upper = (over_rounds.value * math.exp(end - centre) for end in ends)
    if q != 0.5 and over_rounds.low is not None and over_rounds.high is not None:
        lower, upper = min(lower, over_rounds.low), max(upper, over_rounds.high)
    elif len(launches) < _ENOUGH:
        lower = min(lower, math.exp(min(logs)))
    return Estimate(value=over_rounds.value, low=lower, high=upper)


def ratio_over_launches(log_ratios: Sequence[float], *, best: float | None = None) -> Estimate | None:
    """How many times as fast, from one log ratio for each launch pair; None where there is none.

    The mean with the interval of `mean_interval`. `best` is the ratio of each side's best launch; the
    interval of few pairs holds it.
    """
    if not log_ratios:
        return None
    if len(log_ratios) == 1:
        return Estimate(value=math.exp(log_ratios[0]))
    interval = mean_interval(log_ratios, _USUAL_RATIO)
    value, low, high = (math.exp(each) for each in interval)
    if best is not None and len(log_ratios) < _ENOUGH:
        low, high = min(low, best), max(high, best)
    return Estimate(value=value, low=low, high=high)


def of_one_launch(estimate: Estimate | None, usual: float = _USUAL_RATIO) -> Estimate | None:
    """A figure over rounds of a single launch, its interval widened by what launches usually differ by.

    One launch cannot show that itself, and its rounds may agree to a tenth of a percent. `usual` is a
    standard deviation of the logarithm; by default that of the ratio of a pair of launches.
    """
    if estimate is None or estimate.low is None or estimate.high is None:
        return estimate
    _, _, reach = moderated_interval([0.0], usual, _WEIGHT)
    below = math.hypot(math.log(estimate.value / estimate.low), reach)
    above = math.hypot(math.log(estimate.high / estimate.value), reach)
    return Estimate(
        value=estimate.value,
        low=estimate.value * math.exp(-below),
        high=estimate.value * math.exp(above),
    )


def mean_interval(values: Sequence[float], usual: float) -> tuple[float, float, float]:
    """Mean, lower and upper bound of what launches gave: Student's t.

    Of fewer than five launches the variance is moderated by the usual one, of standard deviation
    `usual`.
    """
    if len(values) < _ENOUGH:
        return moderated_interval(values, usual, _WEIGHT)
    return t_interval(values)


def interval_over_launches(
    values: Sequence[float], slack: float | None = None
) -> tuple[float, float] | None:
    """Where the median of what each launch gave lies with 95 %; None where there is none above 0.

    `slack` is what launches usually differ by, in the unit of the values; None: as times do.
    """
    if not values or min(values) <= 0:
        return None
    middle = median(values)
    usual = _USUAL if slack is None else slack / middle
    _, low, high = (math.exp(each) for each in mean_interval([math.log(x) for x in values], usual))
    return min(low, middle), max(high, middle)


def in_ms(ns: Estimate) -> Estimate:
    """A figure in nanoseconds as one in milliseconds."""
    low, high = (None if bound is None else bound / 1e6 for bound in (ns.low, ns.high))
    return Estimate(value=ns.value / 1e6, low=low, high=high)
