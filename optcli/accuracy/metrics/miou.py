"""Mean intersection over union of segmentation, the average over classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from optcli.accuracy.metrics import ByClass, Metric, Predictions
from optcli.accuracy.metrics._maps import resized
from optcli.errors import InputError
from optcli.settings.outputs import Kind

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records

_PIXELS = 64  # of an image, by which another order of the classes is recognized
PIXELS = ("pixel_sample", "pixel_label", "pixel_class")
"""What is kept of some pixels: their image, their class, and the one that was predicted."""


class Miou(Metric):
    """Intersection over union of each class over all pixels of the set, averaged.

    Classes that neither targets nor predictions have are left out, and so is the class `ignore_index`,
    also where the model predicts it; both as in torchmetrics'
    `MulticlassJaccardIndex(average="macro")`. A pixel of another class for which the model predicts
    `ignore_index` counts as an error of that other class. Reads scores `[batch, classes, height,
    width]` or class numbers `[batch, height, width]`; targets are class numbers `[height, width]`.
    """

    reads: ClassVar[Kind | None] = "class_map"
    low: ClassVar[float | None] = 0.25

    ignore_index: int | None = Field(
        255, description="target pixels of this value do not count, and no class of it"
    )
    classes: int | None = Field(
        None, ge=2, description="how many there are; needed where the model gives class numbers"
    )
    resize: bool = Field(
        False,
        description="scores are brought to the target's size, bilinearly, before the largest counts",
    )

    def records(self, seen: Predictions) -> Records:
        import numpy as np

        outputs = seen.scores()
        count = self._count(outputs)
        areas = np.empty((len(seen.ids), 3, count), np.int64)
        pixels: list[np.ndarray] = []
        for row, (target, name) in enumerate(zip(seen.targets, seen.ids, strict=True)):
            truth = self._truth(target, count, name)
            labels = self._labels(outputs[row], truth.shape, name)
            areas[row] = self._areas(labels, truth, count)
            chosen = np.random.default_rng(row).choice(
                truth.size, min(truth.size, _PIXELS), replace=False
            )
            counted = np.stack(
                [np.full(len(chosen), row), truth.ravel()[chosen], labels.ravel()[chosen]]
            )
            pixels.append(counted[:, counted[1] != self.ignore_index])
        every = np.concatenate(pixels, axis=1).astype(np.int64)
        return {"areas": areas, **dict(zip(PIXELS, every, strict=True))}

    def check(self, target: Any, place: str, seen: Predictions) -> None:
        self._truth(target, self._count(seen.scores()), place)

    def value(self, records: Records) -> float:
        import numpy as np

        mean = float(self._mean_over_classes(records["areas"].sum(axis=0)[None].astype(np.float64))[0])
        if not np.isfinite(mean):
            ignored = (
                "" if self.ignore_index is None else f": all are {self.ignore_index}, the ignored value"
            )
            raise InputError(
                f"miou has no pixel to count in {len(records['areas'])} targets{ignored}",
                place="accuracy.options",
                hint="accuracy: {options: {ignore_index: N}} names the value that does not count",
            )
        return mean

    def resampled(self, records: Records, counts: np.ndarray) -> np.ndarray:
        areas = records["areas"]
        sums = counts @ areas.reshape(len(areas), -1).astype(float)
        return self._mean_over_classes(sums.reshape(len(counts), *areas.shape[1:]))

    def chance(self, records: Records) -> float | None:
        """The better of two who look at no image.

        One says the largest class everywhere: the largest share of pixels over the number of classes.
        The other draws classes by their shares p: p / (2 - p) for each class.
        """
        import numpy as np

        reference = self._counted(records["areas"].sum(axis=0)[2].astype(np.float64))
        shares = reference[reference > 0] / max(1.0, reference.sum())
        if not len(shares):
            return None
        return float(max(shares.max() / len(shares), np.mean(shares / (2 - shares))))

    def largest_change(self, records: Records) -> float | None:
        """Where a share w of a class's right pixels is lost to others: IoU · (1 + IoU) · w at most.

        The union grows by what is lost. Taken is that the images which come out wrong show the classes
        as often as those seen do: a class that hardly an image shows could be lost altogether.
        """
        import numpy as np

        ious = self._ious(records["areas"].sum(axis=0)[None].astype(np.float64))[0]
        return float(np.nanmean(ious * (1 + ious)))

    def by_class(self, records: Records) -> ByClass | None:
        import numpy as np

        areas = records["areas"]
        ious = self._ious(areas.sum(axis=0)[None].astype(np.float64))[0]
        there = np.flatnonzero(~np.isnan(ious))
        return ByClass(there, (areas[:, 2] > 0).sum(axis=0)[there], ious[there])

    def _ious(self, sums: np.ndarray) -> np.ndarray:
        """`[n, 3, classes]` areas to `[n, classes]` intersections over unions; NaN without pixels."""
        import numpy as np

        shared, candidate, reference = sums[:, 0], sums[:, 1], sums[:, 2]
        union = self._counted(candidate + reference - shared)
        out = np.full(union.shape, np.nan)
        ious: np.ndarray = np.divide(shared, union, out=out, where=union > 0)
        return ious

    def _counted(self, areas: np.ndarray) -> np.ndarray:
        """`[..., classes]` areas, with none of the class that does not count."""
        import numpy as np

        ignored = self.ignore_index
        if ignored is None or not 0 <= ignored < areas.shape[-1]:
            return areas
        return np.where(np.arange(areas.shape[-1]) == ignored, 0, areas)

    def _mean_over_classes(self, sums: np.ndarray) -> np.ndarray:
        """`[n, 3, classes]` areas to `[n]` means over the classes that are there; NaN where none is."""
        import numpy as np

        ious = self._ious(sums)
        there = ~np.isnan(ious)
        with np.errstate(invalid="ignore"):
            means: np.ndarray = np.where(there, ious, 0.0).sum(axis=1) / there.sum(axis=1)
        return means

    def figures(self, records: Records) -> dict[str, float]:
        shared, _, reference = records["areas"].sum(axis=0)
        return {"pixel_accuracy": float(shared.sum() / max(1, reference.sum()))}

    def _count(self, outputs: np.ndarray) -> int:
        if outputs.ndim == 4 and outputs.shape[1] > 1:
            return int(outputs.shape[1])
        if self.classes is None:
            shape = " x ".join(str(size) for size in outputs.shape)
            raise InputError(
                f"miou wants scores of shape batch x classes x height x width, found {shape}",
                place="accuracy.output",
                hint="name the output, or accuracy: {options: {classes: N}} for class numbers",
            )
        return self.classes

    def _labels(self, output: np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
        """Class numbers `[height, width]` of one output."""
        if output.ndim == 3 and output.shape[0] == 1:
            output = output[0]
        if output.shape[-2:] != shape and self.resize and output.ndim == 3:
            output = resized(output, shape)
        if output.shape[-2:] != shape:
            raise InputError(
                f"the output is {' x '.join(map(str, output.shape[-2:]))},"
                f" the target {' x '.join(map(str, shape))}",
                place=name,
                hint="accuracy: {options: {resize: true}} brings the scores to the target's size",
            )
        labels: np.ndarray = output.argmax(axis=0) if output.ndim == 3 else output.astype(int)
        return labels

    def _truth(self, target: Any, count: int, name: str) -> np.ndarray:
        import numpy as np

        truth = np.asarray(target)
        if truth.ndim == 3 and 1 in (truth.shape[0], truth.shape[2]):
            truth = truth[0] if truth.shape[0] == 1 else truth[:, :, 0]
        if truth.ndim != 2 or truth.dtype.kind not in "iub":
            coloured = truth.ndim == 3 and truth.shape[2] == 3
            raise InputError(
                f"miou wants class numbers [height, width], found {truth.dtype} {list(truth.shape)}",
                place=name,
                hint="labels: {colours: [[0, 0, 0], [128, 0, 0]]} lists the classes' colours in order"
                if coloured
                else "give the data whole numbers from 0 for every pixel",
            )
        counted = truth if self.ignore_index is None else truth[truth != self.ignore_index]
        wrong = counted[(counted < 0) | (counted >= count)]
        if wrong.size:
            raise InputError(
                f"label {wrong[0]} is out of range: the model has {count} classes, 0 to {count - 1}",
                place=name,
                hint="accuracy: {options: {ignore_index: N}} names a value that does not count",
            )
        return truth.astype(np.int64)

    def _areas(self, labels: np.ndarray, truth: np.ndarray, count: int) -> np.ndarray:
        """Pixels that are right, predicted and true, by class: `[3, classes]`."""
        import numpy as np

        valid = np.ones(truth.shape, bool) if self.ignore_index is None else truth != self.ignore_index
        candidate, reference = labels[valid], truth[valid]
        inside = (candidate >= 0) & (candidate < count)
        kinds = (candidate[candidate == reference], candidate[inside], reference)
        return np.stack([np.bincount(kind, minlength=count) for kind in kinds])
