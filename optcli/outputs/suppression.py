"""Non-maximum suppression (NMS) of boxes and of rotated boxes, by class. Needs NumPy.

Bundles have a copy of this file.
"""

from __future__ import annotations

import numpy as np

_LEAST = 1e-7


def suppressed(
    boxes: np.ndarray, labels: np.ndarray, threshold: float | None, most: int
) -> tuple[np.ndarray, bool]:
    """Places of the `most` best boxes that stay after NMS by class, and whether more would stay.

    The boxes are sorted, best first. A box leaves where one of its class that stays overlaps it by more
    than the threshold: torchvision's `batched_nms`, number by number. None: all stay.
    """
    if threshold is None:
        return np.arange(min(most, len(boxes))), len(boxes) > most
    # Overlaps are float32: those above the threshold are those above the next float32 below it.
    limit = np.float32(threshold)
    if limit > threshold:
        limit = np.nextafter(limit, np.float32(0))
    order = np.argsort(labels, kind="stable")  # boxes of a class lie side by side
    left, top, right, bottom = np.ascontiguousarray(boxes[order].T)
    areas = (right - left) * (bottom - top)
    ends = np.searchsorted(labels[order], labels, side="right").tolist()
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    there = np.ones(len(order), bool)
    width, height, inner = np.empty((3, len(order)), boxes.dtype)
    stay: list[int] = []
    with np.errstate(divide="ignore", invalid="ignore"):  # boxes without an area
        for index, place in enumerate(places.tolist()):
            if not there[place]:
                continue
            if len(stay) == most:
                return np.array(stay), True
            stay.append(index)
            rest = slice(place + 1, ends[index])
            w, h, low = (buffer[: rest.stop - rest.start] for buffer in (width, height, inner))
            np.minimum(right[rest], right[place], out=w)
            w -= np.maximum(left[rest], left[place], out=low)
            np.minimum(bottom[rest], bottom[place], out=h)
            h -= np.maximum(top[rest], top[place], out=low)
            w = np.multiply(np.maximum(w, 0, out=w), np.maximum(h, 0, out=h), out=w)
            union = np.subtract(np.add(areas[rest], areas[place], out=h), w, out=h)
            there[rest] &= ~(np.divide(w, union, out=w) > limit)
    return np.array(stay, np.int64), False


def rotated_suppressed(
    boxes: np.ndarray, angles: np.ndarray, labels: np.ndarray, threshold: float | None, most: int
) -> tuple[np.ndarray, bool]:
    """The same for rotated boxes `[n, 4]` (centre, width, height) and their angles `[n]` in radians.

    A box leaves where the ProbIoU with one that stays reaches the threshold. Ultralytics compares it
    with those that leave, too.
    """
    if threshold is None:
        return np.arange(min(most, len(boxes))), len(boxes) > most
    shapes = _gaussians(boxes.astype(np.float64), angles.astype(np.float64))
    there = np.ones(len(boxes), bool)
    stay: list[int] = []
    for index in range(len(boxes)):
        if not there[index]:
            continue
        if len(stay) == most:
            return np.array(stay), True
        stay.append(index)
        rest = index + 1 + np.flatnonzero(there[index + 1 :] & (labels[index + 1 :] == labels[index]))
        overlaps = _probabilistic_iou(shapes[:, index : index + 1], shapes[:, rest])
        there[rest[overlaps >= threshold]] = False
    return np.array(stay, np.int64), False


def _gaussians(boxes: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """Rows x, y, a, b, c of Gaussians in place of boxes: centres, and covariances [[a, c], [c, b]]."""
    x, y, width, height = boxes.T
    along, across = width**2 / 12, height**2 / 12
    cos, sin = np.cos(angles), np.sin(angles)
    return np.stack(
        [
            x,
            y,
            along * cos**2 + across * sin**2,
            along * sin**2 + across * cos**2,
            (along - across) * cos * sin,
        ]
    )


def _probabilistic_iou(one: np.ndarray, others: np.ndarray) -> np.ndarray:
    """ProbIoU of Gaussians: 1 - Hellinger distance, by Bhattacharyya's (arXiv:2106.06072)."""
    (x, y, a, b, c), (x2, y2, a2, b2, c2) = one, others
    dx, dy = x2 - x, y - y2
    a_sum, b_sum, c_sum = a + a2, b + b2, c + c2
    determinant = a_sum * b_sum - c_sum**2
    distance = ((a_sum * dy**2 + b_sum * dx**2) / 4 + c_sum * dx * dy / 2) / (determinant + _LEAST)
    own = np.maximum(a * b - c**2, 0) * np.maximum(a2 * b2 - c2**2, 0)
    spread = np.log(np.maximum(determinant, 0) / (4 * np.sqrt(own) + _LEAST) + _LEAST) / 2
    shared = np.exp(-np.clip(distance + spread, _LEAST, 100))
    overlaps: np.ndarray = 1 - np.sqrt(1 - shared + _LEAST)
    return overlaps
