"""Which detection matches which box, by pycocotools, as bits by IoU threshold."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optcli.errors import InputError

if TYPE_CHECKING:
    import numpy as np

_WANTED = "postprocess gives {boxes: [n, 4] as left, top, right, bottom, scores: [n], labels: [n]}"


def detections_of(decoded: Any, place: str) -> dict[str, np.ndarray]:
    """What postprocessing made of one sample, checked. Raises `InputError`."""
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
    return {"boxes": boxes[sound], "scores": scores[sound], "labels": labels[sound]}


def matched(
    truths: Sequence[Mapping[str, Any]], detections: Sequence[Mapping[str, Any]]
) -> dict[str, np.ndarray]:
    """Records of some images. Only classes with a box here can match; all detections are kept."""
    import numpy as np

    evaluated = _evaluated(truths, detections)
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
    counted = [np.flatnonzero(~truth["crowd"]) for truth in truths]
    owners = [np.full(len(of), index, np.int32) for index, of in enumerate(counted)]
    labels = [truth["labels"][of].astype(np.int32) for truth, of in zip(truths, counted, strict=True)]
    return {
        **records,
        "truth_sample": np.concatenate([*owners, np.empty(0, np.int32)]),
        "truth_class": np.concatenate([*labels, np.empty(0, np.int32)]),
    }


def _evaluated(
    truths: Sequence[Mapping[str, Any]], detections: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any] | None]:
    """COCOeval's own records by class and image; images count from 1."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

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
                "images": [{"id": index + 1} for index in range(len(truths))],
                "annotations": annotations,
                "categories": [{"id": label} for label in classes],
            }
            side.createIndex()
            sides.append(side)
        evaluation = COCOeval(*sides, "bbox")
        evaluation.params.areaRng = [[0, 1e10]]
        evaluation.params.areaRngLbl = ["all"]
        evaluation.params.maxDets = [100]
        evaluation.evaluate()
    images: list[dict[str, Any] | None] = evaluation.evalImgs
    return images


def _annotations(images: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    converted: list[dict[str, Any]] = []
    for index, image in enumerate(images):
        for box, label in zip(image["boxes"], image["labels"], strict=True):
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
                }
            )
    return converted
