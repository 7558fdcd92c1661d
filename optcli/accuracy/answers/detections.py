"""Detections of another machine: COCO's results, `[{image_id, category_id, bbox, score}, ...]`."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import data
from optcli.accuracy.answers import Answers, listed
from optcli.accuracy.metrics import Predictions
from optcli.errors import InputError, excerpt
from optcli.files import regular_files
from optcli.sample import Batch

if TYPE_CHECKING:
    from optcli.accuracy.metrics import Records
    from optcli.accuracy.work import EvaluationWork

_WANTED = "wanted a list of {image_id, category_id, bbox: [left, top, width, height], score}"


class DetectionAnswers(Answers):
    """Boxes in pixels of the original image; category ids are the data's, else class numbers from 0.

    An image without any is one in which nothing was found. `segmentation` (RLE) and `keypoints` of
    entries become `masks` and `keypoints`, where all entries have them.
    """

    can_be_empty = True

    def __init__(self, path: Path, work: EvaluationWork) -> None:
        entries = _entries(path)
        by_image: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
        for entry in entries:
            by_image[str(entry["image_id"])].append(entry)
        super().__init__(path, list(by_image))
        self._images = list(by_image.values())
        metric = work.metric
        if metric is not None and metric.reads is not None:
            raise self.wrong(
                f"these are detections, and {work.request.settings.metric} reads no detections",  # type: ignore[union-attr]
                "name a recipe whose metric is map, or write outputs (npz) or classes (csv)",
            )
        self._labels = self._numbered(entries, work)
        self._more = [name for name in ("segmentation", "keypoints") if all(name in e for e in entries)]
        sizes = sorted({len(entry.get("keypoints", [])) // 3 for entry in entries})
        self._points = max(sizes, default=0)
        if "keypoints" in self._more and len(sizes) > 1:
            counts = " and ".join(map(str, sizes[:2]))
            raise self.wrong(f"entries have {counts} keypoints", "wanted as many for each entry")

    def seen(
        self, work: EvaluationWork, batch: Batch, places: Sequence[int | None]
    ) -> tuple[Predictions, Records]:
        decoded = [self._of([] if place is None else self._images[place]) for place in places]
        seen = Predictions(batch.ids, batch.targets, batch.meta, {}, decoded)
        return seen, work.records(seen)

    def _of(self, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        import numpy as np

        boxes = np.array([entry["bbox"] for entry in entries], np.float64).reshape(-1, 4)
        boxes[:, 2:] += boxes[:, :2]
        labels = [self._labels[entry["category_id"]] for entry in entries]
        detections: dict[str, Any] = {
            "boxes": boxes,
            "scores": np.array([entry["score"] for entry in entries], np.float64),
            "labels": np.array(labels, np.int64),
        }
        if "segmentation" in self._more:
            detections["masks"] = [entry["segmentation"] for entry in entries]
        if "keypoints" in self._more:
            points = np.array([entry["keypoints"] for entry in entries], np.float64)
            detections["keypoints"] = points.reshape(len(entries), self._points, 3)
        return detections

    def _numbered(self, entries: Sequence[Mapping[str, Any]], work: EvaluationWork) -> dict[int, int]:
        """The class number of each category that occurs."""
        numbers = data.numbers_of_ids(work.request.data, work.request.folder)
        used = sorted({entry["category_id"] for entry in entries})
        names = work.class_names()
        if not numbers:
            numbers = {
                number: number for number in range(len(names) if names else max(used, default=0) + 1)
            }
        unknown = [str(each) for each in used if each not in numbers]
        if unknown:
            raise self.wrong(
                f"the data have no category {listed(unknown)}: they have {len(numbers)}, from"
                f" {min(numbers)} to {max(numbers)}",
                "category_id is that of the data's annotations, else the class number from 0",
            )
        return numbers


def _entries(path: Path) -> list[Mapping[str, Any]]:
    """The entries of a file, each checked. Raises OSError and `InputError`."""

    def refused(constant: str) -> Any:
        raise ValueError(f"{constant} is no number of JSON")

    try:
        content = regular_files.read(path, regular_files.MOST_JSON_BYTES)
        entries = json.loads(content.decode("utf-8-sig"), parse_constant=refused)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"this is no JSON: {excerpt(str(error))}", place=str(path), hint=_WANTED
        ) from error
    if not isinstance(entries, list):
        raise InputError(f"found a {type(entries).__name__}", place=str(path), hint=_WANTED)
    for number, entry in enumerate(entries):
        if wrong := _fault(entry):
            raise InputError(wrong, place=f"{path}, entry {number}", hint=_WANTED)
    return entries


def _fault(entry: Any) -> str:
    """What is wrong with an entry; empty where nothing is."""
    if not isinstance(entry, dict):
        return f"found {excerpt(json.dumps(entry))}"
    missing = [key for key in ("image_id", "category_id", "bbox", "score") if key not in entry]
    if missing:
        return f"no {missing[0]}"
    if isinstance(entry["image_id"], bool) or not isinstance(entry["image_id"], int | str):
        return "image_id is neither a whole number nor text"
    if not _is_whole(entry["category_id"]):
        return "category_id is no whole number"
    box = entry["bbox"]
    if not isinstance(box, list) or len(box) != 4 or not all(map(_is_finite, box)):
        return "bbox is not four numbers"
    if box[2] < 0 or box[3] < 0:
        return f"bbox has the width {box[2]:g} and the height {box[3]:g}"
    if not _is_finite(entry["score"]):
        return "score is no number"
    if "segmentation" in entry:
        mask = entry["segmentation"]
        if not isinstance(mask, dict) or not {"size", "counts"} <= mask.keys():
            return "segmentation is no run-length encoding {size, counts}"
    points = entry.get("keypoints", [])
    if not isinstance(points, list) or len(points) % 3 or not all(map(_is_finite, points)):
        return "keypoints are not x, y and a score for each"
    return ""


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) < 1 << 53
