"""From a detector's outputs to detections in pixels of the original image."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import user_code
from optcli.accuracy.metrics import Predictions
from optcli.data import Preparation
from optcli.errors import InputError, did_you_mean
from optcli.settings.postprocess import PostprocessSettings

if TYPE_CHECKING:
    import numpy as np

    # Outputs of one sample, its meta, and height and width of the input.
    Decode = Callable[[Mapping[str, np.ndarray], Mapping[str, Any], tuple[int, int]], Any]

# What to do where outputs have another shape.
_HINTS = {
    "yolox": "look at strides and at the input's size",
    "boxes": "name the outputs with boxes: and scores:, or set transposed: true",
}


def make(settings: PostprocessSettings | None, folder: Path) -> Decode | None:
    """The decoding step; None without one. Imports the user's code where it is theirs."""
    if settings is None:
        return None
    if settings.python is not None:
        return _users(settings.python, folder)
    kind = "yolox" if settings.yolox is not None else "boxes"
    return partial(_detections, kind, getattr(settings, kind).model_dump())


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
        hint = "correct the code; optcli calls decode(outputs, meta) with the outputs by name"
        with user_code.running(reference, folder, "postprocess", hint):
            return function(dict(outputs), dict(meta))

    return call


def _detections(
    kind: str,
    how: Mapping[str, Any],
    outputs: Mapping[str, np.ndarray],
    meta: Mapping[str, Any],
    size: tuple[int, int],
) -> dict[str, np.ndarray]:
    """Boxes in pixels of the original image, scores and labels, as a bundle's server decodes them."""
    from optcli.accuracy import postprocess

    for name in (how.get(key) for key in ("output", "boxes", "scores", "labels")):
        if name is not None and name not in outputs:
            hint = did_you_mean(name, list(outputs))
            raise InputError(f"the model has no output {name!r}", place="postprocess", hint=hint)
    try:
        detections = postprocess.decoded(kind, how, outputs, size)
    except ValueError as error:
        raise InputError(str(error), place=f"postprocess.{kind}", hint=_HINTS[kind]) from error
    placement = {"scale": (1.0, 1.0), "padding": (0, 0), **meta}
    return {**detections, "boxes": postprocess.to_original(detections["boxes"], placement)}
