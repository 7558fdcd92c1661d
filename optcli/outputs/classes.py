"""The classes of a model: how many its outputs have, and their names as decoding numbers them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from optcli.outputs.describing import DeclaredOutput
from optcli.settings.postprocess import PostprocessSettings

_COCO_CLASSES = 80
_MASKS = 4  # dimensions of the output of prototypes
# How torchvision's weights call the background, and the numbers that COCO's ids leave out.
_NO_CLASS = ("__background__", "N/A")


def class_count(kind: str, how: Mapping[str, Any], outputs: Sequence[DeclaredOutput]) -> int | None:
    """How many classes the model knows, without a background; None where its outputs do not tell.

    `kind` is `classes` or a key of `postprocess`, and `how` its settings.
    """
    if kind == "classes":
        tensor, place, others = _tensor(outputs, how["output"]), 1, 0
    elif kind == "yolox":
        tensor, place, others = _tensor(outputs, how["output"]), -1, 5
    elif how["numbering"] == "coco":
        return _COCO_CLASSES
    elif kind == "rows" or how["labels"] is not None or how["first_label"]:
        return None
    elif how["classes"] is not None:
        return int(how["classes"]) - bool(how["background"] != "none")
    else:
        tensor = _tensor(outputs, how["scores"] or how["boxes"])
        place = -2 if how["transposed"] else -1
        others = (0 if how["scores"] else 4) + how["objectness"] + (how["background"] != "none")
        others += _behind(how, outputs)
    shape = tensor.shape if tensor is not None else None
    if shape is None or len(shape) < (2 if place == 1 else 3):
        return None
    size = shape[place]
    return size - others if isinstance(size, int) and size > others else None


def _behind(how: Mapping[str, Any], outputs: Sequence[DeclaredOutput]) -> int:
    """How many numbers stand behind the classes, as far as the outputs tell."""
    prototypes = _tensor(outputs, how["prototypes"]) if how["prototypes"] else None
    if prototypes is not None and prototypes.shape is not None and len(prototypes.shape) == _MASKS:
        count = prototypes.shape[1]
        return count if isinstance(count, int) else 0
    points = how["keypoints"]
    return math.prod(points) if isinstance(points, list) else int(how["angle"])


def decoded_names(names: Sequence[str], postprocess: PostprocessSettings | None) -> tuple[str, ...]:
    """The names of a model's classes in the order in which `postprocess` numbers them.

    A detector of COCO's ids is decoded by its file where no recipe says how: without the gaps.
    """
    detector = postprocess.detector if postprocess is not None else None
    how: Mapping[str, Any] = detector[1] if detector is not None else {}
    if how.get("numbering") == "coco" or (postprocess is None and "N/A" in names):
        return tuple(name for name in names if name not in _NO_CLASS)
    before = how.get("first_label", 0) + (how.get("background") == "first")
    return tuple(names[before:])


def _tensor(outputs: Sequence[DeclaredOutput], name: str | None) -> DeclaredOutput | None:
    named = [each for each in outputs if name is None or each.name == name]
    return named[0] if named else None
