"""What a report says of its pictures: evaluation images, and what a variant answered for them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from optcli.results.outcomes import Result

FOLDER = "pictures"


class Answer(Result):
    """The class that a classifier answers; `confidence` is its probability, None where unknown."""

    label: int
    name: str | None = None
    confidence: float | None = None


class Picture(Result):
    """One evaluation image, with what a variant answered and what the baseline did.

    `image` is its id. Images that are `worst` differ most from the baseline, others were chosen at
    random. `file` is a JPEG with the variant's answers and `baseline_file` one with the baseline's,
    both relative to the report's folder; they are one file for a classifier. Of a detector: of the
    baseline's `of` detections with a score of `score` or more the variant has `lost` some, gives
    `renamed` ones another class, and `moved` ones another mask, other keypoints or another angle; `new`
    counts confident ones where the baseline has none. Of a classifier: what it answers, what the
    baseline does, and the `target` of the data. Of a map of classes, which is drawn in place of the
    image: `changed` is the share of pixels that have another class.
    """

    image: str
    chosen: Literal["worst", "random"]
    file: str
    baseline_file: str
    score: float | None = None
    of: int | None = None
    lost: int | None = None
    renamed: int | None = None
    moved: int | None = None
    new: int | None = None
    changed: float | None = None
    answer: Answer | None = None
    baseline_answer: Answer | None = None
    target: Answer | None = None


class Pictures(Result):
    """All pictures of a report by variant; `key` is a digest of all that decides them."""

    key: str = ""
    variants: dict[str, tuple[Picture, ...]] = Field(default_factory=dict)
