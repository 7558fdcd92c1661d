"""What a recipe may say under `postprocess`: how outputs become what the metric reads."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from optcli.settings import Abbreviated, Settings
from optcli.settings.references import CODE, CodeReference


class YoloxDecoding(Settings):
    """YOLOX's output `[batch, anchors, 5 + classes]`, undecoded, as detections."""

    strides: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (8, 16, 32), description="pixels of the input for each cell of a grid, grid by grid"
    )
    score: float = Field(0.01, ge=0, le=1, description="detections of a smaller score are left out")
    nms: float = Field(
        0.65, gt=0, le=1, description="of two boxes that overlap by this IoU, the weaker is left out"
    )
    multi_label: bool = Field(
        True, description="a box may have several classes; false: only its best one"
    )
    decoded: bool = Field(
        False, description="true: the model itself turns positions in the grid into pixels"
    )
    output: str | None = Field(None, description="output to decode; default: the first")


class BoxDecoding(Settings):
    """Boxes and scores of any detector as detections.

    The model has two outputs, boxes `[batch, boxes, 4]` and scores `[batch, boxes, classes]` (or, with
    `labels`, `[batch, boxes]`). Or one output holds both, `[batch, boxes, 4 + classes]`. With
    `transposed` that is `[batch, 4 + classes, boxes]`. With `objectness` a factor of the scores stands
    behind the box.
    """

    format: Literal["xyxy", "cxcywh", "xywh"] = Field(
        "xyxy",
        description="what the four numbers of a box are: two corners (`xyxy`), or width and height"
        " with the centre (`cxcywh`) or with the top left corner (`xywh`)",
    )
    boxes: str | None = Field(None, description="output of the boxes; default: the first")
    scores: str | None = Field(None, description="output of the scores; default: beside the boxes")
    labels: str | None = Field(
        None, description="output of the class numbers, where a box has one score"
    )
    transposed: bool = Field(False, description="the boxes are the last dimension")
    objectness: bool = Field(False, description="the fifth number of a row multiplies its scores")
    activation: Literal["none", "sigmoid", "softmax"] = Field(
        "none", description="function that turns the model's scores into probabilities"
    )
    background: Literal["none", "first", "last"] = Field(
        "none", description="which class stands for the background, and is left out"
    )
    normalized: bool = Field(False, description="boxes are in fractions of the input, not in pixels")
    first_label: int = Field(0, description="the class number of the first class")
    score: float = Field(0.01, ge=0, le=1, description="smallest score of a detection that is kept")
    nms: float | None = Field(
        None,
        gt=0,
        le=1,
        description="IoU of two boxes from which non-maximum suppression drops one; default: no NMS",
    )
    multi_label: bool = Field(True, description="false: a box has its best class alone")


class PostprocessSettings(Abbreviated):
    """How the model's outputs become what the metric reads: by one of three keys.

    `postprocess: python:FILE.py:CALLABLE` is short for `{python: FILE.py:CALLABLE}`: called with the
    outputs of one sample by name and its meta, it returns `{boxes, scores, labels}` in pixels of the
    original image, or whatever the metric reads instead of outputs.
    """

    short_for: ClassVar[str] = "python"

    yolox: YoloxDecoding | None = None
    boxes: BoxDecoding | None = None
    python: Annotated[CodeReference, Field(min_length=1), AfterValidator(CODE.code)] | None = Field(
        None, description="FILE.py:CALLABLE"
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        given = [name for name in ("yolox", "boxes", "python") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"wanted one of yolox, boxes and python, found {' and '.join(given) or 'none'}"
            )
        return self
