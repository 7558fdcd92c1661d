"""What detections have beside boxes - masks, keypoints, corners - as records, and how it changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optcli.accuracy.evaluation import Evaluation

if TYPE_CHECKING:
    import numpy as np

# Masks are run lengths, one text after the other.
_MASKS = ("found_mask_size", "found_mask_length", "found_mask_text")
_POINTS = ("found_keypoints", "found_corners")
NAMES = (*_POINTS, *_MASKS)
_VISIBLE = 0.5  # as a model says of a keypoint
_SAME_MASK = 0.5  # IoU
# A keypoint that lies off by this share of its object's size on average is named.
_MOVED = 0.1
# A box that is turned by as many degrees is another one.
_TURNED = 10
# A box that is this much longer than wide has a direction.
_LONG = 1.3


@dataclass(frozen=True)
class Objects:
    """What each detection of an evaluation has, in the order of its records; None where it has none.

    Masks are COCO's compressed run lengths, keypoints `[n, k, 2 or 3]`, corners `[n, 4, 2]`.
    """

    masks: Sequence[Mapping[str, Any]] | None = None
    keypoints: np.ndarray | None = None
    corners: np.ndarray | None = None

    @classmethod
    def of(cls, evaluation: Evaluation) -> Objects:
        """Those that an evaluation recorded."""
        return cls.of_records({name: evaluation.array(name) for name in NAMES})

    @classmethod
    def of_records(cls, arrays: Mapping[str, np.ndarray | None]) -> Objects:
        """Those of records."""
        masks = None
        sizes, lengths, text = (arrays.get(name) for name in _MASKS)
        if sizes is not None and lengths is not None and text is not None:
            ends = lengths.cumsum()
            whole = text.tobytes()
            masks = [
                {"size": size, "counts": whole[end - length : end]}
                for size, length, end in zip(sizes.tolist(), lengths, ends, strict=True)
            ]
        return cls(masks, *(arrays.get(name) for name in _POINTS))


def records(decoded: Sequence[Mapping[str, Any]], best: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Records of what the `best` detections of each image have, where those of all images have it."""
    import numpy as np

    columns: dict[str, np.ndarray] = {}
    for name in _POINTS:
        key = name.removeprefix("found_")
        if all(key in each for each in decoded):
            parts = [np.asarray(each[key], np.float32) for each in decoded]
            if len({part.shape[1:] for part in parts}) == 1 and parts[0].ndim == 3:
                columns[name] = np.concatenate([p[b] for p, b in zip(parts, best, strict=True)])
    if all("masks" in each for each in decoded):
        masks = [encoded(each["masks"][i]) for each, b in zip(decoded, best, strict=True) for i in b]
        texts = [_bytes(each["counts"]) for each in masks]
        columns["found_mask_size"] = np.array([each["size"] for each in masks], np.int32).reshape(-1, 2)
        columns["found_mask_length"] = np.array([len(each) for each in texts], np.int64)
        columns["found_mask_text"] = np.frombuffer(b"".join(texts), np.uint8)
    return columns


def encoded(mask: np.ndarray | Mapping[str, Any]) -> dict[str, Any]:
    """A mask `[height, width]` of truth values, or one that is encoded already, as COCO's RLE."""
    if isinstance(mask, Mapping):
        return dict(mask)
    import numpy as np
    from pycocotools import mask as library

    text: dict[str, Any] = library.encode(np.asfortranarray(np.asarray(mask) > 0, np.uint8))
    return text


def _bytes(counts: str | bytes) -> bytes:
    return counts.encode() if isinstance(counts, str) else counts


def changes(
    candidate: Objects, reference: Objects, own: np.ndarray, other: np.ndarray, sizes: np.ndarray
) -> dict[str, Any]:
    """How far what pairs of detections have lies apart, as fields of `DetectionChange`.

    `own` and `other` are the numbers of the paired detections, `sizes` `[pairs]` the roots of the areas
    of the baseline's boxes.
    """
    figures: dict[str, Any] = {}
    if candidate.masks is not None and reference.masks is not None:
        pairs = [(candidate.masks[a], reference.masks[b]) for a, b in zip(own, other, strict=True)]
        figures |= _masks(pairs)
    if candidate.keypoints is not None and reference.keypoints is not None:
        figures |= _keypoints(candidate.keypoints[own], reference.keypoints[other], sizes)
    if candidate.corners is not None and reference.corners is not None:
        figures |= _turns(candidate.corners[own], reference.corners[other])
    return figures


def differ(candidate: Objects, reference: Objects, own: int, other: int, box: np.ndarray) -> bool:
    """Whether two detections that are paired have another mask, other keypoints or another angle.

    `box` is the baseline's.
    """
    import numpy as np

    size = np.sqrt(np.clip(box[2:] - box[:2], 0, None).prod())
    apart = changes(candidate, reference, np.array([own]), np.array([other]), np.array([size]))
    moved = apart.get("keypoint_distance", 0) > _MOVED or apart.get("turn_degrees", 0) > _TURNED
    return moved or bool(apart.get("other_masks", 0))


def _masks(pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Any]:
    """Over the pixels of all masks together, and how many masks are others."""
    from pycocotools import mask as library

    shared = union = others = 0
    for a, b in pairs:
        if a["size"] != b["size"]:
            return {}
        common = int(library.area(library.merge([a, b], intersect=True)))
        both = int(library.area(a)) + int(library.area(b)) - common
        shared, union = shared + common, union + both
        others += common < _SAME_MASK * both
    return {"mask_iou": shared / union, "other_masks": others} if union else {}


