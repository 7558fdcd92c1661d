"""What the outputs of a network most likely are: classes of images or pixels, or boxes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optcli.inspection import Tensor
from optcli.settings import TensorSpec

_STRIDES = (8, 16, 32)


@dataclass(frozen=True)
class Meaning:
    """`count` is the number of classes. Of boxes `postprocess` and `prepare` are what a recipe says."""

    kind: Literal["classes", "pixels", "boxes", "unknown"]
    count: int | None = None
    postprocess: str = ""
    prepare: str = ""


def meaning(
    outputs: Sequence[Tensor], inputs: Sequence[TensorSpec], *, largest: float | None = None
) -> Meaning:
    """What the first output is, by its shape alone.

    `largest` is the largest coordinate that a detector gave for a random image, where it was called:
    boxes in pixels reach to its size, those that are not decoded yet only to a few cells.
    """
    shape: Sequence[int | str | None] = (outputs[0].shape if outputs else None) or ()
    if len(shape) == 2 and isinstance(shape[1], int):
        return Meaning("classes", shape[1])
    if not inputs or len(inputs[0].shape) != 4:
        return Meaning("unknown")
    sizes = [size if isinstance(size, int) else inputs[0].ranges[size].opt for size in inputs[0].shape]
    height, width = sizes[2:] if sizes[1] in (1, 3) else sizes[1:3]
    if len(shape) == 4 and isinstance(shape[1], int) and shape[1] > 1 and _is_map(shape, height, width):
        return Meaning("pixels", shape[1])
    if len(shape) == 3:
        return _boxes(shape[1], shape[2], height, width, largest)
    return Meaning("unknown")


def _is_map(shape: Sequence[int | str | None], height: int, width: int) -> bool:
    """Scores of the image's own size, or of a fraction of it."""
    pairs = [(mine, whole) for mine, whole in zip(shape[2:], (height, width), strict=True) if mine]
    return all(not isinstance(mine, int) or whole >= mine > whole // 64 for mine, whole in pairs)


def _boxes(rows: Any, columns: Any, height: int, width: int, largest: float | None) -> Meaning:
    """The outputs of the YOLO families, told by how many cells their grids have."""
    cells = sum((height // stride) * (width // stride) for stride in _STRIDES)
    size = height if height == width else f"[{height}, {width}]"
    if not (isinstance(rows, int) and isinstance(columns, int)):
        return Meaning("unknown")
    box = f"letterbox: {{size: {size}, fill: 114}}, channel_order: rgb, scale: 1/255"
    if rows == cells and columns > 5:
        decoded = largest is not None and largest > max(height, width) / 4
        options = "{decoded: true}" if decoded else "{}"
        top_left = f"letterbox: {{size: {size}, fill: 114, align: top_left}}, channel_order: bgr"
        return Meaning("boxes", columns - 5, f"{{yolox: {options}}}", f"{{{top_left}}}")
    if columns == cells and rows > 4:
        boxes = "{boxes: {format: cxcywh, transposed: true, nms: 0.65}}"
        return Meaning("boxes", rows - 4, boxes, f"{{{box}}}")
    if rows == 3 * cells and columns > 5:
        boxes = "{boxes: {format: cxcywh, objectness: true, nms: 0.65}}"
        return Meaning("boxes", columns - 5, boxes, f"{{{box}}}")
    return Meaning("unknown")
