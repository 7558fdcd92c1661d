"""From a detector's outputs to detections in pixels of the original image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.accuracy import detections
from optcli.accuracy.metrics import Predictions
from optcli.data import Preparation
from optcli.errors import InputError, counted, did_you_mean
from optcli.results.outcomes import DecodingNote
from optcli.settings import user_code
from optcli.settings.postprocess import PostprocessSettings

if TYPE_CHECKING:
    import numpy as np

    # Outputs of one sample, its meta, and height and width of the input.
    Decode = Callable[[Mapping[str, np.ndarray], Mapping[str, Any], tuple[int, int]], Any]

# What to do where outputs have another shape.
_HINTS = {
    "yolox": "look at strides and at the input's size",
    "boxes": "name the outputs with boxes: and scores:, or set transposed: true",
    "rows": "name the output with output:, and what stands in a row with columns:",
}


class Detector:
    """Detections of an image in its own pixels, as a bundle's server decodes them.

    `classes` is how many the data have; None: nobody knows. With `refuse`, scores above 1 and numbers
    of no class are an error. `noted` counts images by what `postprocess.decoded` notes of them; of a
    decoding that is `guessed` also those with boxes that no detector gives.
    """

    def __init__(
        self,
        kind: str,
        how: Mapping[str, Any],
        classes: int | None = None,
        *,
        refuse: bool = True,
        guessed: bool = False,
    ) -> None:
        self._kind, self._how, self._classes, self._refuse = kind, how, classes, refuse
        self._guessed = guessed
        self.noted: Counter[str] = Counter()

    def __call__(
        self,
        outputs: Mapping[str, np.ndarray],
        meta: Mapping[str, Any],
        size: tuple[int, int],
        image: int = 0,
    ) -> dict[str, Any]:
        """The detections of one image of a call: boxes, scores and labels. Raises `InputError`.

        Where the settings name them, `masks`, `keypoints` or `corners` as well.
        """
        from optcli.outputs import instances, postprocess

        for name in postprocess.outputs_of(self._how):
            if name not in outputs:
                hint = did_you_mean(name, list(outputs))
                raise InputError(f"the model has no output {name!r}", place="postprocess", hint=hint)
        place = f"postprocess.{self._kind}"
        size = meta.get("network_size", size)
        try:
            decoded, noted = postprocess.decoded(
                self._kind, self._how, outputs, size, image, self._classes, refuse=self._refuse
            )
        except postprocess.MisreadError as error:
            raise InputError(error.message, place=place, hint=error.hint) from error
        except ValueError as error:
            raise InputError(str(error), place=place, hint=_HINTS[self._kind]) from error
        self.noted.update(noted)
        placement = {"scale": (1.0, 1.0), "padding": (0, 0), "original_size": size, **meta}
        there = instances.in_original(decoded, placement, self._how, size)
        limits = placement["original_size"]
        if self._guessed and not detections.sensible(there["boxes"], there["scores"], limits):
            self.noted["no_boxes"] += 1
        return there


def make(
    settings: PostprocessSettings | None,
    folder: Path,
    classes: int | None = None,
    *,
    refuse: bool = True,
    guessed: bool = False,
) -> Decode | Detector | None:
    """The decoding step; None without one. Imports the user's code where it is theirs.

    `classes`, `refuse` and `guessed` are those of `Detector`.
    """
    if settings is None:
        return None
    if settings.detector is not None:
        return Detector(*settings.detector, classes, refuse=refuse, guessed=guessed)
    assert settings.python is not None
    return _users(settings.python, folder)


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


def notes(noted: Mapping[str, int]) -> list[DecodingNote]:
    """What `Detector.noted` counted."""
    texts = []
    for text, images in noted.items():
        kind, *figures = text.split()
        note = {"kind": kind, "images": images, "figures": figures}
        texts.append(DecodingNote.model_validate(note))
    return texts


def note_text(note: DecodingNote) -> str:
    """A note in words."""
    images = counted(note.images, "image")
    if note.kind == "columns":
        return (
            "the rows have more numbers than `columns` names, such as those of masks or keypoints, and"
            " these are left out"
        )
    if note.kind == "classes":
        return (
            f"the model has {note.figures[0]} classes and the data have {note.figures[1]}: numbers of"
            " classes are taken to mean the same in both"
        )
    if note.kind == "no_boxes":
        return f"in {images} most boxes lie outside of the image, or have no area"
    if note.kind == "misread":
        return (
            f"in {images} there are scores above 1 or class numbers that are no classes of the data:"
            " the outputs are broken"
        )
    noun = "candidates for NMS" if note.kind == "max_candidates" else "detections"
    return f"of {images} only the best {note.figures[0]} {noun} count (`{note.kind}` of `postprocess`)"


def decode(step: Decode | Detector, seen: Predictions, size: tuple[int, int]) -> list[Any]:
    """What the step makes of each sample."""
    if isinstance(step, Detector):
        return [step(seen.outputs, meta, size, i) for i, meta in enumerate(seen.meta)]
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
