"""What a recipe may say under `postprocess`: how outputs become what the metric reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from optcli.settings import Abbreviated, Settings
from optcli.settings.references import CODE, CodeReference

_Format = Literal["xyxy", "cxcywh", "xywh"]
_Numbering = Literal["consecutive", "coco"]

# The keys whose settings `outputs.postprocess` knows how to follow.
DETECTORS = ("yolox", "boxes", "rows")

# COCO's ids are 0 to 90, and these of them name no class.
GAPS_OF_COCO = (0, 12, 26, 29, 30, 45, 66, 68, 69, 71, 83)
IDS_OF_COCO = 91

_AS_BOXES = "as under `boxes`"
_Points = tuple[Annotated[int, Field(ge=1)], Literal[2, 3]]


class YoloxDecoding(Settings):
    """YOLOX's output `[batch, anchors, 5 + classes]`, undecoded, as detections."""

    strides: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (8, 16, 32), description="pixels of the input for each cell of a grid, grid by grid"
    )
    score: float = Field(0.01, ge=0, le=1, description=_AS_BOXES)
    nms: float = Field(
        0.65, gt=0, le=1, description="of two boxes that overlap by this IoU, the weaker is left out"
    )
    multi_label: bool = Field(True, description=_AS_BOXES)
    max_candidates: int = Field(30_000, ge=1, description=_AS_BOXES)
    max_detections: int = Field(300, ge=1, description=_AS_BOXES)
    decoded: bool = Field(
        False, description="true: the model itself turns positions in the grid into pixels"
    )
    output: str | None = Field(None, description="output to decode; default: the first")


class _Finished(Settings):
    """Detections whose classes and boxes the model may count in another way than the data."""

    @model_validator(mode="after")
    def _one_size(self) -> Self:
        if getattr(self, "original", None) and getattr(self, "normalized", False):
            raise ValueError("found original beside normalized: boxes are in pixels, or in fractions")
        return self

    @model_validator(mode="after")
    def _one_thing_behind_the_classes(self) -> Self:
        prototypes, points, angle = (
            getattr(self, name) for name in ("prototypes", "keypoints", "angle")
        )
        points = points if isinstance(points, tuple) else None
        behind = [prototypes is not None, points is not None, bool(angle)]
        if sum(behind) > 1:
            raise ValueError("found several of prototypes, keypoints and angle: one stands in a row")
        if any(behind) and (getattr(self, "scores", None) or getattr(self, "labels", None)):
            raise ValueError(
                "prototypes, keypoints: [17, 3] and angle are of rows that hold boxes and scores:"
                " found outputs of their own for `scores` or `labels`"
            )
        if angle and getattr(self, "format", None) != "cxcywh":
            raise ValueError("a box with an angle has its centre, width and height: format: cxcywh")
        return self

    @model_validator(mode="after")
    def _one_numbering(self) -> Self:
        if getattr(self, "numbering", None) == "coco" and getattr(self, "first_label", 0):
            raise ValueError("found first_label beside numbering: coco, which says it: leave it out")
        return self


