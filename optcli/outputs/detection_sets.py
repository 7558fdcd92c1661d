"""Detections of two models of the same images, as sets: equal scores may stand in any order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

# Where a model gives its best so many, the weakest may be another one that is as weak: so near to it,
# as a share of the largest score, and so few of them.
_NEAR_THE_END, _MOST_AT_THE_END = 1e-3, 0.1
_MOST = 3000
_TIE = 0.01


class Detections(NamedTuple):
    """Boxes `[n, 4]`, scores and class numbers `[n]` of a call; `counts`: all but the weakest few."""

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray
    counts: np.ndarray


def detections_apart(
    expected: Mapping[str, np.ndarray], actual: Mapping[str, np.ndarray]
) -> float | None:
    """How far each expected detection lies from the nearest one of its class in its image.

    The largest difference of a score or of an edge, as a share of the largest. None where outputs are
    no detections: boxes, scores and labels, or rows of six. A few that tie with the weakest do not
    count.
    """
    import numpy as np

    theirs, mine = _detections(expected), _detections(actual)
    if theirs is None or mine is None or max(len(theirs.scores), len(mine.scores)) > _MOST:
        return None
    largest = float(np.abs(theirs.scores).max(initial=0.0)) or 1.0
    size = float(np.abs(theirs.boxes).max(initial=0.0)) or 1.0
    apart = 0.0
    for a, b in ((theirs, mine), (mine, theirs)):
        edges = np.abs(a.boxes[a.counts, None] - b.boxes[None]).max(axis=2) / size
        scores = np.abs(a.scores[a.counts, None] - b.scores[None]) / largest
        far = np.where(a.labels[a.counts, None] == b.labels[None], np.maximum(edges, scores), np.inf)
        apart = max(apart, float(far.min(axis=1, initial=np.inf).max()))
    return apart


def all_tie(outputs: Mapping[str, np.ndarray]) -> bool:
    """Whether outputs are detections that are all as likely: which of them are given is chance then."""
    import numpy as np

    found = _detections(outputs)
    return (
        found is not None
        and len(found.scores) > 1
        and float(np.ptp(found.scores)) <= (_TIE * float(np.abs(found.scores).max()))
    )


def _detections(outputs: Mapping[str, np.ndarray]) -> Detections | None:
    """The outputs as detections, images told apart by their labels."""
    import numpy as np

    arrays = list(outputs.values())
    if len(arrays) == 1 and arrays[0].ndim in (2, 3) and arrays[0].shape[-1] == 6:
        rows = arrays[0]
        boxes, scores, labels = rows[..., :4], rows[..., 4], rows[..., 5]
    elif len(arrays) == 3:
        found = [a for a in arrays if a.ndim in (2, 3) and a.shape[-1] == 4 and a.dtype.kind == "f"]
        flat = [a for a in arrays if found and a.shape == found[0].shape[:-1]]
        whole = [a for a in flat if a.dtype.kind in "iu"]
        floats = [a for a in flat if a.dtype.kind == "f"]
        if len(found) != 1 or len(whole) != 1 or len(floats) != 1:
            return None
        boxes, scores, labels = found[0], floats[0], whole[0]
    else:
        return None
    if not boxes.size or not all(np.isfinite(each).all() for each in (boxes, scores, labels)):
        return None
    if (labels != np.round(labels)).any() or (labels < 0).any():
        return None
    if boxes.ndim == 2:
        boxes, scores, labels = boxes[None], scores[None], labels[None]
    images = np.arange(len(labels))[:, None] * (int(labels.max()) + 1)
    near = scores.min(axis=1, keepdims=True) + _NEAR_THE_END * float(np.abs(scores).max())
    weakest = scores <= near
    few = weakest.sum(axis=1, keepdims=True) <= _MOST_AT_THE_END * scores.shape[1]
    return Detections(
        boxes.reshape(-1, 4).astype(np.float64),
        scores.reshape(-1).astype(np.float64),
        (labels + images).reshape(-1),
        ~(weakest & few).reshape(-1),
    )
