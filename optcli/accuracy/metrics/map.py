"""Mean average precision of detection, COCO's: over IoU 0.50 to 0.95 and over classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from optcli.accuracy.metrics import ByClass, Metric, Predictions
from optcli.errors import InputError

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records
    from optcli.accuracy.metrics._coco import Kind

_WANTED = "wanted {boxes, labels} as data coco: gives them, boxes as left, top, right, bottom"
# Boxes in other places than the objects' hardly match any; a detector of so little finds nothing.
_CHANCE = 0.01
_CELLS = 4_000_000  # of one table of resamples by detections


class Map(Metric):
    """COCO's mAP of boxes: all areas, at most 100 detections of a class in an image.

    Which detection matches which box is decided image by image, by pycocotools; how classes and
    images are summed up is COCO's too, so that the value is pycocotools' own. Records hold every
    detection's class, score, and at which of the ten IoU thresholds it matched (bits).
    """

    low: ClassVar[float | None] = 0.1

    def records(self, seen: Predictions) -> Records:
        import numpy as np

        from optcli.accuracy.metrics import _coco

        if seen.decoded is None:
            raise InputError(
                f"{self._name} needs detections, and the recipe does not say how to decode the outputs",
                place="postprocess",
                hint="postprocess: {yolox: {}}, {boxes: {...}}, {rows: {}} or python:FILE.py:CALLABLE",
            )
        truths = [self.truth(target, name) for target, name in zip(seen.targets, seen.ids, strict=True)]
        sizes = [self.size(truth, meta) for truth, meta in zip(truths, seen.meta, strict=True)]
        detections = [
            self.detections(decoded, name, truth, size)
            for decoded, name, truth, size in zip(seen.decoded, seen.ids, truths, sizes, strict=True)
        ]
        numbers = [meta.get("image_id", -1) for meta in seen.meta]
        sound = all(isinstance(n, int | np.integer) for n in numbers)
        return {
            "image": np.array(numbers if sound else [-1] * len(numbers), np.int64),
            **_coco.matched(truths, detections, self.kind(truths), sizes),
        }

    @property
    def _name(self) -> str:
        return type(self).__module__.rpartition(".")[2]

    def kind(self, truths: Sequence[Mapping[str, Any]]) -> Kind:
        """What of the objects is compared."""
        from optcli.accuracy.metrics._coco import Kind

        return Kind("bbox")

    def truth(self, target: Any, place: str) -> dict[str, Any]:
        """The objects of an image: boxes, labels, crowd, and `fields` of their annotations."""
        return truth_of(target, place)

    def size(self, truth: Mapping[str, Any], meta: Mapping[str, Any]) -> tuple[int, int]:
        """Height and width of an image."""
        height, width = meta.get("original_size", (0, 0))
        return int(height), int(width)

    def detections(
        self, decoded: Any, place: str, truth: Mapping[str, Any], size: tuple[int, int]
    ) -> dict[str, Any]:
        """The detections of an image in the form of its objects, with scores."""
        from optcli.accuracy.metrics import _coco

        return _coco.detections_of(decoded, place)

    def check(self, target: Any, place: str, seen: Predictions) -> None:
        self.truth(target, place)

    def value(self, records: Records) -> float:
        import numpy as np

        if not len(records["truth_class"]):
            raise InputError(
                f"{self._name} has no object to find in {len(records['image'])} images",
                place="data.evaluation",
                hint="look at the annotations: crowds do not count",
            )
        return float(np.mean(self._by_threshold(records)))

    def chance(self, records: Records) -> float | None:
        return _CHANCE

    def largest_change(self, records: Records) -> float | None:
        """Where a share w of the boxes found is lost to wrong ones: 2 · mAP · w at most.

        Precision and recall both fall by that share, AP to (1 - w)² · AP. Taken is that the images
        which come out wrong show the classes as often as those seen do.
        """
        return 2 * self.value(records)

    def by_class(self, records: Records) -> ByClass | None:
        import numpy as np

        boxes, tables = _by_class(records)
        every = np.ones((1, len(records["image"])))
        values = [
            float(_class_precisions(tables[label], every, np.array([len(samples)])).mean())
            if label in tables
            else 0.0
            for label, samples in boxes.items()
        ]
        images = [len(np.unique(samples)) for samples in boxes.values()]
        return ByClass(np.array([*boxes]), np.array(images), np.array(values))

    def figures(self, records: Records) -> dict[str, float]:
        every = self._by_threshold(records)
        return {"map50": float(every[0]), "map75": float(every[5])}

    def resampled(self, records: Records, counts: np.ndarray) -> np.ndarray:
        means: np.ndarray = _precisions(records, counts.astype(float)).mean(axis=1)
        return means

    def _by_threshold(self, records: Records) -> np.ndarray:
        import numpy as np

        precisions: np.ndarray = _precisions(records, np.ones((1, len(records["image"]))))[0]
        return precisions


def truth_of(target: Any, place: str) -> dict[str, Any]:
    """The boxes of one image, as the data gives them. Raises `InputError`."""
    import numpy as np

    if not isinstance(target, dict) or not {"boxes", "labels"} <= target.keys():
        raise InputError(f"map found {type(target).__name__} as a target", place=place, hint=_WANTED)
    boxes = np.asarray(target["boxes"], np.float64).reshape(-1, 4)
    labels = np.asarray(target["labels"], np.int64).reshape(-1)
    if len(labels) != len(boxes):
        raise InputError(f"{len(boxes)} boxes, {len(labels)} labels", place=place, hint=_WANTED)
    if not np.isfinite(boxes).all() or (boxes[:, 2:] < boxes[:, :2]).any():
        raise InputError("a box ends before it begins, or is not finite", place=place, hint=_WANTED)
    crowd = np.asarray(target.get("crowd", np.zeros(len(labels))), bool).reshape(-1)
    return {"boxes": boxes, "labels": labels, "crowd": crowd}


def _precisions(records: Records, weights: np.ndarray) -> np.ndarray:
    """Average precision at each IoU threshold, mean over classes, of resamples: `[resamples, 10]`.

    A class without a box in a resample is left out there, as COCO leaves it out.
    """
    import numpy as np

    boxes, tables = _by_class(records)
    total, present = np.zeros((len(weights), 10)), np.zeros((len(weights), 1))
    for label, samples in boxes.items():
        table = tables.get(label)
        size = max(1, _CELLS // max(1, len(table[0]) if table else 1))
        for start in range(0, len(weights), size):
            rows = slice(start, start + size)
            positives = weights[rows][:, samples].sum(axis=1)
            there = positives > 0
            present[rows, 0] += there
            if table is not None and there.any():
                total[rows] += _class_precisions(table, weights[rows], positives)
    return total / np.maximum(1, present)


def _by_class(records: Records) -> tuple[dict[int, Any], dict[int, tuple[Any, Any, Any]]]:
    """Samples of the boxes by class; and samples, matched and ignored bits of its detections by score.

    Detections of equal score stand in the order of images' numbers, as in pycocotools.
    """
    import numpy as np

    image = records["image"]
    place = np.arange(len(image)) if (image < 0).any() else np.argsort(np.argsort(image, kind="stable"))
    order = np.lexsort(
        (
            np.arange(len(records["detection_sample"])),
            place[records["detection_sample"]],
            -records["detection_score"],
            records["detection_class"],
        )
    )
    labels = records["detection_class"][order]
    tables = {}
    starts = np.flatnonzero(np.diff(labels)) + 1
    for part in np.split(order, starts):
        if len(part):
            tables[int(records["detection_class"][part[0]])] = (
                records["detection_sample"][part],
                records["detection_matched"][part],
                records["detection_ignored"][part],
            )
    truth = records["truth_class"]
    boxes = {int(k): records["truth_sample"][truth == k] for k in np.unique(truth)}
    return boxes, tables


def _class_precisions(
    table: tuple[Any, Any, Any], weights: np.ndarray, positives: np.ndarray
) -> np.ndarray:
    """Average precision of one class, `[resamples, 10]`; 0 where a resample has no box of it.

    Precision at 101 recalls, each the best from there on (pycocotools' accumulate). An image that
    is in a resample twice counts twice; only true positives raise recall, so only they are looked at.
    """
    import numpy as np

    samples, matched, ignored = table
    every = weights[:, samples]
    seen_all = np.cumsum(every, axis=1)
    recalls = np.linspace(0.0, 1.0, 101)
    precisions = np.zeros((len(weights), 10))
    for threshold in range(10):
        left_out = (ignored >> threshold) & 1 > 0
        hits = np.flatnonzero(((matched >> threshold) & 1 > 0) & ~left_out)
        if not len(hits):
            continue
        seen = np.cumsum(every * ~left_out, axis=1) if left_out.any() else seen_all
        right = np.cumsum(every[:, hits], axis=1)
        precision = right / (seen[:, hits] + np.spacing(1))
        envelope = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
        recall = right / np.maximum(positives, 1)[:, None]
        reached = np.searchsorted(recalls, recall, side="right")
        steps = np.diff(reached, axis=1, prepend=0)
        precisions[:, threshold] = (envelope * steps).sum(axis=1) / len(recalls)
    return np.where(positives[:, None] > 0, precisions, 0.0)
