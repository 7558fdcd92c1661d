"""From a recipe, the metadata of a file, or shapes to what each output means, in this order.

Also how many classes the outputs have, and what these are called.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from optcli.errors import InputError, did_you_mean
from optcli.outputs.meaning import Exported, OutputMeaning, exported
from optcli.settings.outputs import SIZES, Kind, OutputPart, OutputSettings
from optcli.settings.postprocess import BoxDecoding, PostprocessSettings, RowDecoding

MASK_COEFFICIENTS = 32
MOST_ROWS = 1000  # after NMS; candidates before it are more
Sized = tuple[Kind, int | None]  # a part, and how many numbers it is; None: what is left
# What outputs of transformers are by their names, for each task.
_OF_TRANSFORMERS: dict[str, dict[str, Kind]] = {
    "classify": {"logits": "logits"},
    "detect": {"logits": "scores", "pred_boxes": "boxes"},
    "semantic": {"logits": "class_map"},
    "depth": {"predicted_depth": "depth"},
    "embed": dict.fromkeys(("image_embeds", "pooler_output", "last_hidden_state"), "embedding"),
}
_ROW: list[Sized] = [("boxes", 4), ("scores", 1), ("class_numbers", 1)]  # a row that is a detection
_COCO_CLASSES = 80
_MASKS = 4  # dimensions of the output of prototypes
# How torchvision's weights call the background, and the numbers that COCO's ids leave out.
_NO_CLASS = ("__background__", "N/A")


class SeenOutput(Protocol):
    """An output as it was seen: `shape` is that of one sample, None where it varies."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...] | None: ...
    @property
    def dtype(self) -> str: ...


