"""Detections of a variant beside the baseline's, image by image and without labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from optcli.accuracy import objects
from optcli.accuracy.evaluation import Evaluation
from optcli.accuracy.objects import Objects
from optcli.accuracy.parts import CONFIDENT
from optcli.results.outcomes import DetectionChange

if TYPE_CHECKING:
    import numpy as np

    Both: TypeAlias = tuple[list[np.ndarray], list[np.ndarray]]

# Of one image, best first, as COCO counts them; weaker ones are no sign of anything.
_MOST = 100
_LEAST_SCORE = 0.05
_SAME_PLACE = 0.5  # IoU
_LEFT = 0.7  # of its score, for a detection that counts as left to its class
# That chance takes so much of any class, if it takes as much of each: over all classes together.
_BY_CHANCE = 0.05
# Of the images of a decoding that is a guess, so many may have boxes that no detector gives; and of the
# confident boxes of an image.
_ODD_IMAGES, _ODD_BOXES = 0.05, 0.1
# A box of a detector may reach beyond its image by this share of it on each side, and no further.
_BEYOND = 0.25
PAIRS = ("pair_label", "pair_class")
NAMES = ("found_sample", "found_box", "found_score", "found_label")


def records(decoded: Sequence[Any] | None) -> dict[str, np.ndarray]:
    """The best detections of some images, `[detections, ...]`; empty where decoding gives others."""
    import numpy as np

    if decoded is None or not all(_are_detections(each) for each in decoded):
        return {}
    parts, bests = [], []
    for number, each in enumerate(decoded):
        scores = np.asarray(each["scores"], np.float32).reshape(-1)
        best = np.argsort(-scores, kind="stable")[:_MOST]
        best = best[scores[best] >= _LEAST_SCORE]
        boxes = np.asarray(each["boxes"], np.float32).reshape(-1, 4)
        labels = np.asarray(each["labels"], np.int64).reshape(-1)
        parts.append((np.full(len(best), number), boxes[best], scores[best], labels[best]))
        bests.append(best)
    flat = dict(zip(NAMES, map(np.concatenate, zip(*parts, strict=True)), strict=True))
    return {**flat, **objects.records(decoded, bests)}


def pairs(decoded: Sequence[Any] | None, targets: Sequence[Any]) -> dict[str, np.ndarray]:
    """The classes of boxes and of the best detections in their places, whatever their classes."""
    import numpy as np

    if decoded is None or not all(_are_detections(each) for each in decoded):
        return {}
    labels, classes = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for detections, target in zip(decoded, targets, strict=True):
        if not (isinstance(target, dict) and {"boxes", "labels"} <= target.keys()):
            return {}
        scores = np.asarray(detections["scores"], np.float64).reshape(-1)
        best = np.argsort(-scores, kind="stable")[:_MOST]
        boxes = np.asarray(detections["boxes"], np.float64).reshape(-1, 4)[best]
        truths = np.asarray(target["boxes"], np.float64).reshape(-1, 4)
        near = _overlaps(truths, boxes) >= _SAME_PLACE
        placed = near.any(axis=1)
        labels.append(np.asarray(target["labels"], np.int64).reshape(-1)[placed])
        first = near[placed].argmax(axis=1) if placed.any() else np.zeros(0, int)
        classes.append(np.asarray(detections["labels"], np.int64).reshape(-1)[best][first])
    return dict(zip(PAIRS, (np.concatenate(labels), np.concatenate(classes)), strict=True))


def _are_detections(decoded: Any) -> bool:
    return isinstance(decoded, dict) and {"boxes", "scores", "labels"} <= decoded.keys()


def sensible(boxes: np.ndarray, scores: np.ndarray, size: tuple[int, int]) -> bool:
    """Whether confident boxes `[n, 4]` are such as a detector gives: with an area, in the image.

    `size` is its height and width.
    """
    import numpy as np

    confident = boxes[scores >= CONFIDENT]
    if not len(confident):
        return True
    limits = np.array(size[::-1], np.float64)
    low, high = confident[:, :2], confident[:, 2:]
    inside = (low >= -_BEYOND * limits) & (high <= (1 + _BEYOND) * limits) & (high - low >= 1)
    return float(inside.all(axis=1).mean()) >= 1 - _ODD_BOXES


def of_both(variant: Evaluation, baseline: Evaluation) -> Both | None:
    """The detections of two evaluations, in the order of `NAMES`; None where one of them has none.

    Where both have rotated boxes their corners stand behind.

    Nor are there any where the decoding is a guess, and what it finds in the baseline's outputs is no
    sign that they are a detector's: scores above 1, or boxes outside of the images.
    """
    if baseline.guessed:
        odd = sum(note.images for note in baseline.decoding if note.kind in ("misread", "no_boxes"))
        if odd > _ODD_IMAGES * baseline.samples:
            return None
    candidate, reference = ([each.array(name) for name in NAMES] for each in (variant, baseline))
    if any(each is None for each in (*candidate, *reference)):
        return None
    corners = [Objects.of(each).corners for each in (variant, baseline)]
    if all(each is not None for each in corners):
        candidate, reference = [*candidate, corners[0]], [*reference, corners[1]]
    return candidate, reference  # type: ignore[return-value]


def compare(
    candidate: Sequence[np.ndarray],
    reference: Sequence[np.ndarray],
    images: int,
    score: float,
    have: tuple[Objects, Objects] = (Objects(), Objects()),
) -> DetectionChange:
    """How the detections changed.

    Both are arrays in the order of `NAMES`, `have` is what they have beside boxes. `score` is the
    smallest one that a recipe asks for: those of `CONFIDENT` and more are looked at, or of that score
    where it is larger.
    """
    import numpy as np

    confident = max(score, CONFIDENT)
    pairs = [matched(candidate, reference, image, confident) for image in range(images)]
    in_image = np.repeat(np.arange(images), [len(pair[1]) for pair in pairs])
    own, other, strangers = (
        np.concatenate([pair[i] for pair in pairs]) if pairs else np.zeros((0, 7)) for i in range(3)
    )
    placed = np.isfinite(own[:, 0])
    same = placed & (own[:, 5] == other[:, 5])
    sizes = np.maximum(other[same, 2:4] - other[same, :2], 1e-9)
    moved = (own[same, :4] - other[same, :4]) / np.tile(sizes, 2)
    numbers = [each[same, 6].astype(int) for each in (own, other)]
    return DetectionChange(
        images=images,
        score=confident,
        confident=len(other),
        same_place=int(placed.sum()),
        same=int(same.sum()),
        new=len(strangers),
        score_ratio=float(own[same, 4].sum() / other[same, 4].sum()) if same.any() else None,
        shift=float(np.abs(moved.mean(axis=0)).max()) if same.any() else None,
        classes=tuple(_changed_classes(own, other, same, in_image)),
        **objects.changes(*have, own=numbers[0], other=numbers[1], sizes=np.sqrt(sizes.prod(axis=1))),
    )


def matched(
    candidate: Sequence[Any], reference: Sequence[Any], image: int, confident: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows of the variant and of the baseline for each confident one of its; new ones.

    A row is box, score, label and the number of the detection; NaN where the variant has none there.
    Each is matched once, the best
    first, with one of its own class rather than of another. What the variant finds counts from half of
    the score: what lies close to the limit may fall below it.
    """
    import numpy as np

    a, b = (_rows(each, image) for each in (candidate, reference))
    a, sure = a[a[:, 4] >= confident / 2], b[b[:, 4] >= confident]
    own = np.full((len(sure), 7), np.nan)
    free = np.ones(len(a), bool)

    def overlaps(first: np.ndarray, second: np.ndarray, sides: tuple[Any, Any]) -> np.ndarray:
        if min(map(len, sides)) == len(NAMES):
            return _overlaps(first[:, :4], second[:, :4])
        rotated = (
            side[4][rows[:, 6].astype(int)] for rows, side in zip((first, second), sides, strict=True)
        )
        return objects.quadrangle_overlaps(*rotated)

    overlap = overlaps(sure, a, (reference, candidate))
    for index, row in enumerate(sure):
        near = np.flatnonzero(free & (overlap[index] >= _SAME_PLACE))
        if len(near):
            best = near[np.lexsort((-overlap[index, near], a[near, 5] != row[5]))[0]]
            own[index], free[best] = a[best], False
    # What the baseline sees there too, with whatever score, is not new.
    seen = (overlaps(a, b, (candidate, reference)) >= _SAME_PLACE).any(axis=1)
    return own, sure, a[free & (a[:, 4] >= confident) & ~seen]


