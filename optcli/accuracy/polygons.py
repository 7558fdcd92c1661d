"""IoU of rotated boxes, exactly: the area that two convex quadrangles share over the area of both."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

# An edge whose ends lie as near to a line, in pixels, lies on it.
_NEAR = 1e-6


def overlaps(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """IoU of each of the convex quadrangles `[n, 4, 2]` with each of `[m, 4, 2]`: `[n, m]`."""
    import numpy as np

    first, second = (_turned_one_way(np.asarray(each, np.float64)) for each in (first, second))
    low = np.maximum(first.min(axis=1)[:, None], second.min(axis=1)[None])
    high = np.minimum(first.max(axis=1)[:, None], second.max(axis=1)[None])
    one, other = np.nonzero((high > low).all(axis=2))
    shared = np.zeros((len(first), len(second)))
    # Of numbers near 0, so that no digits are lost.
    origin = first[one].mean(axis=1, keepdims=True)
    a, b = first[one] - origin, second[other] - origin
    shared[one, other] = _bounded(a, b, shared=True) + _bounded(b, a, shared=False)
    union = _areas(first)[:, None] + _areas(second)[None] - shared
    overlap: np.ndarray = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return overlap


def _cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    product: np.ndarray = a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    return product


def _areas(corners: np.ndarray) -> np.ndarray:
    import numpy as np

    areas: np.ndarray = _cross(corners, np.roll(corners, -1, axis=1)).sum(axis=1) / 2
    return areas


def _turned_one_way(corners: np.ndarray) -> np.ndarray:
    """The same with all corners in one order, by which their areas are positive."""
    import numpy as np

    return np.where(_areas(corners)[:, None, None] < 0, corners[:, ::-1], corners)


def _bounded(inner: np.ndarray, outer: np.ndarray, *, shared: bool) -> np.ndarray:
    """What the edges of one polygon add to the area of what it shares with the other, `[pairs]`.

    That area is bounded by the pieces of both polygons' edges that lie inside the other: it is half the
    sum of their cross products. An edge of both counts once, where it is `shared`; an edge where they
    touch from outside does not count.
    """
    import numpy as np

    along = np.roll(inner, -1, axis=1) - inner
    edge = np.roll(outer, -1, axis=1) - outer
    length = np.linalg.norm(edge, axis=2)
    edge = edge / np.where(length > 0, length, 1)[:, :, None]
    # Of each edge (second dimension) from each line of the other polygon (third): distance of where it
    # begins, and how much it grows to where it ends.
    distance = _cross(edge[:, None], inner[:, :, None] - outer[:, None])
    growth = _cross(edge[:, None], along[:, :, None])
    on_line = (np.abs(distance) <= _NEAR) & (np.abs(distance + growth) <= _NEAR)
    same_way = (edge[:, None] * along[:, :, None]).sum(axis=3) > 0
    counts = same_way if shared else np.zeros_like(same_way)
    outside = np.where(on_line, ~counts, (growth == 0) & (distance < 0))
    at = -distance / np.where(on_line | (growth == 0), 1, growth)
    begin = np.where(~on_line & (growth > 0), at, 0).max(axis=2)
    end = np.where(~on_line & (growth < 0), at, 1).min(axis=2)
    inside = (end > begin) & ~outside.any(axis=2)
    begin, end = (np.clip(each, 0, 1)[:, :, None] for each in (begin, end))
    pieces = _cross(inner + begin * along, inner + end * along) * inside
    added: np.ndarray = pieces.sum(axis=1) / 2
    return added
