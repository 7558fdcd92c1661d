"""From the model's outputs for one image to classes or boxes, as `postprocess.json` beside this says.

Classes are the best few with their probability; `label` is the class number from 0. Boxes are
[left, top, right, bottom]: they are decoded, those of a small score left out, overlapping ones of a
class suppressed (NMS), and the rest brought back to pixels of the original image. A box may have a
mask, keypoints or the corners of a rotated box. Needs NumPy. Answers are plain data, ready for JSON.
optcli's own evaluation decodes boxes with the same functions; bundles have a copy of this file and of
the two that it imports.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

if __package__:
    from optcli.outputs import instances, suppression
else:  # in a bundle, where the three lie beside each other
    import instances  # type: ignore[no-redef]
    import suppression  # type: ignore[no-redef]

FILE = "postprocess.json"
# COCO's classes by its ids, which leave out some numbers: -1.
_COCO_CLASSES = 80
_OF_COCO = np.full(91, -1)
_OF_COCO[np.setdiff1d(np.arange(91), (0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83))] = np.arange(80)
_RANK = 2  # of boxes, or rows, of one image
# In 8 bits 1 may come out as 256/255.
_LARGEST_SCORE = 1.01
# Class numbers in few bits are nearly whole; what is further away is none.
_NO_CLASS = 0.25
# What of the settings names an output.
_NAMES = ("output", "boxes", "scores", "labels", "prototypes", "masks", "keypoints")


class _Candidates(NamedTuple):
    """Boxes in pixels of the input, [n, 4]; scores and labels [n], or scores [n, classes] alone.

    `more` has a row for each box: coefficients of its mask or a map of it, keypoints, or an angle, of
    which the boxes are centre, width and height.
    """

    boxes: np.ndarray
    scores: np.ndarray
    labels: np.ndarray | None
    more: dict[str, np.ndarray]


class Postprocess:
    """Turns outputs into answers. Safe to call from several threads."""

    def __init__(self, settings: dict[str, Any]) -> None:
        if settings.get("schema") != 1:
            raise ValueError(f"{FILE} has schema {settings.get('schema')}, wanted 1")
        self.kind: str = settings["kind"]
        if self.kind not in ("classes", "yolox", "boxes", "rows"):
            wanted = "classes, yolox, boxes or rows"
            raise ValueError(f"{FILE} has the kind {self.kind!r}, wanted {wanted}")
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
        image: int = 0,
    ) -> dict[str, Any]:
        """`{"classes": [...]}` or `{"boxes": [...]}`, best first, for one image.

        `outputs` are those of a call, and `image` is the number of the image in it. `placement` is what
        `Images.prepared` gave, `size` the height and width of that input, needed where the model takes
        several. Raises ValueError for outputs of another shape, and for what are no scores or classes.
        """
        if self.kind == "classes":
            return {"classes": self._classes(outputs, image)}
        size = placement.get("network_size") or self._size or size
        if size is None:
            raise ValueError("the size of the input is needed to decode boxes")
        classes = None if self._names is None else len(self._names)
        detections, _ = decoded(self.kind, self._how, outputs, size, image, classes)
        height, width = placement["original_size"]
        detections = instances.in_original(detections, placement, self._how, size)
        # A box ends where its image does; one that lies outside is none of it.
        edges = np.array([width, height, width, height], np.float64)
        boxes, scores, labels = (
            detections["boxes"],
            detections["scores"].tolist(),
            detections["labels"].tolist(),
        )
        inside = (boxes[:, 2:] > 0).all(axis=1) & (boxes[:, :2] < edges[:2]).all(axis=1)
        boxes = boxes.clip(0, edges).tolist()
        best = [
            {
                **self._named(labels[index]),
                "score": scores[index],
                "box": boxes[index],
                **instances.described(detections, index),
            }
            for index in np.flatnonzero(inside).tolist()
        ]
        return {"image": {"height": height, "width": width}, "boxes": best}

    def _named(self, label: int) -> dict[str, Any]:
        if self._names is None or not 0 <= label < len(self._names):
            return {"label": label}
        return {"label": label, "name": self._names[label]}

    def _classes(self, outputs: Mapping[str, np.ndarray], image: int) -> list[dict[str, Any]]:
        scores = instances.output(outputs, self._how["output"]).astype(np.float64)
        scores = scores[image] if scores.ndim > 1 else scores
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


def outputs_of(how: Mapping[str, Any]) -> tuple[str, ...]:
    """The outputs that the settings of a kind name, each once."""
    named = (how.get(key) for key in _NAMES)
    return tuple(dict.fromkeys(name for name in named if isinstance(name, str)))


class MisreadError(ValueError):
    """Outputs that are something else than the settings say; `message`, and what to do (`hint`)."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(f"{message}: {hint}")
        self.message, self.hint = message, hint


