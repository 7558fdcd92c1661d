"""What a first recipe takes the outputs of a network for: classes of images or pixels, or boxes.

By the metadata of the file where there are some, else by shapes, which is a guess.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import yaml

from optcli.outputs.describing import (
    MASK_COEFFICIENTS,
    MOST_ROWS,
    DeclaredOutput,
    describe,
    of_exporter,
    of_one_sample,
)
from optcli.outputs.meaning import Exported, OutputMeaning, Source, exported
from optcli.settings import TensorSpec, image_size
from optcli.settings.outputs import Kind, OutputPart, OutputSettings
from optcli.settings.postprocess import PostprocessSettings

_STRIDES = (8, 16, 32)
_KEYPOINTS = (17, 3)  # COCO's
_ROWS = 6
_IDS_OF_COCO = 91  # with the gaps, as those of DETR
Shape = Sequence[int | str | None]


@dataclass(frozen=True)
class Probe:
    """What a detector's first output held for a noisy image.

    `largest` is the largest of the first two numbers of its rows: boxes in pixels reach to the size
    of the image, those that are not decoded yet only to a few cells. `rows` says that it holds rows x1,
    y1, x2, y2, score, class. `decoding_options` are those of boxes and scores, which are two outputs.
    """

    largest: float
    rows: bool
    decoding_options: str = ""


@dataclass(frozen=True)
class Guess:
    """`count` is the number of classes. Of boxes `postprocess` and `prepare` are what a recipe says."""

    kind: Literal["classes", "pixels", "boxes", "unknown"]
    count: int | None = None
    postprocess: str = ""
    prepare: str = ""
    source: Source = "shape"
    note: str = ""


def guess(
    outputs: Sequence[DeclaredOutput],
    inputs: Sequence[TensorSpec],
    *,
    metadata: Mapping[str, str] | None = None,
    probe: Probe | None = None,
    classes: int | None = None,
) -> Guess:
    """What the outputs most likely are. `classes` is how many the data have, where there are data."""
    shape: Shape = (outputs[0].shape if outputs else None) or ()
    known = exported(metadata or {})
    size = image_size([spec for spec in inputs if len(spec.shape) == 4])
    if known is not None:
        return _exported(outputs, known, size)
    several = _several(outputs, classes, probe.decoding_options if probe else "")
    if several is not None:
        return several
    if len(shape) == 2 and isinstance(shape[1], int):
        return Guess("classes", shape[1])
    if size is None:
        return Guess("unknown", source="unknown")
    if len(shape) == 4 and isinstance(shape[1], int) and shape[1] > 1 and _is_map(shape, *size):
        return Guess("pixels", shape[1])
    if len(shape) == 3:
        prototypes = [each.name for each in outputs[1:] if _is_prototypes(each.shape, *size)]
        return _boxes(shape[1], shape[2], size, probe, classes, prototypes)
    return Guess("unknown", source="unknown")


def meanings(
    outputs: Sequence[DeclaredOutput],
    inputs: Sequence[TensorSpec],
    *,
    metadata: Mapping[str, str] | None = None,
    settings: Mapping[str, OutputSettings] | None = None,
    postprocess: PostprocessSettings | None = None,
    metric_reads: Kind | None = None,
    metric_output: str | None = None,
) -> list[OutputMeaning]:
    """What each output means: as `describe` says, and where nobody says it, guessed by their shapes.

    `settings`, `postprocess` and what the metric reads are a recipe's. Raises as `describe`.
    """
    seen = of_one_sample(outputs)
    known = list(
        describe(
            seen,
            settings=settings,
            postprocess=postprocess,
            metric_reads=metric_reads,
            metric_output=metric_output,
            metadata=metadata,
        )
    )
    proposal = guess(outputs, inputs)
    if proposal.source != "shape" or any(each.source not in ("shape", "unknown") for each in known):
        return known
    if proposal.kind == "pixels":
        return [OutputMeaning(outputs[0].name, (OutputPart("class_map"),), "shape"), *known[1:]]
    decoding = yaml.safe_load(proposal.postprocess or "null")
    guessed = PostprocessSettings.model_validate(decoding) if decoding else None
    return [
        replace(each, source="shape") if each.source == "recipe" else each
        for each in describe(seen, postprocess=guessed)
    ]


def decoding(
    outputs: Sequence[DeclaredOutput], inputs: Sequence[TensorSpec], metadata: Mapping[str, str]
) -> PostprocessSettings | None:
    """How to decode the outputs of a detector, as its exporter says; None where it does not."""
    if exported(metadata) is None:
        return None
    settings = yaml.safe_load(guess(outputs, inputs, metadata=metadata).postprocess or "null")
    return PostprocessSettings.model_validate(settings) if settings else None


def guessed_decoding(
    outputs: Sequence[DeclaredOutput], inputs: Sequence[TensorSpec], probe: Probe | None
) -> PostprocessSettings | None:
    """How to decode the outputs of a detector by their form, where it leaves no choice; else None.

    It leaves one where scores are logits, which some detectors turn into shares by a sigmoid and others
    by a softmax, and where more stands behind the boxes, such as masks, which nobody would look at.
    Masks and keypoints in outputs of their own are left out.
    """
    guessed = guess(outputs, inputs, probe=probe)
    if guessed.kind != "boxes" or guessed.note:
        return None
    settings = PostprocessSettings.model_validate(yaml.safe_load(guessed.postprocess))
    how = settings.boxes
    if how is not None and how.labels is not None:
        boxes = how.model_copy(update={"masks": None, "keypoints": None})
        return settings.model_copy(update={"boxes": boxes})
    choice = how is not None and (how.activation != "none" or how.prototypes or how.keypoints)
    return None if choice else settings


def _is_map(shape: Shape, height: int, width: int) -> bool:
    """Scores of the image's own size, or of a fraction of it."""
    pairs = [(size, whole) for size, whole in zip(shape[2:], (height, width), strict=True) if size]
    return all(not isinstance(size, int) or whole >= size > whole // 64 for size, whole in pairs)


def _is_prototypes(shape: Shape | None, height: int, width: int) -> bool:
    return shape is not None and tuple(shape[1:]) == (MASK_COEFFICIENTS, height // 4, width // 4)


def _letterbox(size: tuple[int, int] | None) -> str:
    """The preparation of Ultralytics' networks."""
    if size is None:
        return ""
    return f"{{letterbox: {{size: {_square(size)}, fill: 114}}, channel_order: rgb, scale: 1/255}}"


def _square(size: tuple[int, int]) -> str:
    return str(size[0]) if size[0] == size[1] else f"[{size[0]}, {size[1]}]"


def _exported(
    outputs: Sequence[DeclaredOutput], known: Exported, size: tuple[int, int] | None
) -> Guess:
    """What Ultralytics' exporter says; a decoding that reads these classes alone."""
    if known.head:
        return _transformers(outputs, known)
    count = len(known.names)
    if known.task == "classify":
        return Guess("classes", count, source="metadata")
    parts = of_exporter(of_one_sample(outputs), known).get(outputs[0].name, ()) if outputs else ()
    kinds = [part.kind for part in parts]
    if "boxes" not in kinds:
        what = "another form than the exporter's own: write a decoding"
        note = f"the file says `task: {known.task}`, and its outputs have {what}"
        return Guess("unknown", count, prepare=_letterbox(size), source="metadata", note=note)
    meant = of_exporter(of_one_sample(outputs), known)
    prototypes = next((name for name in meant if meant[name][0].kind == "prototypes"), None)
    lines = _decoding(parts, count, prototypes, known.keypoints)
    note = ""
    if "mask_coefficients" in kinds and prototypes is None:
        note = "its output of prototypes is not there: only the boxes of this model are judged"
    return Guess("boxes", count, lines, _letterbox(size), "metadata", note)


def _transformers(outputs: Sequence[DeclaredOutput], known: Exported) -> Guess:
    """What a head of transformers gives; DETR's scores have a last class, which is no object."""
    logits = next((each.shape for each in outputs if each.name == "logits"), None)
    last = logits[1 if known.task == "semantic" else -1] if logits else None
    count = len(known.names) or (last if isinstance(last, int) else None)
    if known.task in ("classify", "semantic"):
        kind: Literal["classes", "pixels"] = "classes" if known.task == "classify" else "pixels"
        return Guess(kind, count, source="metadata")
    if known.task != "detect" or not isinstance(last, int):
        return Guess("unknown", count, source="metadata")
    softmax = known.head == "softmax"
    activation = "activation: softmax, background: last, multi_label: false" if softmax else ""
    activation = activation or "activation: sigmoid"
    coco = len(known.names) == _IDS_OF_COCO and "N/A" in known.names
    activation += ", numbering: coco" if coco else ""
    boxes = (
        "{boxes: {boxes: pred_boxes, scores: logits, format: cxcywh, normalized: true,"
        f" {activation}}}}}"
    )
    return Guess("boxes", last - softmax, boxes, source="metadata")


def _decoding(
    parts: Sequence[OutputPart], count: int, prototypes: str | None, keypoints: tuple[int, int]
) -> str:
    """The decoding of candidates by columns or by rows, or of rows that are detections."""
    kinds = [part.kind for part in parts]
    finished = "class_numbers" in kinds
    options = ["format: cxcywh"] if not finished or "angle" in kinds else []
    options += ["transposed: true"] if parts[0].axis == 0 else []
    options += ["objectness: true"] if "objectness" in kinds else []
    options += [f"classes: {count}"] if not finished and kinds[-1] != "scores" else []
    options += _more(
        prototypes if "mask_coefficients" in kinds else None,
        keypoints if "keypoints" in kinds else None,
    )
    options += ["angle: true"] if "angle" in kinds else []
    if finished:
        return f"{{rows: {{{', '.join(options)}}}}}"
    return f"{{boxes: {{{', '.join([*options, 'nms: 0.65'])}}}}}"


def _more(prototypes: str | None, keypoints: tuple[int, int] | None) -> list[str]:
    """What stands behind the classes of a row."""
    options = [] if prototypes is None else [f"prototypes: {json.dumps(prototypes)}"]
    return options if keypoints is None else [*options, f"keypoints: [{keypoints[0]}, {keypoints[1]}]"]


def _several(outputs: Sequence[DeclaredOutput], classes: int | None, options: str) -> Guess | None:
    """Outputs of boxes beside scores, or detections of torchvision's form.

    Where nothing is known of their values, which `options` say, they are taken for DETR's.
    """
    shapes = {each.name: each.shape or () for each in outputs}
    boxes = [name for name, shape in shapes.items() if len(shape) in (2, 3) and shape[-1] == 4]
    if len(boxes) != 1:
        return None
    (box,) = boxes
    flat = [each for each in outputs if len(shapes[each.name]) == len(shapes[box]) - 1 > 0]
    labels = [each.name for each in flat if "int" in each.dtype]
    scores = [each.name for each in flat if "float" in each.dtype]
    if len(labels) == len(scores) == 1:
        names = f"boxes: {box}, scores: {scores[0]}, labels: {labels[0]}"
        for kind, rank in (("masks", 4), ("keypoints", 3)):  # torchvision's, one for each box
            more = (
                name for name, shape in shapes.items() if name.endswith(kind) and len(shape) == rank
            )
            names += "".join(f", {kind}: {name}" for name in more if len(shapes[box]) == 2)
        return Guess("boxes", None, f"{{boxes: {{{names}}}}}")
    tables = [name for name, shape in shapes.items() if name != box and len(shape) == 3]
    last = shapes[tables[0]][-1] if len(tables) == 1 and len(shapes[box]) == 3 else None
    if not isinstance(last, int):
        return None
    background = "background" in options or (classes is not None and last == classes + 1)
    how = "softmax, background: last" if background else "sigmoid"
    options = options or f"format: cxcywh, normalized: true, activation: {how}"
    names = f"boxes: {box}, scores: {tables[0]}"
    return Guess("boxes", last - background, f"{{boxes: {{{names}, {options}}}}}")


def _boxes(
    rows: Any,
    columns: Any,
    size: tuple[int, int],
    probe: Probe | None,
    classes: int | None,
    prototypes: Sequence[str],
) -> Guess:
    """The outputs of the YOLO families, told by how many cells their grids have."""
    height, width = size
    cells = sum((height // stride) * (width // stride) for stride in _STRIDES)
    if columns == _ROWS and probe is not None and probe.rows and _few(rows, cells):
        return Guess("boxes", None, "{rows: {}}", _letterbox(size))
    if not (isinstance(rows, int) and isinstance(columns, int)):
        return Guess("unknown", source="unknown")
    if rows == cells and columns > 5:
        decoded = probe is not None and probe.largest > max(height, width) / 4
        options = "{decoded: true}" if decoded else "{}"
        box = f"letterbox: {{size: {_square(size)}, fill: 114, align: top_left}}"
        prepare = f"{{{box}, channel_order: bgr}}"
        return Guess("boxes", columns - 5, f"{{yolox: {options}}}", prepare)
    if columns == cells and rows > 4:
        count, more, note = rows - 4, list[str](), ""
        if prototypes and count > MASK_COEFFICIENTS:
            count -= MASK_COEFFICIENTS
            more = _more(prototypes[0], None)
        elif count == 1 + math.prod(_KEYPOINTS) and classes != count:
            count, more = 1, _more(None, _KEYPOINTS)
            note = "these are taken for boxes with 17 keypoints"
        box_options = ["format: cxcywh, transposed: true"]
        box_options += [f"classes: {count}", *more] if more else []
        boxes = f"{{boxes: {{{', '.join([*box_options, 'nms: 0.65'])}}}}}"
        return Guess("boxes", count, boxes, _letterbox(size), note=note)
    if rows == 3 * cells and columns > 5:
        boxes = "{boxes: {format: cxcywh, objectness: true, nms: 0.65}}"
        return Guess("boxes", columns - 5, boxes, _letterbox(size))
    return Guess("unknown", source="unknown")


def _few(rows: Any, cells: int) -> bool:
    return not isinstance(rows, int) or (rows <= MOST_ROWS and rows != cells)
