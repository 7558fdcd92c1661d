"""What a detection has beside its box: a mask, keypoints, or the corners of a rotated box.

A mask is COCO's compressed run-length encoding, `{"size": [height, width], "counts": TEXT}`, which
pycocotools and other tools read. Needs NumPy. Bundles have a copy of this file.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_RANK = 2  # of rows of one image
_AT_ONCE = 32  # maps of masks
_MOST_IN_BOX = 64  # rows and columns of a mask that is of its box; Mask R-CNN's has 28
_BITS = 5


def output(outputs: Mapping[str, np.ndarray], name: str | None) -> np.ndarray:
    """An output by its name; None: the first. Raises ValueError."""
    name = name or next(iter(outputs))
    if name not in outputs:
        raise ValueError(f"the model has no output {name!r}, it has {', '.join(outputs)}")
    return outputs[name]


def count_behind(how: Mapping[str, Any], outputs: Mapping[str, np.ndarray]) -> int:
    """How many numbers of a row stand behind its classes and say something else of its box."""
    if how["prototypes"] is not None:
        shape = output(outputs, how["prototypes"]).shape
        return shape[-3] if len(shape) > _RANK else 0
    return math.prod(how["keypoints"]) if isinstance(how["keypoints"], list) else int(how["angle"])


def behind(how: Mapping[str, Any], columns: np.ndarray, size: tuple[int, int]) -> dict[str, np.ndarray]:
    """What the numbers `[n, ...]` behind the classes say of the boxes."""
    if how["prototypes"] is not None:
        wanted, what = max(1, columns.shape[1]), "coefficients"
    elif isinstance(how["keypoints"], list):
        wanted, what = math.prod(how["keypoints"]), "keypoints"
    elif how["angle"]:
        wanted, what = 1, "angles"
    else:
        return {}
    if columns.shape[1] < wanted:
        raise ValueError(
            f"{columns.shape[1]} numbers stand behind the classes, wanted {wanted} of the {what}"
        )
    if what == "keypoints":
        return {what: _scaled(columns[:, :wanted].reshape(-1, *how["keypoints"]), how, size)}
    return {what: columns[:, 0] if what == "angles" else columns}


def own(
    how: Mapping[str, Any], outputs: Mapping[str, np.ndarray], count: int, size: tuple[int, int]
) -> dict[str, np.ndarray]:
    """What outputs of their own say of so many boxes: maps of masks, and keypoints."""
    more = {}
    if how["masks"] is not None:
        maps = output(outputs, how["masks"])
        sides = maps.shape[-2:]
        fits = sides == size or (len(set(sides)) == 1 and sides[0] <= _MOST_IN_BOX)
        if len(maps) != count or not fits or maps.size != count * math.prod(sides):
            wanted = f"[{count}, 1, {size[0]}, {size[1]}], or such as [{count}, 1, 28, 28] of the boxes"
            raise ValueError(f"the masks have the shape {list(maps.shape)}, wanted {wanted}")
        more["maps"] = maps.reshape(count, *sides)
    if isinstance(how["keypoints"], str):
        points = output(outputs, how["keypoints"]).astype(np.float32)
        if points.ndim != _RANK + 1 or len(points) != count or points.shape[2] not in (2, 3):
            wanted = f"[{count}, keypoints, 3]"
            raise ValueError(f"the keypoints have the shape {list(points.shape)}, wanted {wanted}")
        more["keypoints"] = _scaled(points, how, size)
    return more


def prototypes(
    how: Mapping[str, Any], outputs: Mapping[str, np.ndarray], image: int, count: int
) -> np.ndarray:
    """The prototypes of an image, `[count, height, width]`; a model may have the `count` last."""
    array = output(outputs, how["prototypes"])
    if array.ndim == _RANK + 2 and len(array) > image:
        array = array[image]
    if array.ndim == _RANK + 1 and count == array.shape[2] != array.shape[0]:
        array = np.moveaxis(array, 2, 0)
    if array.ndim != _RANK + 1 or len(array) != count:
        wanted = f"[{count}, height, width], one for each coefficient of a mask"
        raise ValueError(f"the prototypes have the shape {list(array.shape)}, wanted {wanted}")
    return array.astype(np.float32)


def _scaled(points: np.ndarray, how: Mapping[str, Any], size: tuple[int, int]) -> np.ndarray:
    """Points `[n, points, 2 or more]` in pixels of the input."""
    if how["normalized"]:
        factors = np.ones(points.shape[2], np.float32)
        factors[:2] = size[1], size[0]
        points = points * factors
    return points


def corners_of(boxes: np.ndarray, angles: np.ndarray) -> np.ndarray:
    """The corners `[n, 4, 2]` of rotated boxes, in order around each.

    `boxes` are `[n, 4]`, centre, width and height; `angles` `[n]` are in radians, from x towards y.
    """
    centre, (width, height) = boxes[:, :2], boxes[:, 2:].T / 2
    cos, sin = np.cos(angles), np.sin(angles)
    along = np.stack([width * cos, width * sin], axis=1)
    across = np.stack([-height * sin, height * cos], axis=1)
    ends = [along + across, along - across, -along - across, across - along]
    corners: np.ndarray = centre[:, None] + np.stack(ends, axis=1)
    return corners


def enclosing(corners: np.ndarray) -> np.ndarray:
    """The upright boxes `[n, 4]`, left, top, right, bottom, around corners `[n, 4, 2]`."""
    return np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)


def in_original(
    detections: Mapping[str, Any],
    placement: Mapping[str, Any],
    how: Mapping[str, Any],
    size: tuple[int, int],
) -> dict[str, Any]:
    """Detections of `postprocess.decoded` in pixels of the original: (place - padding) / scale.

    Where the settings say that places are in its pixels already, as they are. Masks become a list with
    one for each box; `size` is height and width of the input, which they are of.
    """
    original = how.get("original")
    scale = np.array([1.0, 1.0] if original else placement["scale"][::-1], np.float64)
    padding = np.array([0.0, 0.0] if original else placement["padding"][::-1], np.float64)
    placed = {name: detections[name] for name in ("scores", "labels")}
    placed["boxes"] = ((detections["boxes"].reshape(-1, 2, 2) - padding) / scale).reshape(-1, 4)
    if "corners" in detections:
        placed["corners"] = (detections["corners"] - padding) / scale
    if "keypoints" in detections:
        placed["keypoints"] = detections["keypoints"].astype(np.float64)
        placed["keypoints"][..., :2] = (placed["keypoints"][..., :2] - padding) / scale
    if "coefficients" in detections or "maps" in detections:
        placed["masks"] = list(_masks(detections, placed["boxes"], placement, size))
    return placed


def _masks(
    detections: Mapping[str, Any],
    boxes: np.ndarray,
    placement: Mapping[str, Any],
    size: tuple[int, int],
) -> Iterator[dict[str, Any]]:
    """The mask of each detection: where it is more likely than not.

    A pixel of the original takes the value at its centre, interpolated between those of a map: of the
    logits that coefficients make of the prototypes, inside the box alone, or of probabilities. A map of
    another size than the input fills its box, and outside of it nothing is likely, as when torchvision
    pastes it.
    """
    height, width = placement["original_size"]
    for index, values in enumerate(_maps(detections)):
        whole = "maps" in detections and values.shape == size
        of_box = "maps" in detections and not whole
        box = boxes[index]
        ends = (0, 0, width, height) if whole else np.ceil(box - 0.5 if of_box else box)
        left, top, right, bottom = ends
        first_row, end_row = np.clip([top, bottom], 0, height).astype(int)
        first_column, end_column = np.clip([left, right], 0, width).astype(int)
        runs = np.zeros(0, np.int64)
        if first_row < end_row and first_column < end_column:
            places = placement["scale"], placement["padding"], values.shape, size
            if of_box:
                steps = values.shape / np.maximum(box[2:] - box[:2], 1)[::-1]
                values = np.pad(values, 1, constant_values=np.float32(-0.5))
                places = steps, 1 - box[1::-1] * steps, values.shape, values.shape
            y, x = (
                _Line(first, end, scale * cells / of, (padding + scale / 2) * cells / of - 0.5, cells)
                for first, end, scale, padding, cells, of in zip(
                    (first_row, first_column), (end_row, end_column), *places, strict=True
                )
            )
            column, row = _changes(values[y.cells, x.cells], y, x)
            runs = (x.first + column) * height + y.first + row
        yield {"size": [height, width], "counts": run_lengths(runs, height * width)}


def _maps(detections: Mapping[str, Any]) -> Iterator[np.ndarray]:
    """A map `[height, width]` for each detection, above 0 where its mask is."""
    if "maps" in detections:
        yield from (each - np.float32(0.5) for each in detections["maps"])
        return
    coefficients, prototypes = detections["coefficients"], detections["prototypes"]
    for start in range(0, len(coefficients), _AT_ONCE):
        yield from np.tensordot(coefficients[start : start + _AT_ONCE], prototypes, axes=1)


class _Line:
    """Pixels `first` to `end` of a side of the original, at places `step`·pixel + `offset` of a map."""

    def __init__(self, first: int, end: int, step: float, offset: float, count: int) -> None:
        self.first, self.count = first, end - first
        self.step, self.offset = step, step * first + offset
        places = np.clip(self.step * np.arange(self.count) + self.offset, 0, count - 1)
        self.cells = slice(int(places[0]), int(np.ceil(places[-1])) + 1)
        self.places = places - self.cells.start

    def pixel(self, places: np.ndarray) -> np.ndarray:
        """The pixels, from `first` on and as fractions, at places of the map from `cells` on."""
        pixels: np.ndarray = (places + self.cells.start - self.offset) / self.step
        return pixels


def _changes(values: np.ndarray, y: _Line, x: _Line) -> tuple[np.ndarray, np.ndarray]:
    """Where a map rises above 0 or falls to it, column by column from the top: column and row.

    Between two rows of the map values change evenly, so that no pixel has to be computed.
    """
    low = np.minimum(x.places.astype(np.int64), values.shape[1] - 1)
    high = np.minimum(low + 1, values.shape[1] - 1)
    share = (x.places - low).astype(np.float32)
    columns = values[:, low] * (1 - share) + values[:, high] * share
    inside = np.zeros((len(columns) + 2, x.count), bool)
    inside[1:-1] = columns > 0
    column, edge = np.nonzero((inside[1:] != inside[:-1]).T)
    row = np.where(edge == 0, 0, y.count)
    between = np.flatnonzero((edge > 0) & (edge < len(columns)))
    above, here = edge[between] - 1, column[between]
    upper, lower = (columns[above + below, here].astype(np.float64) for below in (0, 1))
    crossing = y.pixel(above + upper / (upper - lower))
    # The first pixel that is above 0, or the first that is not.
    first_row = np.where(lower > 0, np.floor(crossing) + 1, np.ceil(crossing))
    row[between] = np.clip(first_row, 0, y.count)
    return column, row


def run_lengths(changes: np.ndarray, pixels: int) -> str:
    """COCO's text for a mask of so many pixels, counted down the columns.

    `changes` are the ascending numbers of the pixels where the mask begins and ends in turn.
    """
    again = np.diff(changes, prepend=-1, append=pixels + 1) == 0  # what begins where it ends is nothing
    if again.any():
        ends, times = np.unique(changes, return_counts=True)
        changes = ends[times % 2 == 1]
    lengths = np.diff(changes, prepend=0, append=pixels).astype(np.int64)
    if len(lengths) > 1 and lengths[-1] == 0:
        lengths = lengths[:-1]
    # From the fourth on as the difference to the one before the last; then five bits a letter.
    numbers = lengths.copy()
    numbers[3:] -= lengths[1:-2]
    letters = -(-(1 + int(np.abs(numbers).max()).bit_length()) // _BITS)
    rest = numbers[:, None] >> (_BITS * np.arange(1, letters + 1))
    digits = np.concatenate([numbers[:, None], rest[:, :-1]], axis=1) & 31
    more = np.where(digits & 16 > 0, rest != -1, rest != 0)
    begun = np.cumsum(~more, axis=1) - ~more == 0  # up to the last letter of each number
    text: bytes = (digits + 32 * more + 48).astype(np.uint8)[begun].tobytes()
    return text.decode("ascii")


def further_outputs(how: Mapping[str, Any]) -> tuple[str, ...]:
    """What a detection has beside its box by its settings: the keys of `described`."""
    masks = how.get("prototypes") is not None or how.get("masks") is not None
    there = {"mask": masks, "keypoints": how.get("keypoints") is not None, "corners": how.get("angle")}
    return tuple(name for name, has in there.items() if has)


def described(detections: Mapping[str, Any], index: int) -> dict[str, Any]:
    """What a detection of `in_original` has beside its box, ready for JSON."""
    extras: dict[str, Any] = {}
    if "masks" in detections:
        extras["mask"] = detections["masks"][index]
    for name in ("keypoints", "corners"):
        if name in detections:
            extras[name] = detections[name][index].tolist()
    return extras