def decoded(
    kind: str,
    how: Mapping[str, Any],
    outputs: Mapping[str, np.ndarray],
    size: tuple[int, int],
    image: int = 0,
    classes: int | None = None,
    *,
    refuse: bool = True,
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Boxes in pixels of the input, scores and labels of one image, best first; and what to note.

    Boxes that the model gives in pixels of the `original` are left so. What a box has beside these is
    there by the names `coefficients` and `prototypes`, `maps`, `keypoints` and `corners`, as
    `instances.in_original` reads it.

    `kind` is yolox, boxes or rows, `how` its settings, `size` height and width of the input. `outputs`
    are those of a call, and `image` is the number of the image in it. A model of one image may give
    them without a dimension for the batch: how many dimensions they have says so. Notes are a
    kind and its figures: `max_candidates LIMIT` and `max_detections LIMIT` where there were more,
    `columns` where more stand behind those that are read, and `classes MODEL DATA` where the numbers of
    classes differ.

    Raises ValueError for outputs of another shape, `MisreadError` for scores above 1 and for numbers of
    classes that are none of the `classes`. Without `refuse` that is noted as `misread`, and detections
    of no class are left out.
    """
    noted: list[str] = []
    if kind == "rows":
        read = _rows(how, outputs, size, image, noted)
    else:
        reader, main = (_yolox, how["output"]) if kind == "yolox" else (_boxes, how["boxes"])
        read = reader(how, _of_image(outputs, main, image), size)
        if read.labels is None and classes is not None and how.get("numbering") != "coco":
            count = read.scores.shape[1] + how.get("first_label", 0)
            if count != classes:
                noted.append(f"classes {count} {classes}")
    places, scores, labels = _candidates(read, how, noted)
    numbers, wrong = _class_numbers(labels, how, classes)
    if len(scores) and scores[0] > _LARGEST_SCORE:
        message = f"a detection has the score {scores[0]:.4g}, wanted 0 to 1"
        wrong = MisreadError(message, _of_scores(kind, how, outputs))
    if wrong is not None:
        if refuse:
            raise wrong
        noted.append("misread")
    known = np.flatnonzero(numbers >= 0)
    places, scores, numbers = places[known], scores[known], numbers[known]
    limits = (numbers, how["nms"], how["max_detections"])
    boxes, angles = read.boxes[places], read.more.get("angles")
    if angles is None:
        stay, left_out = suppression.suppressed(boxes, *limits)
    else:
        stay, left_out = suppression.rotated_suppressed(boxes, angles[places], *limits)
    if left_out:
        noted.append(f"max_detections {how['max_detections']}")
    boxes, more = boxes[stay], {name: array[places[stay]] for name, array in read.more.items()}
    if angles is not None:
        more = {"corners": instances.corners_of(boxes, more["angles"])}
        boxes = instances.enclosing(more["corners"])
    if how.get("prototypes") is not None:
        more["prototypes"] = instances.prototypes(how, outputs, image, more["coefficients"].shape[1])
    return {"boxes": boxes, "scores": scores[stay], "labels": numbers[stay], **more}, tuple(noted)


def _candidates(
    read: _Candidates, how: Mapping[str, Any], noted: list[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Places of the boxes, scores and class numbers of what has a large enough score, best first."""
    boxes, scores, labels, more = read
    if labels is not None:
        if not len(boxes) == len(scores) == len(labels):
            counts = f"{len(boxes)} boxes, {len(scores)} scores and {len(labels)} labels"
            raise ValueError(f"the outputs have {counts} for one image")
        places, labels = np.arange(len(boxes)), labels - how["first_label"]
    else:
        if how["multi_label"]:
            places, columns = np.nonzero(scores > how["score"])
        else:
            places = np.flatnonzero(scores.max(axis=1) > how["score"])
            columns = scores[places].argmax(axis=1)
        scores, labels = scores[places, columns], columns + how.get("first_label", 0)
    finite: np.ndarray = np.isfinite(boxes).all(axis=1)
    for array in more.values():
        finite &= np.isfinite(array).all(axis=tuple(range(1, array.ndim)))
    sound = np.flatnonzero(
        (scores > how["score"]) & np.isfinite(scores) & np.isfinite(labels) & finite[places]
    )
    most = how["max_candidates"]
    if how["nms"] is None or len(sound) <= most:
        most = len(sound)
    else:
        sound = sound[scores[sound] >= np.partition(scores[sound], -most)[-most]]
        noted.append(f"max_candidates {most}")
    best = sound[np.argsort(-scores[sound], kind="stable")][:most]
    return places[best], scores[best], labels[best]


def _of_image(
    outputs: Mapping[str, np.ndarray], main: str | None, image: int
) -> Mapping[str, np.ndarray]:
    """The outputs of one image of a call. If `main`, its boxes, is `[n, ...]`, there is no batch."""
    array = instances.output(outputs, main)
    if array.ndim > _RANK and len(array) > image:
        return {name: each[image] if each.ndim else each for name, each in outputs.items()}
    if array.ndim > _RANK or image:
        raise ValueError(f"the output has the shape {list(array.shape)}: no row for each image")
    return outputs


def _yolox(
    how: Mapping[str, Any], outputs: Mapping[str, np.ndarray], size: tuple[int, int]
) -> _Candidates:
    """Centre = (out + grid)·stride, size = exp(out)·stride, score = objectness·class score (YOLOX)."""
    rows = instances.output(outputs, how["output"]).astype(np.float32)
    grid, stride = _grid(how["strides"], size)
    if rows.ndim != _RANK or rows.shape[1] < 6 or (len(rows) != len(grid) and not how["decoded"]):
        raise ValueError(
            f"the output has the shape {list(rows.shape)}, wanted [{len(grid)}, 5 + classes]"
        )
    centre, extent = rows[:, :2], rows[:, 2:4]
    if not how["decoded"]:
        # Where an artifact is broken these overflow; such boxes are left out with all not finite.
        with np.errstate(over="ignore"):
            centre, extent = (centre + grid) * stride, np.exp(extent) * stride
    boxes = np.concatenate([centre - extent / 2, centre + extent / 2], axis=1)
    return _Candidates(boxes, rows[:, 4:5] * rows[:, 5:], None, {})


def _grid(strides: Sequence[int], size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    cells, scales = [], []
    for stride in strides:
        rows, columns = np.indices((size[0] // stride, size[1] // stride))
        cells.append(np.stack([columns, rows], axis=-1).reshape(-1, 2))
        scales.append(np.full((cells[-1].shape[0], 1), stride))
    return np.concatenate(cells).astype(np.float32), np.concatenate(scales).astype(np.float32)


def _boxes(
    how: Mapping[str, Any], outputs: Mapping[str, np.ndarray], size: tuple[int, int]
) -> _Candidates:
    rows = instances.output(outputs, how["boxes"]).astype(np.float32)
    rows = rows.T if how["transposed"] else rows
    behind = (how["classes"] or 1) + how["objectness"]
    if rows.ndim != _RANK or rows.shape[1] < (4 if how["scores"] else 4 + behind):
        wanted = "[boxes, 4]" if how["scores"] else "[boxes, 4 + classes]"
        raise ValueError(f"the boxes have the shape {list(rows.shape)}, wanted {wanted}")
    boxes, more = _corners(rows[:, :4], how, size), instances.own(how, outputs, len(rows), size)
    if how["scores"] is None:
        end = rows.shape[1] - instances.count_behind(how, outputs)
        if how["classes"] is not None:
            end = 4 + behind
        scores = rows[:, 4:end]
        more |= instances.behind(how, rows[:, end:], size)
    else:
        scores = instances.output(outputs, how["scores"]).astype(np.float32)
        scores = scores.T if how["transposed"] and scores.ndim == _RANK else scores
    if how["labels"] is not None:
        labels = instances.output(outputs, how["labels"]).reshape(-1)
        sigmoid = how["activation"] == "sigmoid"
        scores = _activated(scores, "sigmoid" if sigmoid else "none")
        return _Candidates(boxes, scores.reshape(-1), labels, more)
    if scores.ndim != _RANK or len(scores) != len(boxes):
        raise ValueError(
            f"the scores have the shape {list(scores.shape)}, wanted [{len(boxes)}, classes]"
        )
    first = int(how["objectness"])
    objectness, scores = scores[:, :first], scores[:, first:][:, : how["classes"]]
    scores = _activated(scores, how["activation"])
    if first:
        # A share in itself, whatever function makes shares of the classes' scores.
        scores = scores * _activated(objectness, "sigmoid" if how["activation"] != "none" else "none")
    scores = {"none": scores, "first": scores[:, 1:], "last": scores[:, :-1]}[how["background"]]
    return _Candidates(boxes, scores, None, more)


def _rows(
    how: Mapping[str, Any],
    outputs: Mapping[str, np.ndarray],
    size: tuple[int, int],
    image: int,
    noted: list[str],
) -> _Candidates:
    """Rows that are detections already: a column is a number of the box, its score or its class."""
    names = [each for name in how["columns"] for each in [name] * (4 if name == "box" else 1)]
    rows = instances.output(outputs, how["output"])
    if rows.ndim < _RANK or rows.shape[-1] < len(names):
        wanted = ", ".join(how["columns"])
        raise ValueError(
            f"the output has the shape {list(rows.shape)}, wanted rows of {len(names)}: {wanted}"
        )
    more = rows.shape[-1] - len(names)
    if more > (more if how["prototypes"] is not None else instances.count_behind(how, outputs)):
        noted.append("columns")
    together = "image" in names and (rows.ndim == _RANK or len(rows) == 1)
    if not together:
        rows = instances.output(_of_image(outputs, how["output"], image), how["output"])
    rows = rows.reshape(-1, rows.shape[-1]).astype(np.float32)
    if "image" in names:
        # The numbers of the images of a call; rows that hold nothing have a number below 0.
        numbers = rows[:, names.index("image")]
        rows = rows[numbers == image if together else numbers >= 0]
    box, score, label = (names.index(name) for name in ("box", "score", "class"))
    boxes = _corners(rows[:, box : box + 4], how, size)
    behind = instances.behind(how, rows[:, len(names) :], size)
    return _Candidates(boxes, rows[:, score], rows[:, label], behind)


def _corners(boxes: np.ndarray, how: Mapping[str, Any], size: tuple[int, int]) -> np.ndarray:
    """Left, top, right and bottom in pixels of the input; of a rotated box as they are."""
    if how["format"] != "xyxy" and not how["angle"]:
        first, extent = boxes[:, :2], boxes[:, 2:]
        first = first - extent / 2 if how["format"] == "cxcywh" else first
        boxes = np.concatenate([first, first + extent], axis=1)
    return boxes * np.array([size[1], size[0]] * 2, np.float32) if how["normalized"] else boxes


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


def _class_numbers(
    labels: np.ndarray, how: Mapping[str, Any], classes: int | None
) -> tuple[np.ndarray, MisreadError | None]:
    """The classes from 0, -1 for what is none; and why numbers are no classes of the data.

    Numbers that COCO's ids leave out are none either, without a reason.
    """
    numbers: np.ndarray = np.rint(labels).astype(np.int64)
    first, coco = how.get("first_label", 0), how.get("numbering") == "coco"
    end = len(_OF_COCO) if coco else np.inf if classes is None else classes
    broken, outside = np.abs(numbers - labels) > _NO_CLASS, (numbers < 0) | (numbers >= end)
    numbers[broken | outside] = -1
    sound = numbers >= 0
    if coco:
        numbers[sound] = _OF_COCO[numbers[sound]]
    if sound.all():
        return numbers, None
    value = labels[broken][0] if broken.any() else labels[outside].min()
    if broken.any():
        what = "this is another column or output: look at the order of the columns, and at `labels`"
    elif value < 0 < first:
        what = f"`first_label: {first}` is too large, or {round(value + first)} is the background"
    elif value < 0:
        what = "this is another column or output, or marks rows that hold nothing: raise `score`"
    else:
        value = labels[outside].max()
        what = (
            "the model has other classes than the data, or counts by ids with gaps"
            " (`labels: {numbering: ids}`)"
        )
        if coco:
            what = "COCO's ids are 1 to 90: leave `numbering` out"
        elif round(value) == classes and not first:
            what = "the model's first class is 1 (`first_label: 1`), or its last one is the background"
        elif classes == _COCO_CLASSES and value < len(_OF_COCO):
            what = "the model counts by COCO's ids, 1 to 90 with gaps: `numbering: coco`"
    there = "" if classes is None else f", and there are {classes} classes, from 0"
    return numbers, MisreadError(f"a detection has the class number {float(value):.4g}{there}", what)


def _of_scores(kind: str, how: Mapping[str, Any], outputs: Mapping[str, np.ndarray]) -> str:
    """What outputs probably are whose scores are above 1."""
    if kind == "rows":
        return "the columns stand in another order: `columns` names them"
    if kind == "yolox":
        return "the model gives logits, or is no YOLOX with its sigmoid: look at `boxes`"
    rows = instances.output(outputs, how["boxes"])
    rows = np.swapaxes(rows, -1, -2) if how["transposed"] else rows
    apart = how["scores"] is not None
    scores = instances.output(outputs, how["scores"]) if apart else rows[..., 4:]
    if not apart and scores.shape[-1] > 1:
        number = scores[..., 1]
        if scores[..., 0].max() <= _LARGEST_SCORE and (number == np.rint(number)).all():
            return "the rows are x1, y1, x2, y2, score and class: `rows: {}` in place of `boxes`"
    if scores.min() < 0 and how["activation"] == "none":
        columns = "" if apart or how["classes"] else ", or columns behind the classes (`classes: N`)"
        return f"the scores are logits (`activation: sigmoid` or `softmax`){columns}"
    if apart:
        return "the output holds no scores, or logits: look at `scores` and `activation`"
    return "pixels or other numbers are read as classes: look at `transposed`, `objectness`, `classes`"