def _keypoints(candidate: np.ndarray, reference: np.ndarray, sizes: np.ndarray) -> dict[str, Any]:
    """Of the keypoints that are visible in the baseline: distances in parts of the object's size."""
    import numpy as np

    if candidate.shape != reference.shape or not candidate.size:
        return {}
    seen = (
        reference[:, :, 2] >= _VISIBLE if reference.shape[2] > 2 else np.ones(reference.shape[:2], bool)
    )
    if not seen.any():
        return {}
    apart = (
        np.linalg.norm(candidate[:, :, :2] - reference[:, :, :2], axis=2)
        / np.maximum(sizes, 1e-9)[:, None]
    )
    counts = seen.sum(axis=0)
    each = np.divide((apart * seen).sum(axis=0), counts, out=np.zeros(len(counts)), where=counts > 0)
    figures: dict[str, Any] = {
        "keypoint_distance": float(apart[seen].mean()),
        "moved_keypoints": tuple(np.flatnonzero(each > _MOVED).tolist()),
    }
    if reference.shape[2] > 2:
        figures["keypoints_seen"] = float((candidate[:, :, 2] >= _VISIBLE)[seen].mean())
    return figures


def _turns(candidate: np.ndarray, reference: np.ndarray) -> dict[str, Any]:
    """The mean angle between boxes that are longer than wide, in degrees."""
    import numpy as np

    directions = []
    is_long = np.ones(len(candidate), bool)
    for corners in (candidate, reference):
        edges = corners[:, 1:3] - corners[:, :2]
        lengths = np.linalg.norm(edges, axis=2)
        longest = edges[np.arange(len(edges)), lengths.argmax(axis=1)]
        directions.append(np.arctan2(longest[:, 1], longest[:, 0]))
        is_long &= lengths.max(axis=1) > _LONG * lengths.min(axis=1)
    between = np.abs((directions[0] - directions[1] + np.pi / 2) % np.pi - np.pi / 2)
    return {"turn_degrees": float(np.degrees(between[is_long]).mean())} if is_long.any() else {}


# An edge whose ends lie as near to a line, in pixels, lies on it.
_NEAR = 1e-6


def quadrangle_overlaps(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """IoU of each of the convex quadrangles `[n, 4, 2]` with each of `[m, 4, 2]`: `[n, m]`."""
    import numpy as np

    first, second = (_turned_one_way(np.asarray(each, np.float64)) for each in (first, second))
    low = np.maximum(first.min(axis=1)[:, None], second.min(axis=1)[None])
    high = np.minimum(first.max(axis=1)[:, None], second.max(axis=1)[None])
    one, other = np.nonzero((high > low).all(axis=2))
    shared = np.zeros((len(first), len(second)))
    # Of numbers near 0, so that no digits are lost.
    origin = first[one].mean(axis=1, keepdims=True)
    a, b = first[one] - origin, second[other] - origin
    shared[one, other] = _bounded(a, b, shared=True) + _bounded(b, a, shared=False)
    union = _areas(first)[:, None] + _areas(second)[None] - shared
    overlap: np.ndarray = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return overlap


def _cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    product: np.ndarray = a[..., 0] * b[..., 1] - a[..., 1] * b[..., 0]
    return product


def _areas(corners: np.ndarray) -> np.ndarray:
    import numpy as np

    areas: np.ndarray = _cross(corners, np.roll(corners, -1, axis=1)).sum(axis=1) / 2
    return areas


def _turned_one_way(corners: np.ndarray) -> np.ndarray:
    """The same with all corners in one order, by which their areas are positive."""
    import numpy as np

    return np.where(_areas(corners)[:, None, None] < 0, corners[:, ::-1], corners)


def _bounded(inner: np.ndarray, outer: np.ndarray, *, shared: bool) -> np.ndarray:
    """What the edges of one polygon add to the area of what it shares with the other, `[pairs]`.

    That area is bounded by the pieces of both polygons' edges that lie inside the other: it is half the
    sum of their cross products. An edge of both counts once, where it is `shared`; an edge where they
    touch from outside does not count.
    """
    import numpy as np

    along = np.roll(inner, -1, axis=1) - inner
    edge = np.roll(outer, -1, axis=1) - outer
    length = np.linalg.norm(edge, axis=2)
    edge = edge / np.where(length > 0, length, 1)[:, :, None]
    # Of each edge (second dimension) from each line of the other polygon (third): distance of where it
    # begins, and how much it grows to where it ends.
    distance = _cross(edge[:, None], inner[:, :, None] - outer[:, None])
    growth = _cross(edge[:, None], along[:, :, None])
    on_line = (np.abs(distance) <= _NEAR) & (np.abs(distance + growth) <= _NEAR)
    same_way = (edge[:, None] * along[:, :, None]).sum(axis=3) > 0
    counts = same_way if shared else np.zeros_like(same_way)
    outside = np.where(on_line, ~counts, (growth == 0) & (distance < 0))
    at = -distance / np.where(on_line | (growth == 0), 1, growth)
    begin = np.where(~on_line & (growth > 0), at, 0).max(axis=2)
    end = np.where(~on_line & (growth < 0), at, 1).min(axis=2)
    inside = (end > begin) & ~outside.any(axis=2)
    begin, end = (np.clip(each, 0, 1)[:, :, None] for each in (begin, end))
    pieces = _cross(inner + begin * along, inner + end * along) * inside
    added: np.ndarray = pieces.sum(axis=1) / 2
    return added
