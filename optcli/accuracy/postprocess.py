"""From the model's outputs for one image to classes or boxes, as `postprocess.json` beside this says.

Classes are the best few with their probability; `label` is the class number from 0. Boxes are
[left, top, right, bottom]: they are decoded, those of a small score left out, overlapping ones of a
class suppressed (NMS), and the rest brought back to pixels of the original image. Needs NumPy.
Answers are plain data, ready for JSON. optcli's own evaluation decodes boxes with the same functions;
bundles have a copy of this file, which imports nothing of optcli.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

FILE = "postprocess.json"


class Postprocess:
    """Turns outputs into answers. Safe to call from several threads."""

    def __init__(self, settings: dict[str, Any]) -> None:
        if settings.get("schema") != 1:
            raise ValueError(f"{FILE} has schema {settings.get('schema')}, wanted 1")
        self.kind: str = settings["kind"]
        if self.kind not in ("classes", "yolox", "boxes"):
            raise ValueError(f"{FILE} has the kind {self.kind!r}, wanted classes, yolox or boxes")
        self._how: dict[str, Any] = settings[self.kind]
        self._names: list[str] | None = settings["names"]
        self._size: tuple[int, int] | None = settings["size"] and tuple(settings["size"])

    @classmethod
    def from_file(cls, path: Path) -> Postprocess:
        """The steps that a file declares. Raises OSError and ValueError."""
        return cls(json.loads(path.read_text(encoding="utf-8")))

    def answer(
        self,
        outputs: Mapping[str, np.ndarray],
        placement: Mapping[str, Any],
        size: tuple[int, int] | None = None,
    ) -> dict[str, Any]:
        """`{"classes": [...]}` or `{"boxes": [...]}`, best first, for the outputs of one image.

        `outputs` are without the batch. `placement` is what `Images.prepared` gave, `size` the height
        and width of that input, needed where the model takes several. Raises ValueError for outputs of
        another shape, and for scores that are no numbers.
        """
        if self.kind == "classes":
            return {"classes": self._classes(outputs)}
        size = self._size or size
        if size is None:
            raise ValueError("the size of the input is needed to decode boxes")
        detections = decoded(self.kind, self._how, outputs, size)
        height, width = placement["original_size"]
        boxes = to_original(detections["boxes"], placement)
        scores, labels = detections["scores"], detections["labels"]
        rows = zip(boxes.tolist(), scores.tolist(), labels.tolist(), strict=True)
        best = [
            {**self._named(label), "score": score, "box": box}
            for box, score, label in itertools.islice(rows, self._how["most"])
        ]
        return {"image": {"height": height, "width": width}, "boxes": best}

    def _named(self, label: int) -> dict[str, Any]:
        if self._names is None or not 0 <= label < len(self._names):
            return {"label": label}
        return {"label": label, "name": self._names[label]}

    def _classes(self, outputs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
        scores = _output(outputs, self._how["output"]).astype(np.float64)
        if scores.ndim > 1 and all(size == 1 for size in scores.shape[1:]):
            scores = scores.reshape(scores.shape[0])
        if scores.ndim != 1 or not len(scores):
            raise ValueError(f"the output has the shape {list(scores.shape)}, wanted [classes]")
        if not np.isfinite(scores).all():
            raise ValueError("the model gave scores that are infinite or NaN")
        shares = _shares(scores, self._how["activation"])
        # Equal scores keep their order, as in the metric.
        order = np.argsort(-scores, kind="stable")[: self._how["top"]]
        return [{**self._named(label), "score": float(shares[label])} for label in order.tolist()]


def _shares(scores: np.ndarray, activation: str) -> np.ndarray:
    """Probabilities of the classes. `auto` takes a row for what it is: probabilities, or logits."""
    if activation == "auto":
        # Probabilities in 8 bits do not add up to 1 to the last digit.
        sound = scores.min() >= 0 and scores.max() <= 1.001 and abs(scores.sum() - 1) < 0.05
        activation = "none" if sound else "softmax"
    return np.clip(_activated(scores, activation), 0, 1) if activation != "none" else scores


def decoded(
    kind: str, how: Mapping[str, Any], outputs: Mapping[str, np.ndarray], size: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Boxes in pixels of the input, scores and labels of one image, best first, after score and NMS.

    `kind` is yolox or boxes, `how` its settings, `size` height and width of the input. Raises
    ValueError for outputs of another shape.
    """
    return (_yolox if kind == "yolox" else _boxes)(how, outputs, size)


def _yolox(
    how: Mapping[str, Any], outputs: Mapping[str, np.ndarray], size: tuple[int, int]
) -> dict[str, np.ndarray]:
    """Centre = (out + grid)·stride, size = exp(out)·stride, score = objectness·class score (YOLOX)."""
    rows = _output(outputs, how["output"]).astype(np.float32)
    grid, stride = _grid(how["strides"], size)
    if rows.ndim != 2 or rows.shape[1] < 6 or (len(rows) != len(grid) and not how["decoded"]):
        raise ValueError(
            f"the output has the shape {list(rows.shape)}, wanted [{len(grid)}, 5 + classes]"
        )
    centre, extent = rows[:, :2], rows[:, 2:4]
    if not how["decoded"]:
        # Where an artifact is broken these overflow; such boxes are left out with all not finite.
        with np.errstate(over="ignore"):
            centre, extent = (centre + grid) * stride, np.exp(extent) * stride
    boxes = np.concatenate([centre - extent / 2, centre + extent / 2], axis=1)
    return _chosen(boxes, rows[:, 4:5] * rows[:, 5:], how)


