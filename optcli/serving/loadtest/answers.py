"""Whether an answer is the expected one, within the tolerance of the golden response."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from optcli.outputs.ranges import scaled_parts

if TYPE_CHECKING:
    import numpy as np


def difference(
    answer: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray], tolerance: float
) -> str | None:
    """What is wrong with the outputs of an answer, in words; None where they are as expected.

    Floating-point outputs may differ by `tolerance` times the largest magnitude that is expected in
    each of their parts, such as boxes and scores; other types must be equal.
    """
    import numpy as np

    for name, wanted in expected.items():
        given = answer.get(name)
        if given is None:
            return f"the output {name!r} is missing"
        if given.size != wanted.size:
            return f"{name!r} has the shape {list(given.shape)}, wanted {list(wanted.shape)}"
        given = given.reshape(wanted.shape)
        if wanted.dtype.kind != "f":
            unlike = int(np.count_nonzero(given != wanted))
            if unlike:
                return f"{name!r} differs in {unlike} of {wanted.size} values"
            continue
        finite = np.isfinite(wanted)
        if not np.array_equal(np.isfinite(given), finite):
            return f"{name!r} has values that are not finite"
        apart = np.abs(np.where(finite, given, 0) - np.where(finite, wanted, 0))
        for part, scale in scaled_parts(np.abs(np.where(finite, wanted, 0))):
            largest = float(apart[part].max(initial=0.0))
            if largest > tolerance * scale:
                return (
                    f"{name!r} is {largest:.3g} away from what is expected, at most"
                    f" {tolerance * scale:.3g} is allowed"
                )
    return None


def unlike(answer: Any, expected: Any, tolerance: float) -> str | None:
    """The same of JSON values, such as classes or boxes: numbers may differ by the tolerance."""
    if isinstance(expected, bool) or isinstance(answer, bool):
        return None if answer is expected else f"found {answer!r}, wanted {expected!r}"
    if isinstance(expected, int | float) and isinstance(answer, int | float):
        near = math.isclose(answer, expected, rel_tol=tolerance, abs_tol=tolerance)
        return None if near else f"found {answer:g}, wanted {expected:g}"
    if isinstance(expected, list) and isinstance(answer, list):
        if len(answer) != len(expected):
            return f"found {len(answer)} entries, wanted {len(expected)}"
        pairs = list(zip(answer, expected, strict=True))
    elif isinstance(expected, dict) and isinstance(answer, dict):
        if answer.keys() != expected.keys():
            return f"found the keys {sorted(answer)}, wanted {sorted(expected)}"
        pairs = [(answer[key], expected[key]) for key in expected]
    else:
        return None if answer == expected else f"found {answer!r}, wanted {expected!r}"
    return next((why for one, other in pairs if (why := unlike(one, other, tolerance))), None)
