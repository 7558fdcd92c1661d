"""The line through a batch sweep, t(B) = t_fixed + B * t_image, and what it may be used for.

`t_fixed` is what a call costs however large its batch is (launching, framework, reading the weights),
`t_image` what every further image costs. Both are at least zero, so the fit is non-negative least
squares; points are weighted by how well they are known. `SweepFit.linear` says whether a line describes
the model at all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from optcli.results import Estimate, SweepFit

if TYPE_CHECKING:
    import numpy as np

NON_LINEAR = 0.10
FEWEST_POINTS = 3
# A share of the smallest call below which a part of the line is none, but for rounding.
_NOTHING = 1e-9


def fit(batch_sizes: Sequence[int], launches: Sequence[Sequence[float]]) -> SweepFit | None:
    """The line through the medians of several launches.

    `launches` holds one row for each launch: its median in milliseconds at every batch size. Weights
    are one over the variance of the launches' medians (all alike with one launch). An interval is the
    wider of two t-intervals at 95 %: over the lines of the single launches, and from the distances of
    the points from the line; there is none where neither can be had. None below three points.
    """
    import numpy as np

    if len(batch_sizes) < FEWEST_POINTS:
        return None
    sizes = np.asarray(batch_sizes, dtype=float)
    medians = np.asarray(launches, dtype=float)
    middle = np.median(medians, axis=0)
    weights = _weights(medians, middle)
    solution = _line(sizes, middle, weights)
    predicted = solution[0] + solution[1] * sizes
    reach = np.fmax(
        _between_launches(sizes, medians, weights),
        _off_the_line(sizes, middle - predicted, weights),
    )
    fixed_ms, per_image_ms = (
        Estimate(value=float(value))
        if math.isnan(half_width)
        else Estimate(
            value=float(value), low=max(0.0, float(value - half_width)), high=float(value + half_width)
        )
        for value, half_width in zip(solution, reach, strict=True)
    )
    residual = float(np.max(np.abs(predicted - middle) / middle))
    both_cost = bool(np.all(solution * [1, sizes[0]] > _NOTHING * middle[0]))
    return SweepFit(
        fixed_ms=fixed_ms,
        per_image_ms=per_image_ms,
        r_squared=_r_squared(middle, predicted, weights),
        largest_residual=residual,
        linear=residual <= NON_LINEAR and both_cost,
    )


def _line(sizes: np.ndarray, times: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The non-negative (fixed, per image) of weighted least squares."""
    import numpy as np
    from scipy.optimize import nnls

    root = np.sqrt(weights)
    solution, _ = nnls(np.stack([root, root * sizes], axis=1), root * times)
    return np.asarray(solution)


def _weights(medians: np.ndarray, middle: np.ndarray) -> np.ndarray:
    """One over the variance of the launches' medians at each batch size; shape [sizes].

    A variance of a handful of launches is a guess. It is therefore mixed half and half with the one
    that all batch sizes share relative to their medians, as moderated variances are (G. K. Smyth,
    Statistical Applications in Genetics and Molecular Biology 3 (2004), article 3).
    """
    import numpy as np

    if len(medians) < 2:
        return np.ones(medians.shape[1])
    relative = np.var(medians / middle, axis=0, ddof=1)
    mixed = (relative + np.mean(relative)) / 2
    if not mixed.any():
        return np.ones(medians.shape[1])
    return np.asarray(1 / (mixed * middle**2))


def _between_launches(sizes: np.ndarray, medians: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Half the width of the t-interval over the launches' own lines; NaN with one launch."""
    import numpy as np
    from scipy.special import stdtrit

    count = len(medians)
    if count < 2:
        return np.full(2, np.nan)
    lines = np.array([_line(sizes, launch, weights) for launch in medians])
    return np.asarray(stdtrit(count - 1, 0.975) * lines.std(axis=0, ddof=1) / math.sqrt(count))


def _off_the_line(sizes: np.ndarray, residuals: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Half the width of the t-interval of a weighted regression (Draper and Smith, section 9.2)."""
    import numpy as np
    from scipy.special import stdtrit

    free = len(sizes) - 2
    design = np.stack([np.ones_like(sizes), sizes], axis=1)
    covariance = np.linalg.inv(design.T @ (weights[:, None] * design))
    scale = float(np.sum(weights * residuals**2)) / free
    return np.asarray(stdtrit(free, 0.975) * np.sqrt(scale * np.diag(covariance)))


def _r_squared(times: np.ndarray, predicted: np.ndarray, weights: np.ndarray) -> float | None:
    """The weighted share of the variation that the line explains; None where nothing varies."""
    import numpy as np

    mean = np.average(times, weights=weights)
    total = float(np.sum(weights * (times - mean) ** 2))
    return 1 - float(np.sum(weights * (times - predicted) ** 2)) / total if total else None