def _grid(strides: Sequence[int], size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    cells, scales = [], []
    for stride in strides:
        rows, columns = np.indices((size[0] // stride, size[1] // stride))
        cells.append(np.stack([columns, rows], axis=-1).reshape(-1, 2))
        scales.append(np.full((cells[-1].shape[0], 1), stride))
    return np.concatenate(cells).astype(np.float32), np.concatenate(scales).astype(np.float32)


def _boxes(
    how: Mapping[str, Any], outputs: Mapping[str, np.ndarray], size: tuple[int, int]
) -> dict[str, np.ndarray]:
    rows = _output(outputs, how["boxes"]).astype(np.float32)
    rows = rows.T if how["transposed"] else rows
    if rows.ndim != 2 or rows.shape[1] < 4 or (how["scores"] is None and rows.shape[1] < 5):
        wanted = "[boxes, 4]" if how["scores"] else "[boxes, 4 + classes]"
        raise ValueError(f"the boxes have the shape {list(rows.shape)}, wanted {wanted}")
    boxes = _corners(rows[:, :4], how["format"])
    if how["normalized"]:
        boxes = boxes * np.array([size[1], size[0], size[1], size[0]], np.float32)
    if how["scores"] is None:
        scores = rows[:, 4:]
    else:
        scores = _output(outputs, how["scores"]).astype(np.float32)
        scores = scores.T if how["transposed"] and scores.ndim == 2 else scores
    first = how["first_label"]
    if how["labels"] is not None:
        labels = _output(outputs, how["labels"]).reshape(-1).astype(np.int64)
        return _kept(boxes, scores.reshape(-1), labels - first, how)
    if how["objectness"]:
        scores = scores[:, :1] * scores[:, 1:]
    scores = _activated(scores, how["activation"])
    scores = {"none": scores, "first": scores[:, 1:], "last": scores[:, :-1]}[how["background"]]
    detections = _chosen(boxes, scores, how)
    return {**detections, "labels": detections["labels"] + first}


def _corners(boxes: np.ndarray, form: str) -> np.ndarray:
    if form == "xyxy":
        return boxes
    first, extent = boxes[:, :2], boxes[:, 2:]
    first = first - extent / 2 if form == "cxcywh" else first
    return np.concatenate([first, first + extent], axis=1)


def _activated(scores: np.ndarray, activation: str) -> np.ndarray:
    if activation == "none":
        return scores
    if activation == "sigmoid":
        with np.errstate(over="ignore"):
            probabilities: np.ndarray = 1 / (1 + np.exp(-scores))
        return probabilities
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    shares: np.ndarray = exponentials / exponentials.sum(axis=-1, keepdims=True)
    return shares


def _chosen(boxes: np.ndarray, scores: np.ndarray, how: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Every class of a box whose score is large enough, or only the best one of each box."""
    if how["multi_label"]:
        box, label = np.nonzero(scores > how["score"])
    else:
        box = np.flatnonzero(scores.max(axis=1) > how["score"])
        label = scores[box].argmax(axis=1)
    return _kept(boxes[box], scores[box, label], label, how)


def _kept(
    boxes: np.ndarray, scores: np.ndarray, labels: np.ndarray, how: Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """After score and NMS by class, best first, in pixels of the input."""
    sound = (scores > how["score"]) & np.isfinite(scores) & np.isfinite(boxes).all(axis=1)
    boxes, scores, labels = boxes[sound], scores[sound], labels[sound]
    order = np.argsort(-scores, kind="stable")
    boxes, scores, labels = boxes[order], scores[order], labels[order]
    if how["nms"] is not None:
        left = np.zeros(len(boxes), bool)
        for label in np.unique(labels):
            members = np.flatnonzero(labels == label)
            left[members[_suppressed(boxes[members], how["nms"])]] = True
        boxes, scores, labels = boxes[~left], scores[~left], labels[~left]
    return {"boxes": boxes, "scores": scores, "labels": labels}


def _suppressed(boxes: np.ndarray, threshold: float) -> np.ndarray:
    """Which of the boxes, best first, overlap a better one that stays by more than the threshold."""
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


def to_original(boxes: np.ndarray, placement: Mapping[str, Any]) -> np.ndarray:
    """Boxes in pixels of the input as pixels of the original: (place - padding) / scale, float64."""
    vertical, horizontal = placement["scale"]
    top, left = placement["padding"]
    edges = boxes.astype(np.float64) - np.array([left, top, left, top])
    original: np.ndarray = edges / np.array([horizontal, vertical, horizontal, vertical])
    return original


def _output(outputs: Mapping[str, np.ndarray], name: str | None) -> np.ndarray:
    name = name or next(iter(outputs))
    if name not in outputs:
        raise ValueError(f"the model has no output {name!r}, it has {', '.join(outputs)}")
    return outputs[name]