class DeclaredOutput(Protocol):
    """An output as a file declares it, with the batch; names stand for sizes that vary."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int | str | None, ...] | None: ...
    @property
    def dtype(self) -> str: ...


@dataclass(frozen=True)
class FileOutput:
    """An output as a file declares it."""

    name: str
    shape: tuple[int | str | None, ...] | None
    dtype: str


@dataclass(frozen=True)
class SampleOutput:
    """An output of one sample; a size that varies is 0."""

    name: str
    shape: tuple[int, ...] | None
    dtype: str


def of_one_sample(outputs: Sequence[DeclaredOutput]) -> list[SampleOutput]:
    """Declared outputs without their batch."""
    return [
        SampleOutput(
            each.name,
            tuple(n if isinstance(n, int) else 0 for n in each.shape[1:]) if each.shape else None,
            each.dtype,
        )
        for each in outputs
    ]


def describe(
    outputs: Sequence[SeenOutput],
    *,
    settings: Mapping[str, OutputSettings] | None = None,
    postprocess: PostprocessSettings | None = None,
    metric_reads: Kind | None = None,
    metric_output: str | None = None,
    metadata: Mapping[str, str] | None = None,
) -> tuple[OutputMeaning, ...]:
    """What each output means.

    `settings`, `postprocess` and `metric_reads` (of `metric_output`, or of the first output) are what
    the recipe says, `metadata` is what an exporter wrote into the file. Raises `InputError` where the
    recipe names an output that is not there, or parts of another size.
    """
    settings = settings or {}
    names = [output.name for output in outputs]
    for name in settings:
        if name not in names:
            raise InputError(
                f"the model has no output {name!r}, it has {', '.join(names)}",
                place=f"outputs.{name}",
                hint=did_you_mean(name, names, f"name one of {', '.join(names)}"),
            )
    by_recipe = {
        name: _of_settings(outputs[names.index(name)], each) for name, each in settings.items()
    }
    by_recipe = {**_of_decoding(outputs, postprocess), **by_recipe}
    read = metric_output or (names[0] if names else None)
    if postprocess is None and metric_reads is not None and read in names:
        by_recipe.setdefault(str(read), (OutputPart(metric_reads),))
    known = exported(metadata or {})
    written = {} if known is None else of_exporter(outputs, known)
    return tuple(_meaning(output, by_recipe, written) for output in outputs)


def _meaning(
    output: SeenOutput,
    by_recipe: Mapping[str, tuple[OutputPart, ...]],
    written: Mapping[str, tuple[OutputPart, ...]],
) -> OutputMeaning:
    if output.name in by_recipe:
        return OutputMeaning(output.name, by_recipe[output.name], "recipe")
    if output.name in written:
        return OutputMeaning(output.name, written[output.name], "metadata")
    if output.shape is not None and len(output.shape) == 1 and "float" in output.dtype:
        return OutputMeaning(output.name, (OutputPart("logits"),), "shape")
    return OutputMeaning(output.name, (OutputPart("unknown"),), "unknown")


def _of_settings(output: SeenOutput, settings: OutputSettings) -> tuple[OutputPart, ...]:
    """The parts that a recipe names. Raises `InputError` where the output is of another size."""
    sizes: list[Sized] = []
    for part in settings.parts:
        size = part.size or SIZES.get(part.kind)
        sizes += _ROW if part.kind == "rows" else [(part.kind, size)]
    if len(sizes) == 1 and settings.axis is None and settings.parts[0].size is None:
        return (OutputPart(sizes[0][0]),)
    if output.shape is None:
        return ()
    place = f"outputs.{output.name}"
    count = sum(size or 0 for _, size in sizes)
    rest = any(size is None for _, size in sizes)
    axes = [i for i, size in enumerate(output.shape) if size == count or (rest and size > count)]
    if settings.axis is not None:
        axes = [settings.axis - 1] if settings.axis - 1 in axes else []
    if not axes:
        wanted = f"more than {count}" if rest else str(count)
        listed = ", ".join(str(size) for size in output.shape)
        raise InputError(
            f"the parts are {wanted} numbers, and a sample of output {output.name!r} is [{listed}]",
            place=place,
            hint="give every part its size, and `axis` the dimension that holds them",
        )
    return tuple(_along(axes[-1], sizes, output.shape[axes[-1]]))


def _along(axis: int, sizes: Sequence[Sized], total: int) -> Iterator[OutputPart]:
    rest = total - sum(size or 0 for _, size in sizes)
    start = 0
    for kind, size in sizes:
        stop = start + (rest if size is None else size)
        yield OutputPart(kind, axis, start, stop)
        start = stop


def _of_decoding(
    outputs: Sequence[SeenOutput], postprocess: PostprocessSettings | None
) -> dict[str, tuple[OutputPart, ...]]:
    """What `postprocess` takes the outputs for."""
    if postprocess is None or not outputs:
        return {}
    first = outputs[0].name
    if postprocess.yolox is not None:
        sizes: list[Sized] = [("boxes", 4), ("objectness", 1), ("scores", None)]
        return _parts(outputs, {postprocess.yolox.output or first: (1, sizes)})
    how = postprocess.rows or postprocess.boxes
    if how is None:
        return {}
    whole: dict[str, Kind] = {}
    if how.prototypes is not None:
        whole[how.prototypes] = "prototypes"
    if postprocess.rows is not None:
        table = {postprocess.rows.output or first: (1, _columns(postprocess.rows, outputs))}
    else:
        table = _candidates(postprocess.boxes, first, outputs, whole)  # type: ignore[arg-type]
    return {
        **_parts(outputs, table),
        **{each.name: (OutputPart(whole[each.name]),) for each in outputs if each.name in whole},
    }


def _candidates(
    how: BoxDecoding, first: str, outputs: Sequence[SeenOutput], whole: dict[str, Kind]
) -> dict[str, tuple[int, list[Sized]]]:
    """The dimension and the parts of the output that holds boxes; others are `whole`."""
    if isinstance(how.keypoints, str):
        whole[how.keypoints] = "keypoints"
    name = how.boxes or first
    if how.scores is not None:
        whole |= {name: "boxes", how.scores: "scores"}
        if how.labels is not None:
            whole[how.labels] = "class_numbers"
        return {}
    behind = _behind(how, outputs)
    sizes: list[Sized] = [("boxes", 4), ("objectness", 1)] if how.objectness else [("boxes", 4)]
    sizes += [("scores", how.classes), *behind]
    if how.classes is not None and how.prototypes is None:
        sizes.append(("unknown", None))
    return {name: (0 if how.transposed else 1, sizes)}


def _behind(how: BoxDecoding | RowDecoding, outputs: Sequence[SeenOutput]) -> list[Sized]:
    """What a decoding reads behind the classes of a row."""
    if how.prototypes is not None:
        if isinstance(how, RowDecoding) or how.classes is not None:
            return [("mask_coefficients", None)]
        shape = next((each.shape for each in outputs if each.name == how.prototypes), None)
        return [("mask_coefficients", shape[0] if shape else MASK_COEFFICIENTS)]
    if how.angle:
        return [("angle", 1)]
    return [("keypoints", math.prod(how.keypoints))] if isinstance(how.keypoints, tuple) else []


def _columns(rows: RowDecoding, outputs: Sequence[SeenOutput]) -> list[Sized]:
    """What stands in a row that is a detection; the number of an image is no result."""
    kinds: dict[str, Sized] = {
        "box": ("boxes", 4),
        "score": ("scores", 1),
        "class": ("class_numbers", 1),
        "image": ("unknown", 1),
    }
    sizes = [*(kinds[column] for column in rows.columns), *_behind(rows, outputs)]
    return sizes if rows.prototypes is not None else [*sizes, ("unknown", None)]


def _parts(
    outputs: Sequence[SeenOutput], wanted: Mapping[str, tuple[int, list[Sized]]]
) -> dict[str, tuple[OutputPart, ...]]:
    """Parts of outputs `[rows, columns]`; outputs of another shape are left out."""
    parts = {}
    for output in outputs:
        if output.name not in wanted or output.shape is None or len(output.shape) != 2:
            continue
        axis, sizes = wanted[output.name]
        if output.shape[axis] >= sum(size or 0 for _, size in sizes):
            parts[output.name] = tuple(p for p in _along(axis, sizes, output.shape[axis]) if _holds(p))
    return parts


def _holds(part: OutputPart) -> bool:
    return part.stop is None or part.stop > part.start


def of_exporter(outputs: Sequence[SeenOutput], known: Exported) -> dict[str, tuple[OutputPart, ...]]:
    """The parts of an Ultralytics export: candidates in columns (v5 in rows), or rows after NMS.

    Outputs of another form are left out. Those of transformers are known by their names.
    """
    if known.head:
        kinds = _OF_TRANSFORMERS.get(known.task, {})
        return {each.name: (OutputPart(kinds[each.name]),) for each in outputs if each.name in kinds}
    if not outputs or outputs[0].shape is None:
        return {}
    first, classes = outputs[0], len(known.names)
    shape = first.shape
    assert shape is not None
    if known.task == "classify":
        return {first.name: (OutputPart("logits"),)} if shape == (classes,) else {}
    behind: list[Sized] = {
        "segment": [("mask_coefficients", MASK_COEFFICIENTS)],
        "pose": [("keypoints", math.prod(known.keypoints))],
        "obb": [("angle", 1)],
    }.get(known.task, [])  # type: ignore[assignment]
    # Of one class, both forms of rows are as wide: there are fewer detections than candidates.
    in_rows: list[list[Sized]] = [
        [*_ROW, *behind],
        [("boxes", 4), ("objectness", 1), ("scores", classes), *behind],
    ]
    forms: list[tuple[int, list[Sized]]] = [
        (0, [("boxes", 4), ("scores", classes), *behind]),
        *((1, sizes) for sizes in (in_rows if shape[0] <= MOST_ROWS else in_rows[::-1])),
    ]
    parts: dict[str, tuple[OutputPart, ...]] = {}
    for axis, sizes in forms:
        if len(shape) == 2 and shape[axis] == sum(size or 0 for _, size in sizes):
            parts[first.name] = tuple(_along(axis, sizes, shape[axis]))
            break
    for other in outputs[1:]:
        shape = other.shape or ()
        if known.task == "segment" and len(shape) == 3 and MASK_COEFFICIENTS in (shape[0], shape[2]):
            parts[other.name] = (OutputPart("prototypes"),)
    return parts


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
        others += _numbers_behind(how, outputs)
    shape = tensor.shape if tensor is not None else None
    if shape is None or len(shape) < (2 if place == 1 else 3):
        return None
    size = shape[place]
    return size - others if isinstance(size, int) and size > others else None


def _numbers_behind(how: Mapping[str, Any], outputs: Sequence[DeclaredOutput]) -> int:
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
