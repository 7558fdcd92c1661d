"""From a detector's outputs to detections in pixels of the original image."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import user_code
from optcli.accuracy.metrics import Predictions
from optcli.data import Preparation
from optcli.errors import InputError, OptcliError, did_you_mean, first_line
from optcli.settings.postprocess import BoxDecoding, PostprocessSettings, YoloxDecoding

if TYPE_CHECKING:
    import numpy as np

    # Outputs of one sample, its meta, and height and width of the input.
    Decode = Callable[[Mapping[str, np.ndarray], Mapping[str, Any], tuple[int, int]], Any]


def make(settings: PostprocessSettings | None, folder: Path) -> Decode | None:
    """The decoding step; None without one. Imports the user's code where it is theirs."""
    if settings is None:
        return None
    if settings.python is not None:
        return _users(settings.python, folder)
    if settings.yolox is not None:
        yolox = settings.yolox
        return lambda outputs, meta, size: _yolox(yolox, outputs, meta, size)
    assert settings.boxes is not None
    boxes = settings.boxes
    return lambda outputs, meta, size: _boxes(boxes, outputs, meta, size)


def remarks(settings: PostprocessSettings | None, prepare: Preparation | None) -> list[str]:
    """What a preparation does otherwise than the detectors that are decoded so were trained with."""
    if settings is None or settings.yolox is None:
        return []
    box = prepare.letterbox if prepare else None
    fault = "fits no letterbox" if box is None else "centres it"
    if box is not None and box.align == "top_left":
        return []
    return [
        "YOLOX was trained with the image at the top left of its letterbox, and `prepare` of the"
        f" evaluation data {fault}; that costs mAP: prepare: {{letterbox: {{align: top_left, ...}}}}"
    ]


def decode(step: Decode, seen: Predictions, size: tuple[int, int]) -> list[Any]:
    """What the step makes of each sample."""
    return [step(seen.of_sample(i), meta, size) for i, meta in enumerate(seen.meta)]


def _users(reference: str, folder: Path) -> Decode:
    function = user_code.load(reference, folder)
    if not callable(function):
        hint = "decode(outputs, meta) gives {boxes, scores, labels}, or what the metric reads"
        raise InputError(f"{reference} cannot be called", place="postprocess", hint=hint)

    def call(outputs: Mapping[str, np.ndarray], meta: Mapping[str, Any], size: tuple[int, int]) -> Any:
        try:
            return function(dict(outputs), dict(meta))
        except OptcliError:
            raise
        except Exception as error:  # it is the user's code, which may raise anything
            files = user_code.closure(reference, folder).files
            raise InputError(
                f"postprocess raises {type(error).__name__}: {first_line(error)}",
                place=user_code.place_of(error, files) or reference,
                hint="mend it; it is called as decode(outputs, meta) with the outputs by name",
            ) from error

    return call


def _yolox(
    how: YoloxDecoding,
    outputs: Mapping[str, np.ndarray],
    meta: Mapping[str, Any],
    size: tuple[int, int],
) -> dict[str, np.ndarray]:
    """Centre = (out + grid)·stride, size = exp(out)·stride, score = objectness·class score (YOLOX)."""
    import numpy as np

    rows = _output(outputs, how.output).astype(np.float32)
    grid, stride = _grid(how.strides, size)
    if rows.ndim != 2 or rows.shape[1] < 6 or (len(rows) != len(grid) and not how.decoded):
        raise InputError(
            f"found an output of {list(rows.shape)} for a sample, wanted [{len(grid)}, 5 + classes]",
            place="postprocess.yolox",
            hint="look at strides and at the input's size",
        )
    centre, extent = rows[:, :2], rows[:, 2:4]
    if not how.decoded:
        # Where an artifact is broken these overflow; such boxes are left out with all not finite.
        with np.errstate(over="ignore"):
            centre, extent = (centre + grid) * stride, np.exp(extent) * stride
    boxes = np.concatenate([centre - extent / 2, centre + extent / 2], axis=1)
    return _chosen(boxes, rows[:, 4:5] * rows[:, 5:], how, meta)


