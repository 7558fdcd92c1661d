"""Intervals of a change between two separate runs, from the interval of each.

The runs are not paired: nothing was measured side by side. What each says of itself is combined by
MOVER, the method of variance estimates recovery (G. Y. Zou and A. Donner, Construction of confidence
limits about effect measures: a general approach, Statistics in Medicine 27 (2008) 1693-1702).
"""

from __future__ import annotations

import math

from optcli.results import Estimate

_Z = 1.959963984540054  # the 97.5 % point of the normal distribution


def ratio(before: Estimate, after: Estimate) -> Estimate:
    """After over before, of two positive values: MOVER for the difference of their logarithms.

    No interval where one of the two has none.
    """
    value = after.value / before.value
    first, second = _logarithms(before), _logarithms(after)
    if first is None or second is None:
        return Estimate(value=value)
    low, high = _mover(second, first)
    return Estimate(value=value, low=math.exp(low), high=math.exp(high))


def share_difference(before: float, count_before: int, after: float, count_after: int) -> Estimate:
    """After minus before, of two shares: Newcombe's hybrid score interval.

    MOVER of Wilson's intervals (R. G. Newcombe, Statistics in Medicine 17 (1998) 873-890, method 10).
    It takes the samples as drawn anew; where both runs used the same ones it is too wide, never too
    narrow in practice.
    """
    first = (before, *_wilson(before, count_before))
    second = (after, *_wilson(after, count_after))
    low, high = _mover(second, first)
    return Estimate(value=after - before, low=low, high=high)


def _mover(one: tuple[float, float, float], other: tuple[float, float, float]) -> tuple[float, float]:
    """The interval of one minus other, each as (value, low, high)."""
    value = one[0] - other[0]
    low = value - math.hypot(one[0] - one[1], other[2] - other[0])
    high = value + math.hypot(one[2] - one[0], other[0] - other[1])
    return low, high


def _logarithms(estimate: Estimate) -> tuple[float, float, float] | None:
    if estimate.low is None or estimate.high is None or estimate.low <= 0:
        return None
    return math.log(estimate.value), math.log(estimate.low), math.log(estimate.high)


def _wilson(share: float, count: int) -> tuple[float, float]:
    """Wilson's score interval of a proportion."""
    square = _Z * _Z / count
    middle = (share + square / 2) / (1 + square)
    reach = _Z * math.sqrt(share * (1 - share) / count + square / (4 * count)) / (1 + square)
    return middle - reach, middle + reach
