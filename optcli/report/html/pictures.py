"""The section of pictures: each image with the baseline's answer and those of variants beside it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from optcli.errors import counted
from optcli.report.html.tags import Markup, tag
from optcli.results import Report
from optcli.results.document import Chart, Section
from optcli.results.pictures import Answer, Picture

_LEAD_OF_BOXES = (
    "Images of the evaluation data: those in which a variant differs most from the baseline, then two"
    " at random. Blue boxes are in both. Orange ones with + are in the variant alone, or have another"
    " class there. Red ones with - are in the baseline alone."
)
_LEAD_OF_CLASSES = (
    "Images of the evaluation data: those for which a variant answers another class, the ones of which"
    " the baseline was surest first, then two at random."
)
_LEAD_OF_MAPS = (
    "Maps of classes in colours, of the first evaluation images: those in which most pixels"
    " get another class than by the baseline, then two at random."
)


def pictures(report: Report, images: Mapping[str, bytes]) -> Section:
    """All pictures of the report whose files are there, those that differ most first."""
    by_image: dict[str, list[tuple[str, Picture]]] = {}
    for name, variant in report.variants.items():
        for each in variant.pictures:
            if {each.file, each.baseline_file} <= images.keys():
                by_image.setdefault(each.image, []).append((name, each))
    rows = sorted(by_image.values(), key=lambda row: all(each.chosen != "worst" for _, each in row))
    figures = [_figure(report.baseline, row, images) for row in rows]
    lead = _lead(rows[0][0][1]) if rows else ""
    return Section(
        "Pictures", [Chart(lambda: tag("div", *figures, class_="shots"))] if rows else [], lead
    )


def _figure(baseline: str, row: Sequence[tuple[str, Picture]], images: Mapping[str, bytes]) -> Markup:
    first = row[0][1]
    words = _of_baseline(baseline, first)
    panels = [(first.baseline_file, [words])]
    for name, each in row:
        words = _of_variant(name, each)
        if each.file == first.baseline_file:
            panels[0][1].append(words)
        else:
            panels.append((each.file, [words]))
    shots = (
        tag(
            "div",
            tag("img", src=_embedded(images[file]), alt=f"{first.image}. {'. '.join(captions)}."),
            *(tag("p", each) for each in captions),
        )
        for file, captions in panels
    )
    caption = tag("figcaption", _caption(first.image, [each for _, each in row]))
    return tag("figure", caption, tag("div", *shots, class_="shots"))


def _embedded(content: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"


def _lead(picture: Picture) -> str:
    """What the pictures are and how they were chosen."""
    if picture.changed is not None:
        return _LEAD_OF_MAPS
    return _LEAD_OF_CLASSES if picture.of is None else _LEAD_OF_BOXES


def _caption(image: str, pictures: Sequence[Picture]) -> str:
    """The image, its class in the data, and why it is shown."""
    target = pictures[0].target
    label = f", label {_class(target)}" if target is not None else ""
    worst = any(each.chosen == "worst" for each in pictures)
    return f"{image}{label} ({'differs most' if worst else 'chosen at random'})"


def _of_baseline(name: str, picture: Picture) -> str:
    """What the baseline answers."""
    if picture.changed is not None:
        return name
    if picture.of is None:
        return f"{name}: {_surely(picture.baseline_answer)}"
    return f"{name}: {_count(picture.of)} with a score of {picture.score or 0:.2g} or more"


def _of_variant(name: str, picture: Picture) -> str:
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
