"""The section of pictures: each image with the baseline's answer and those of variants beside it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

from optcli.report import picture_words
from optcli.report.html.document import section
from optcli.report.html.tags import Markup, tag
from optcli.results import Report
from optcli.results.pictures import Picture


def shown(report: Report, images: Mapping[str, bytes]) -> Markup | None:
    """All pictures of the report whose files are there, those that differ most first."""
    by_image: dict[str, list[tuple[str, Picture]]] = {}
    for name, variant in report.variants.items():
        for each in variant.pictures:
            if {each.file, each.baseline_file} <= images.keys():
                by_image.setdefault(each.image, []).append((name, each))
    if not by_image:
        return None
    rows = sorted(by_image.values(), key=lambda row: all(each.chosen != "worst" for _, each in row))
    figures = [_figure(report.baseline, row, images) for row in rows]
    body = tag("div", *figures, class_="shots")
    return section("Pictures", picture_words.lead(rows[0][0][1]), body, id_="pictures")


def _figure(baseline: str, row: Sequence[tuple[str, Picture]], images: Mapping[str, bytes]) -> Markup:
    first = row[0][1]
    words = picture_words.baseline(baseline, first)
    panels = [(first.baseline_file, [words])]
    for name, each in row:
        words = picture_words.variant(name, each)
        if each.file == first.baseline_file:
            panels[0][1].append(words)
        else:
            panels.append((each.file, [words]))
    shots = (
        tag(
            "div",
            tag("img", src=_embedded(images[file]), alt=f"{first.image}. {'. '.join(said)}."),
            *(tag("p", each) for each in said),
        )
        for file, said in panels
    )
    caption = tag("figcaption", picture_words.caption(first.image, [each for _, each in row]))
    return tag("figure", caption, tag("div", *shots, class_="shots"))


def _embedded(content: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(content).decode()}"
