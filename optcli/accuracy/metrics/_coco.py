"""Which detection matches which object, by pycocotools, as bits by threshold."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from optcli.accuracy.objects import quadrangle_overlaps
from optcli.errors import InputError

if TYPE_CHECKING:
    import numpy as np

_WANTED = "postprocess gives {boxes: [n, 4] as left, top, right, bottom, scores: [n], labels: [n]}"


@dataclass(frozen=True)
class Kind:
    """What of an object is compared, by `bbox`, `segm` or `keypoints` of COCOeval or by `corners`.

    `most` detections of a class in an image count, `sigmas` are those of keypoints.
    """

    name: Literal["bbox", "segm", "keypoints", "corners"]
    most: int = 100
    sigmas: tuple[float, ...] = ()


def detections_of(decoded: Any, place: str, what: str | None = None) -> dict[str, Any]:
    """What postprocessing made of one sample, checked; `what` it must have beside. Raises `InputError`.

    `what` may be `masks`, `keypoints` or `corners`.
    """
    import numpy as np

    if not isinstance(decoded, Mapping) or not {"boxes", "scores", "labels"} <= set(decoded):
        raise InputError(
            f"map found {type(decoded).__name__} as detections of {place}",
            place="postprocess",
            hint=_WANTED,
        )
    boxes = np.asarray(decoded["boxes"], np.float64).reshape(-1, 4)
    scores = np.asarray(decoded["scores"], np.float64).reshape(-1)
    labels = np.asarray(decoded["labels"]).reshape(-1).astype(np.int64)
    if not len(boxes) == len(scores) == len(labels):
        counts = f"{len(boxes)} boxes, {len(scores)} scores and {len(labels)} labels"
        raise InputError(f"{counts} for {place}", place="postprocess", hint=_WANTED)
    sound = np.isfinite(boxes).all(axis=1) & np.isfinite(scores)
    detections: dict[str, Any] = {
        "boxes": boxes[sound],
        "scores": scores[sound],
        "labels": labels[sound],
    }
    if what is None:
        return detections
    settings = {
        "masks": "prototypes: OUTPUT (or masks: OUTPUT)",
        "keypoints": "keypoints: [17, 3] (how many, and of how many numbers)",
        "corners": "angle: true",
    }
    hint = f"say under postprocess what stands behind the classes: {settings[what]}"
    if what not in decoded:
        raise InputError(f"the detections of {place} have no {what}", place="postprocess", hint=hint)
    if len(decoded[what]) != len(boxes):
        counts = f"{len(boxes)} boxes and {len(decoded[what])} {what}"
        raise InputError(f"{counts} for {place}", place="postprocess", hint=hint)
    detections[what] = [each for each, is_sound in zip(decoded[what], sound, strict=True) if is_sound]
    return detections


def matched(
    truths: Sequence[Mapping[str, Any]],
    detections: Sequence[Mapping[str, Any]],
    kind: Kind,
    sizes: Sequence[tuple[int, int]],
) -> dict[str, np.ndarray]:
    """Records of some images. Only classes with an object here can match; all detections are kept.

    Objects and detections may have `fields`, entries of each one's annotation in COCO's format. `sizes`
    are height and width of the images.
    """
    import numpy as np

    evaluated = _evaluated(truths, detections, kind, sizes)
    rows: list[tuple[np.ndarray, ...]] = []
    for image in evaluated:
        if image is None or not len(image["dtIds"]):
            continue
        count = len(image["dtIds"])
        bits = 1 << np.arange(len(image["dtMatches"]))[:, None]
        rows.append(
            (
                np.full(count, image["image_id"] - 1, np.int32),
                np.full(count, image["category_id"], np.int32),
                np.asarray(image["dtScores"], np.float64),
                ((image["dtMatches"] > 0) * bits).sum(axis=0).astype(np.uint16),
                (image["dtIgnore"].astype(bool) * bits).sum(axis=0).astype(np.uint16),
            )
        )
    names = ("sample", "class", "score", "matched", "ignored")
    kinds = (np.int32, np.int32, np.float64, np.uint16, np.uint16)
    records = {
        f"detection_{name}": np.concatenate([row[i] for row in rows]) if rows else np.empty(0, kind)
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
    }
    counted = [np.flatnonzero(~(truth["crowd"] | truth.get("ignored", False))) for truth in truths]
    owners = [np.full(len(of), index, np.int32) for index, of in enumerate(counted)]
    labels = [truth["labels"][of].astype(np.int32) for truth, of in zip(truths, counted, strict=True)]
    return {
        **records,
        "truth_sample": np.concatenate([*owners, np.empty(0, np.int32)]),
        "truth_class": np.concatenate([*labels, np.empty(0, np.int32)]),
    }


def _evaluated(
    truths: Sequence[Mapping[str, Any]],
    detections: Sequence[Mapping[str, Any]],
    kind: Kind,
    sizes: Sequence[tuple[int, int]],
) -> list[dict[str, Any] | None]:
    """COCOeval's own records by class and image; images count from 1."""
    import numpy as np
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    class Rotated(COCOeval):  # type: ignore[misc]
        def computeIoU(self, image: int, label: int) -> Any:  # noqa: N802
            objects, marks = self._gts[image, label], self._dts[image, label]
            order = np.argsort([-mark["score"] for mark in marks], kind="mergesort")
            best = [marks[index] for index in order[: self.params.maxDets[-1]]]
            if not objects or not best:
                return []
            sides = (np.stack([each["corners"] for each in side]) for side in (best, objects))
            return quadrangle_overlaps(*sides)

    classes = sorted(
        {int(label) for part in (*truths, *detections) for label in part["labels"]},
    )
    boxes = _annotations(truths)
    for box, truth_crowd in zip(boxes, (c for t in truths for c in t["crowd"]), strict=True):
        box["iscrowd"] = int(truth_crowd)
    marks = _annotations(detections)
    for mark, score in zip(marks, (s for f in detections for s in f["scores"]), strict=True):
        mark["score"] = float(score)
    with contextlib.redirect_stdout(io.StringIO()):  # it prints how long it took
        sides = []
        for annotations in (boxes, marks):
            side = COCO()
            side.dataset = {
                "images": [
                    {"id": index, "height": height, "width": width}
                    for index, (height, width) in enumerate(sizes, 1)
                ],
                "annotations": annotations,
                "categories": [{"id": label} for label in classes],
            }
            side.createIndex()
            sides.append(side)
        evaluation = Rotated(*sides, "bbox") if kind.name == "corners" else COCOeval(*sides, kind.name)
        evaluation.params.areaRng = [[0, 1e10]]
        evaluation.params.areaRngLbl = ["all"]
        evaluation.params.maxDets = [kind.most]
        if kind.sigmas:
            evaluation.params.kpt_oks_sigmas = np.array(kind.sigmas)
        evaluation.evaluate()
    images: list[dict[str, Any] | None] = evaluation.evalImgs
    return images


def _annotations(images: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    converted: list[dict[str, Any]] = []
    for index, image in enumerate(images):
        fields = image.get("fields", [{}] * len(image["labels"]))
        for box, label, more in zip(image["boxes"], image["labels"], fields, strict=True):
            left, top, right, bottom = (float(value) for value in box)
            size = (right - left, bottom - top)
            converted.append(
                {
                    "id": len(converted) + 1,
                    "image_id": index + 1,
                    "category_id": int(label),
                    "bbox": [left, top, *size],
                    "area": size[0] * size[1],
                    "iscrowd": 0,
                    **more,
                }
            )
    return converted