class BoxDecoding(_Finished):
    """Boxes and scores of any detector as detections.

    The model has two outputs, boxes `[batch, boxes, 4]` and scores `[batch, boxes, classes]` (or, with
    `labels`, `[batch, boxes]`). Or one output holds both, `[batch, boxes, 4 + classes]`. With
    `transposed` that is `[batch, 4 + classes, boxes]`. With `objectness` a factor of the scores stands
    behind the box. A model of one image may leave the batch out: `[boxes, 4]`, any number of boxes.
    """

    format: _Format = Field(
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
    classes: int | None = Field(
        None,
        ge=1,
        description="how many scores of classes there are, that of the background counted; default: all"
        " but what `prototypes`, `keypoints` or `angle` take. What else stands behind them is left out",
    )
    prototypes: str | None = Field(
        None,
        description="output of the prototypes of masks, `[batch, n, height, width]`; `n` coefficients"
        " of a mask stand behind the classes",
    )
    masks: str | None = Field(
        None,
        description="output of a mask for each box, `[boxes, 1, height, width]`, as probabilities: of"
        " the input, or of the box, such as `[boxes, 1, 28, 28]`",
    )
    keypoints: str | _Points | None = Field(
        None,
        description="keypoints of a box behind its classes: `[17, 3]` are 17 of x, y and how surely it"
        " is visible, `[17, 2]` of x and y; or the output that has them, `[boxes, 17, 3]`",
    )
    angle: bool = Field(
        False, description="the number behind the classes is an angle in radians: boxes are rotated"
    )
    activation: Literal["none", "sigmoid", "softmax"] = Field(
        "none", description="function that turns the model's scores into probabilities"
    )
    background: Literal["none", "first", "last"] = Field(
        "none", description="which class stands for the background, and is left out"
    )
    normalized: bool = Field(False, description="boxes are in fractions of the input, not in pixels")
    original: bool | None = Field(
        None,
        description="boxes are in pixels of the original image, not of the input; default: true where"
        " the model gets its size, from an input with `value: original_size`",
    )
    first_label: int = Field(0, description="the class number of the first class")
    numbering: _Numbering = Field(
        "consecutive",
        description="`coco`: class numbers are COCO's ids, 1 to 90 with gaps, as those of torchvision's"
        " detectors and of DETR; they become 0 to 79",
    )
    score: float = Field(0.01, ge=0, le=1, description="smallest score of a detection that is kept")
    nms: float | None = Field(
        None,
        gt=0,
        le=1,
        description="IoU of two boxes of a class from which non-maximum suppression drops one;"
        " default: no NMS",
    )
    multi_label: bool = Field(
        True, description="a box may have several classes; false: only its best one"
    )
    max_candidates: int = Field(
        30_000, ge=1, description="as many boxes and classes go into NMS at most, the best ones"
    )
    max_detections: int = Field(
        300,
        ge=1,
        description="detections of an image at most, the best ones; COCO's mAP counts 100 of a class",
    )


class RowDecoding(_Finished):
    """Rows that are detections already, `[batch, rows, 6]`: box, score and class.

    Models that end in NMS, or need none, give such rows: YOLO26, YOLOv10, `nms=True` of Ultralytics,
    SSD. Rows of zeros fill up what is left. Behind the columns may stand what `prototypes`, `keypoints`
    or `angle` say; anything else there is left out.
    """

    columns: tuple[Literal["box", "score", "class", "image"], ...] = Field(
        ("box", "score", "class"),
        description="what stands in a row, in order; `box` is four numbers, `image` the number of the"
        " image in the batch. SSD: `[image, class, score, box]`",
    )
    output: str | None = Field(None, description="output of the rows; default: the first")
    prototypes: str | None = Field(None, description=_AS_BOXES)
    keypoints: _Points | None = Field(None, description=_AS_BOXES)
    angle: bool = Field(False, description=_AS_BOXES)
    format: _Format = Field("xyxy", description=_AS_BOXES)
    normalized: bool = Field(False, description=_AS_BOXES)
    original: bool | None = Field(None, description=_AS_BOXES)
    first_label: int = Field(0, description=_AS_BOXES)
    numbering: _Numbering = Field("consecutive", description=_AS_BOXES)
    score: float = Field(0.01, ge=0, le=1, description=_AS_BOXES)
    nms: float | None = Field(None, gt=0, le=1, description=_AS_BOXES)
    max_candidates: int = Field(30_000, ge=1, description=_AS_BOXES)
    max_detections: int = Field(300, ge=1, description=_AS_BOXES)

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        once = sorted(each for each in self.columns if each != "image")
        if once != ["box", "class", "score"] or self.columns.count("image") > 1:
            raise ValueError(
                f"wanted box, score and class once each, found {', '.join(self.columns) or 'none'}"
            )
        return self


class PostprocessSettings(Abbreviated):
    """How the model's outputs become what the metric reads: by one of four keys.

    `postprocess: python:FILE.py:CALLABLE` is short for `{python: FILE.py:CALLABLE}`: called with the
    outputs of one sample by name and its meta, it returns `{boxes, scores, labels}` in pixels of the
    original image, with `masks`, `keypoints` or `corners` where there are some, or whatever the metric
    reads instead of outputs.
    """

    short_for: ClassVar[str] = "python"

    yolox: YoloxDecoding | None = None
    boxes: BoxDecoding | None = None
    rows: RowDecoding | None = None
    python: Annotated[CodeReference, Field(min_length=1), AfterValidator(CODE.code)] | None = Field(
        None, description="FILE.py:CALLABLE"
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> Self:
        kinds = (*DETECTORS, "python")
        given = [name for name in kinds if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"wanted one of yolox, boxes, rows and python, found {' and '.join(given) or 'none'}"
            )
        return self

    @property
    def detector(self) -> tuple[str, Mapping[str, Any]] | None:
        """Which of `DETECTORS` it is, and its settings as plain data; None for code of the user's."""
        kind = next((each for each in DETECTORS if getattr(self, each) is not None), None)
        return None if kind is None else (kind, getattr(self, kind).model_dump(mode="json"))

    def told_the_size(self) -> Self:
        """The same for a model that knows the original's size: boxes in pixels are the original's."""
        for kind in ("boxes", "rows"):
            how = getattr(self, kind)
            if how is not None and how.original is None and not how.normalized:
                return self.model_copy(update={kind: how.model_copy(update={"original": True})})
        return self
