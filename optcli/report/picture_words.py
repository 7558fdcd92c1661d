"""What is said of a picture: which image it is, and what a variant answers otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from optcli.errors import counted
from optcli.results.pictures import Answer, Picture

LEAD_OF_BOXES = (
    "Images of the evaluation data: those in which a variant differs most from the baseline, then two"
    " at random. Blue boxes are in both. Orange ones with + are in the variant alone, or have another"
    " class there. Red ones with - are in the baseline alone."
)
LEAD_OF_CLASSES = (
    "Images of the evaluation data: those for which a variant answers another class, the ones of which"
    " the baseline was surest first, then two at random."
)
LEAD_OF_MAPS = (
    "Maps of classes in colours, of the first evaluation images: those in which most pixels"
    " get another class than by the baseline, then two at random."
)


def lead(picture: Picture) -> str:
    """What the pictures are and how they were chosen."""
    if picture.changed is not None:
        return LEAD_OF_MAPS
    return LEAD_OF_CLASSES if picture.of is None else LEAD_OF_BOXES


def caption(image: str, pictures: Sequence[Picture]) -> str:
    """The image, its class in the data, and why it is shown."""
    target = pictures[0].target
    label = f", label {_class(target)}" if target is not None else ""
    worst = any(each.chosen == "worst" for each in pictures)
    return f"{image}{label} ({'differs most' if worst else 'chosen at random'})"


def baseline(name: str, picture: Picture) -> str:
    """What the baseline answers."""
    if picture.changed is not None:
        return name
    if picture.of is None:
        return f"{name}: {_surely(picture.baseline_answer)}"
    return f"{name}: {_count(picture.of)} with a score of {picture.score or 0:.2g} or more"


def variant(name: str, picture: Picture) -> str:
    """What a variant answers, for a detector and for a map where that differs."""
    if picture.changed is not None:
        return f"{name}: {picture.changed:.2%} of the pixels have another class".replace("%", " %")
    if picture.of is None:
        return f"{name}: {_surely(picture.answer)}"
    parts = (
        (picture.lost, f"{picture.lost} of {picture.of} not found"),
        (picture.renamed, f"{picture.renamed} of another class"),
        (picture.moved, f"{picture.moved} with another mask, keypoints or angle"),
        (picture.new, f"{picture.new} new"),
    )
    return f"{name}: {', '.join(text for count, text in parts if count) or 'the same detections'}"


def _count(number: int) -> str:
    return counted(number, "detection")


def _class(answer: Answer) -> str:
    return answer.name or f"class {answer.label}"


def _surely(answer: Answer | None) -> str:
    if answer is None:
        return "no answer"
    sure = f" ({100 * answer.confidence:.0f} %)" if answer.confidence is not None else ""
    return f"{_class(answer)}{sure}"
