"""Where an output holds several things, by the ranges of its values: boxes to 640, scores to 1."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

# Slices whose ranges differ by as much hold other things.
_APART = 10.0
# Slices of a longer dimension are places in a picture or a sequence, not channels or classes.
MOST_SLICES = 4096
# The scale of values beside larger ones: scores that no image raises are no part to be exact in.
_LEAST_SCALE = 1e-2


def groups_by_range(reaches: Mapping[int, np.ndarray]) -> tuple[int, list[np.ndarray]] | None:
    """The dimension where slices differ most, and the numbers of the slices in each group.

    `reaches` holds, by dimension, the largest absolute value of each slice. Slices that follow one
    another without a gap of ten times, by their reach, are one group; slices of zeros belong to the
    smallest. None where no dimension has such a gap.
    """
    import numpy as np

    best, widest = None, _APART
    for axis, reach in reaches.items():
        if not 1 < len(reach) <= MOST_SLICES:
            continue
        order = np.argsort(reach, kind="stable")
        ordered = reach[order]
        steps = np.ones(len(order) - 1)
        np.divide(ordered[1:], ordered[:-1], out=steps, where=ordered[:-1] > 0)
        if steps.max() >= widest:
            groups = np.split(order, np.flatnonzero(steps >= _APART) + 1)
            best, widest = (axis, [np.sort(group) for group in groups][::-1]), float(steps.max())
    return best


def scaled_parts(reached: np.ndarray) -> Iterator[tuple[Any, float]]:
    """The parts of an output `[batch, ...]` by the ranges of its values: an index, and its scale.

    `reached` are absolute values. The scale is the largest of a part; what hardly differs from 0 beside
    larger values has none of its own. A vector for each sample is one part: classes of few samples have
    no range yet.
    """
    import numpy as np

    whole = float(reached.max(initial=0.0)) or 1.0
    axes = [axis for axis in range(1, reached.ndim) if reached.shape[axis] <= MOST_SLICES]
    others = {axis: tuple(i for i in range(reached.ndim) if i != axis) for axis in axes}
    ranges = None
    if reached.size and reached.ndim > 2 and np.isfinite(whole):
        ranges = groups_by_range({axis: reached.max(axis=others[axis]) for axis in axes})
    if ranges is None:
        yield ..., whole
        return
    axis, groups = ranges
    for members in groups:
        part = (slice(None),) * axis + (members,)
        yield part, max(float(reached[part].max()), min(_LEAST_SCALE, whole))