def _rows(detections: Sequence[Any], image: int) -> np.ndarray:
    import numpy as np

    samples, boxes, scores, labels = detections[:4]
    here = np.flatnonzero(samples == image)
    columns = (boxes[here], scores[here, None], labels[here, None], here[:, None])
    rows: np.ndarray = np.concatenate([np.asarray(each, np.float64) for each in columns], axis=1)
    return rows


def _overlaps(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """IoU of each box with each other, `[first, second]`."""
    import numpy as np

    low = np.maximum(first[:, None, :2], second[None, :, :2])
    high = np.minimum(first[:, None, 2:], second[None, :, 2:])
    shared = np.clip(high - low, 0, None).prod(axis=2)
    areas = [np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=1) for boxes in (first, second)]
    union = areas[0][:, None] + areas[1][None] - shared
    overlaps: np.ndarray = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return overlaps


def _changed_classes(
    own: np.ndarray, other: np.ndarray, same: np.ndarray, images: np.ndarray
) -> Iterator[tuple[int, int, int]]:
    """Classes of which less than half are left, where the loss of other classes does not explain it.

    Left are those of the same class, with a score near to theirs. What an image has of a class comes
    and goes together. It counts once: as gone where less than half of it is left. Of the other classes
    a share is gone, by which the exact binomial test goes. Bonferroni's correction is for as many tests
    as there are classes.
    """
    import numpy as np
    from scipy.special import bdtrc

    with np.errstate(invalid="ignore"):
        left = same & (own[:, 4] > _LEFT * other[:, 4])
    seen, group = np.unique(np.stack([other[:, 5], images]), axis=1, return_inverse=True)
    group = group.reshape(-1)
    gone = 2 * np.bincount(group, left) < np.bincount(group)
    classes = np.unique(seen[0])
    for label in classes:
        members = other[:, 5] == label
        count, of = int(left[members].sum()), len(left[members])
        here = seen[0] == label
        # As if one more of two had gone: where few are known, none gone is no proof of none.
        share = (gone[~here].sum() + 1) / ((~here).sum() + 2)
        chance = bdtrc(gone[here].sum() - 1, here.sum(), share)  # so many or more
        if 2 * count < of and len(classes) * chance < _BY_CHANCE:
            yield int(label), count, of