def _grid(strides: Sequence[int], size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    import numpy as np

    cells, scales = [], []
    for stride in strides:
        rows, columns = np.indices((size[0] // stride, size[1] // stride))
        cells.append(np.stack([columns, rows], axis=-1).reshape(-1, 2))
        scales.append(np.full((cells[-1].shape[0], 1), stride))
    return np.concatenate(cells).astype(np.float32), np.concatenate(scales).astype(np.float32)


def _boxes(
    how: BoxDecoding, outputs: Mapping[str, np.ndarray], meta: Mapping[str, Any], size: tuple[int, int]
) -> dict[str, np.ndarray]:
    import numpy as np

    rows = _output(outputs, how.boxes).astype(np.float32)
    rows = rows.T if how.transposed else rows
    if rows.ndim != 2 or rows.shape[1] < 4 or (how.scores is None and rows.shape[1] < 5):
        wanted = "[boxes, 4]" if how.scores else "[boxes, 4 + classes]"
        raise InputError(
            f"found boxes of shape {list(rows.shape)} for a sample, wanted {wanted}",
            place="postprocess.boxes",
            hint="name the outputs with boxes: and scores:, or set transposed: true",
        )
    boxes = _corners(rows[:, :4], how.format)
    if how.normalized:
        boxes = boxes * np.array([size[1], size[0], size[1], size[0]], np.float32)
    scores = rows[:, 4:] if how.scores is None else _output(outputs, how.scores).astype(np.float32)
    if how.scores is not None and how.transposed and scores.ndim == 2:
        scores = scores.T
    if how.labels is not None:
        labels = _output(outputs, how.labels).reshape(-1).astype(np.int64)
        return _kept(boxes, scores.reshape(-1), labels - how.first_label, how, meta)
    if how.objectness:
        scores = scores[:, :1] * scores[:, 1:]
    scores = _activated(scores, how.activation)
    scores = {"none": scores, "first": scores[:, 1:], "last": scores[:, :-1]}[how.background]
    detections = _chosen(boxes, scores, how, meta)
    return {**detections, "labels": detections["labels"] + how.first_label}


def _corners(boxes: np.ndarray, form: str) -> np.ndarray:
    import numpy as np

    if form == "xyxy":
        return boxes
    first, extent = boxes[:, :2], boxes[:, 2:]
    first = first - extent / 2 if form == "cxcywh" else first
    return np.concatenate([first, first + extent], axis=1)


def _activated(scores: np.ndarray, activation: str) -> np.ndarray:
    import numpy as np

    if activation == "none":
        return scores
    if activation == "sigmoid":
        with np.errstate(over="ignore"):
            probabilities: np.ndarray = 1 / (1 + np.exp(-scores))
        return probabilities
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: np.ndarray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return shares


def _chosen(
    boxes: np.ndarray, scores: np.ndarray, how: YoloxDecoding | BoxDecoding, meta: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """Every class of a box whose score is large enough, or only the best one of each box."""
    import numpy as np

    if how.multi_label:
        box, label = np.nonzero(scores > how.score)
    else:
        box = np.flatnonzero(scores.max(axis=1) > how.score)
        label = scores[box].argmax(axis=1)
    return _kept(boxes[box], scores[box, label], label, how, meta)


def _kept(
    boxes: np.ndarray,
    scores: np.ndarray,
    labels: np.ndarray,
    how: YoloxDecoding | BoxDecoding,
    meta: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """After score and NMS by class, best first, in pixels of the original image."""
    import numpy as np

    sound = (scores > how.score) & np.isfinite(boxes).all(axis=1)
    boxes, scores, labels = boxes[sound], scores[sound], labels[sound]
    order = np.argsort(-scores, kind="stable")
    boxes, scores, labels = boxes[order], scores[order], labels[order]
    if how.nms is not None:
        left = np.zeros(len(boxes), bool)
        for label in np.unique(labels):
            members = np.flatnonzero(labels == label)
            left[members[_suppressed(boxes[members], how.nms)]] = True
        boxes, scores, labels = boxes[~left], scores[~left], labels[~left]
    return {"boxes": to_original(boxes, meta), "scores": scores, "labels": labels}


def _suppressed(boxes: np.ndarray, threshold: float) -> np.ndarray:
    """Which of the boxes, best first, overlap a better one that stays by more than the threshold."""
    import numpy as np

    left = np.zeros(len(boxes), bool)
    areas = (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])
    for index in range(len(boxes)):
        if left[index]:
            continue
        rest = slice(index + 1, None)
        low = np.maximum(boxes[index, :2], boxes[rest, :2])
        high = np.minimum(boxes[index, 2:], boxes[rest, 2:])
        shared = np.clip(high - low, 0, None).prod(axis=1)
        union = areas[index] + areas[rest] - shared
        overlap = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
        left[rest] |= overlap.astype(np.float64) > threshold
    return left


def to_original(boxes: np.ndarray, meta: Mapping[str, Any]) -> np.ndarray:
    """Boxes in pixels of the input as pixels of the original: (place - padding) / scale, float64."""
    import numpy as np

    vertical, horizontal = meta.get("scale", (1.0, 1.0))
    top, left = meta.get("padding", (0, 0))
    original: np.ndarray = (boxes.astype(np.float64) - np.array([left, top, left, top])) / np.array(
        [horizontal, vertical, horizontal, vertical]
    )
    return original


def _output(outputs: Mapping[str, np.ndarray], name: str | None) -> np.ndarray:
    name = name or next(iter(outputs))
    if name not in outputs:
        hint = did_you_mean(name, list(outputs))
        raise InputError(f"the model has no output {name!r}", place="postprocess", hint=hint)
    return outputs[name]
