"""Two-sample tests that hold their error: weighted samples, repeated rows, many statistics at once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# Where fewer of the reference's rows differ, equal rows are nothing that was sent twice.
_DISTINCT = 0.9
# Of Wei and Dudley, in place of the 2 that is right for large samples.
FACTOR = 2.16863


def distance(
    first: np.ndarray, first_weights: np.ndarray, second: np.ndarray, second_weights: np.ndarray
) -> float:
    """The largest difference of two distribution functions (Kolmogorov and Smirnov), from 0 to 1.

    Values and weights [rows]; each sample's weights add up to 1.
    """
    import numpy as np

    values = np.concatenate([first, second])
    order = np.argsort(values, kind="stable")
    steps = np.concatenate([first_weights, -second_weights])[order]
    ordered = values[order]
    # Between equal values there is no step: the functions differ after the last of them.
    last = np.append(ordered[1:] != ordered[:-1], True)
    return min(1.0, float(np.abs(np.cumsum(steps)[last]).max()))


def p_value(found: float, first_rows: float, second_rows: float) -> float:
    """The probability of such a distance or a larger one by chance, at most.

    A bound that holds for two samples of any common size from four rows on: F. Wei and R. M. Dudley,
    Two-sample Dvoretzky-Kiefer-Wolfowitz inequalities, Statistics & Probability Letters 82 (2012)
    636-644.
    """
    both = first_rows * second_rows / (first_rows + second_rows)
    return min(1.0, FACTOR * math.exp(-2 * both * found**2))


def detectable(alpha: float, tests: int, first_rows: float, second_rows: float) -> float:
    """The distance from which on the first of `tests` tests rejects."""
    both = first_rows * second_rows / (first_rows + second_rows)
    return math.sqrt(math.log(FACTOR * max(tests, 1) / alpha) / (2 * both))


def holm(p_values: Sequence[float]) -> list[float]:
    """P values corrected for their number: one of them is below alpha by chance with that probability.

    S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of
    Statistics 6 (1979) 65-70. Holds however the tests depend on each other.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, highest = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


def effective(marks: np.ndarray, weights: np.ndarray, *, repeated: bool) -> float:
    """How many equally weighted, different rows say as much: L. Kish, Survey Sampling (1965).

    `marks` [rows] are equal where rows are, weights add up to 1. With `repeated`, equal rows count as
    one row that has the weight of all of them.
    """
    import numpy as np

    if not len(marks):
        return 0.0
    if repeated:
        _, places = np.unique(marks, return_inverse=True)
        weights = np.bincount(places.ravel(), weights)
    return float(1 / np.sum(weights**2))


def are_distinct(marks: np.ndarray) -> bool:
    """Whether rows of such data are hardly ever equal, so that equal ones are the same input again."""
    import numpy as np

    return len(np.unique(marks)) >= _DISTINCT * len(marks)
