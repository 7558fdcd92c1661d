"""Detections of two models of the same images, as sets: equal scores may stand in any order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from optcli.outputs.ranges import scaled_parts

if TYPE_CHECKING:
    import numpy as np

# Where a model gives its best so many, the weakest may be another one that is as weak: so near to it,
# as a share of the largest score, and so few of them.
_NEAR_THE_END, _MOST_AT_THE_END = 1e-3, 0.1
_MOST = 3000
# Comparing all detections of a call with all of another takes this many differences at most.
_MOST_DIFFERENCES = 100_000_000
_TIE = 0.01


class Detections(NamedTuple):
    """Boxes `[n, 4]` and scores `[n, classes or 1]` of a call, which `groups` `[n]` tell apart.

    Those of one group may stand for one another: of an image and of a class, where there is one class
    to each. `counts` `[n]`: all but the weakest few.
    """

    boxes: np.ndarray
    scores: np.ndarray
    groups: np.ndarray
    counts: np.ndarray


def detections_apart(
    expected: Mapping[str, np.ndarray], actual: Mapping[str, np.ndarray]
) -> float | None:
    """How far each expected detection lies from the nearest one of its class in its image.

    The largest difference of a score or of an edge, as a share of the largest. None where outputs are
    no detections: boxes, scores and labels, rows of six, or boxes and the scores of all classes for
    each. A few that tie with the weakest do not count.
    """
    import numpy as np
    from scipy.spatial.distance import cdist

    reference, candidate = _detections(expected), _detections(actual)
    if reference is None or candidate is None or reference.scores.shape[1] != candidate.scores.shape[1]:
        return None
    count, columns = max(len(reference.scores), len(candidate.scores)), 4 + reference.scores.shape[1]
    if count > _MOST or count**2 * columns > _MOST_DIFFERENCES:
        return None
    size = float(np.abs(reference.boxes).max(initial=0.0)) or 1.0
    largest = np.ones(reference.scores.shape[1])
    # Classes of other ranges have scales of their own, as in `scaled_parts` of rows in their places.
    for part, scale in scaled_parts(np.abs(reference.scores)[:, None]):
        largest[part[2] if part is not ... else part] = scale
    first, second = (
        np.concatenate([each.boxes / size, each.scores / largest], axis=1)
        for each in (reference, candidate)
    )
    distances = cdist(first, second, "chebyshev")
    distances[reference.groups[:, None] != candidate.groups[None]] = np.inf
    ways = (
        distances.min(axis=1, initial=np.inf)[reference.counts],
        distances.min(axis=0, initial=np.inf)[candidate.counts],
    )
    return max(float(way.max(initial=0.0)) for way in ways)


def all_tie(outputs: Mapping[str, np.ndarray]) -> bool:
    """Whether outputs are detections that are all as likely: which of them are given is chance then."""
    import numpy as np

    detections = _detections(outputs)
    if detections is None or len(detections.scores) < 2:
        return False
    best = detections.scores.max(axis=1)
    return float(np.ptp(best)) <= _TIE * float(np.abs(best).max())


def _detections(outputs: Mapping[str, np.ndarray]) -> Detections | None:
    """The outputs as detections."""
    import numpy as np

    parts = _with_labels(outputs) or _of_all_classes(outputs)
    if parts is None or not parts[0].size or not all(np.isfinite(each).all() for each in parts):
        return None
    boxes, scores, labels = parts
    if (labels != np.round(labels)).any() or (labels < 0).any():
        return None
    groups = labels + np.arange(len(labels))[:, None] * (int(labels.max()) + 1)
    best = scores.max(axis=2)
    near = best.min(axis=1, keepdims=True) + _NEAR_THE_END * float(np.abs(best).max())
    weakest = best <= near
    few = weakest.sum(axis=1, keepdims=True) <= _MOST_AT_THE_END * best.shape[1]
    return Detections(
        boxes.reshape(-1, 4).astype(np.float64),
        scores.reshape(groups.size, -1).astype(np.float64),
        groups.reshape(-1),
        ~(weakest & few).reshape(-1),
    )


def _with_labels(
    outputs: Mapping[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Boxes `[images, n, 4]`, scores `[images, n, 1]` and labels `[images, n]`, of one class each."""
    arrays = list(outputs.values())
    if len(arrays) == 1 and arrays[0].ndim in (2, 3) and arrays[0].shape[-1] == 6:
        rows = arrays[0]
        boxes, scores, labels = rows[..., :4], rows[..., 4], rows[..., 5]
    elif len(arrays) == 3:
        box_arrays = [
            a for a in arrays if a.ndim in (2, 3) and a.shape[-1] == 4 and a.dtype.kind == "f"
        ]
        flat = [a for a in arrays if box_arrays and a.shape == box_arrays[0].shape[:-1]]
        whole = [a for a in flat if a.dtype.kind in "iu"]
        floats = [a for a in flat if a.dtype.kind == "f"]
        if len(box_arrays) != 1 or len(whole) != 1 or len(floats) != 1:
            return None
        boxes, scores, labels = box_arrays[0], floats[0], whole[0]
    else:
        return None
    if boxes.ndim == 2:
        boxes, scores, labels = boxes[None], scores[None], labels[None]
    return boxes, scores[..., None], labels


def _of_all_classes(
    outputs: Mapping[str, np.ndarray],
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Boxes `[images, n, 4]`, scores `[images, n, classes]` and zeros `[images, n]`, as of RT-DETR.

    Boxes are places in the picture: offsets from anchors mean something in their order alone.
    """
    import numpy as np

    # A detector of four classes has two outputs of four columns.
    arrays = [outputs[name] for name in sorted(outputs, key=lambda name: "box" not in name)]
    if len(arrays) != 2 or any(a.ndim != 3 or a.dtype.kind != "f" for a in arrays):
        return None
    for boxes, scores in (arrays, arrays[::-1]):
        if boxes.shape[2] != 4 or boxes.shape[:2] != scores.shape[:2]:
            continue
        corners = (boxes[..., 2:] >= boxes[..., :2]).all()
        if corners or (boxes >= 0).all():
            return boxes, scores, np.zeros(boxes.shape[:2], np.int64)
    return None
