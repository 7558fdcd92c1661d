"""What metrics of maps share: outputs of their target's size, and depth pixel by pixel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from optcli.accuracy.metrics import Metric, Predictions
from optcli.errors import InputError
from optcli.settings.outputs import Kind

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records


def resized(maps: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Maps `[channels, height, width]` brought to another height and width, bilinearly, float32."""
    height, width = shape
    return _along(_along(maps.astype("float32"), 1, height), 2, width)


def _along(maps: np.ndarray, axis: int, size: int) -> np.ndarray:
    """Maps with another size along an axis: between the centres of two pixels, linearly."""
    import numpy as np

    last = maps.shape[axis] - 1
    centres = (np.arange(size) + 0.5) * (maps.shape[axis] / size) - 0.5
    lower = np.clip(centres, 0, last).astype(int)
    upper = np.minimum(lower + 1, last)
    shares = np.clip(centres - lower, 0, 1).astype("float32")
    scaled: np.ndarray = maps.take(upper, axis)
    scaled -= maps.take(lower, axis)
    scaled *= shares[:, None] if axis == 1 else shares
    scaled += maps.take(lower, axis)
    return scaled


_RATIO = 1.25
_LEAST = 1e-6


class Depth(Metric):
    """Records hold `abs_rel` and `delta1` of each image, NaN where its target has no valid pixel.

    `guess_abs_rel` and `guess_delta1` are those of whoever knows an image's median depth alone.
    """

    reads: ClassVar[Kind | None] = "depth"
    figure: ClassVar[str]

    align: Literal["none", "median", "scale_and_shift"] = Field(
        "none",
        description="how a prediction is brought to the target's scale, image by image: `median`: by"
        " the ratio of medians; `scale_and_shift`: by least squares, as MiDaS is judged",
    )
    predicts: Literal["depth", "inverse_depth"] = Field(
        "depth", description="what the model gives; inverse depth is aligned as such, then inverted"
    )
    min_depth: float = Field(0.0, ge=0, description="target pixels of this depth or less do not count")
    max_depth: float | None = Field(
        None, gt=0, description="target pixels of a larger depth do not count, predictions end here"
    )
    target_scale: float = Field(
        1.0, gt=0, description="factor of the targets' values: 0.001 for millimetres in 16 bits"
    )
    resize: bool = Field(False, description="predictions are brought to the target's size, bilinearly")

    def records(self, seen: Predictions) -> Records:
        import numpy as np

        outputs = seen.scores()
        rows = np.full((len(seen.ids), 4), np.nan)
        for row, (target, name) in enumerate(zip(seen.targets, seen.ids, strict=True)):
            truth = self._truth(target, name)
            depth = self._map(outputs[row], truth.shape, name)
            valid = np.isfinite(truth) & (truth > self.min_depth)
            if self.max_depth is not None:
                valid &= truth <= self.max_depth
            if valid.any():
                rows[row] = self._figures(depth[valid], truth[valid])
        names = ("abs_rel", "delta1", "guess_abs_rel", "guess_delta1")
        return {name: rows[:, column] for column, name in enumerate(names)}

    def check(self, target: Any, place: str, seen: Predictions) -> None:
        self._truth(target, place)

    def value(self, records: Records) -> float:
        import numpy as np

        counted = np.isfinite(records["guess_abs_rel"])
        if not counted.any():
            raise InputError(
                f"{self.figure} has no pixel to count in {len(counted)} targets",
                place="accuracy.options",
                hint="depth above min_depth counts; target_scale turns stored values into depth",
            )
        return float(records[self.figure][counted].mean())

    def resampled(self, records: Records, counts: np.ndarray) -> np.ndarray:
        import numpy as np

        counted = np.isfinite(records["guess_abs_rel"])
        sums = counts @ np.where(counted, records[self.figure], 0.0)
        means: np.ndarray = sums / (counts @ counted.astype(float))
        return means

    def figures(self, records: Records) -> dict[str, float]:
        import numpy as np

        return {name: float(np.nanmean(records[name])) for name in ("abs_rel", "delta1")}

    def not_numbers(self, records: Records) -> np.ndarray:
        import numpy as np

        positions: np.ndarray = np.flatnonzero(
            np.isfinite(records["guess_abs_rel"]) & ~np.isfinite(records[self.figure])
        )
        return positions

    def _figures(self, depth: np.ndarray, truth: np.ndarray) -> tuple[float, ...]:
        """Of the valid pixels of one image: AbsRel, delta1, and those of its median depth."""
        import numpy as np

        aligned = self._aligned(depth, truth)
        guess = np.full_like(truth, np.median(truth))
        return (*_compared(aligned, truth), *_compared(guess, truth))

    def _aligned(self, depth: np.ndarray, truth: np.ndarray) -> np.ndarray:
        import numpy as np

        inverse = self.predicts == "inverse_depth"
        wanted = 1 / truth if inverse else truth
        if self.align == "median":
            middle = float(np.median(depth))
            depth = depth * (float(np.median(wanted)) / middle if middle else 0.0)
        elif self.align == "scale_and_shift":
            centred = depth - depth.mean()
            spread = float(centred @ centred)
            scale = float(centred @ wanted) / spread if spread > 0 else 0.0
            depth = centred * scale + wanted.mean()
        if inverse:
            # What is not in front of the camera is as far away as anything that counts.
            farthest = self.max_depth or float(truth.max())
            depth = 1 / np.where(depth < 1 / farthest, 1 / farthest, depth)
        if self.max_depth is not None:
            depth = np.minimum(depth, self.max_depth)
        return np.maximum(depth, self.min_depth) if self.min_depth > 0 else depth

    def _map(self, output: np.ndarray, shape: tuple[int, ...], name: str) -> np.ndarray:
        """The prediction of one image, float64 `[height, width]`."""
        import numpy as np

        if output.ndim == 3 and 1 in (output.shape[0], output.shape[2]):
            output = output[0] if output.shape[0] == 1 else output[:, :, 0]
        if output.ndim == 2 and output.shape != shape and self.resize:
            output = resized(output[None], shape)[0]
        if output.shape != shape:
            raise InputError(
                f"the output is {' x '.join(map(str, output.shape))}, the target"
                f" {' x '.join(map(str, shape))}",
                place=name,
                hint="accuracy: {options: {resize: true}} brings a map to the target's size",
            )
        return output.astype(np.float64)

    def _truth(self, target: Any, name: str) -> np.ndarray:
        import numpy as np

        truth = np.asarray(target)
        if truth.ndim == 3 and 1 in (truth.shape[0], truth.shape[2]):
            truth = truth[0] if truth.shape[0] == 1 else truth[:, :, 0]
        if truth.ndim != 2 or truth.dtype.kind not in "iuf":
            raise InputError(
                f"{self.figure} wants a depth for every pixel [height, width], found {truth.dtype}"
                f" {list(truth.shape)}",
                place=name,
                hint="give the data one map of depth a sample, 0 where it is not known",
            )
        return truth.astype(np.float64) * self.target_scale


def _compared(depth: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    """AbsRel: mean |d - t| / t; and the share of pixels where max(d / t, t / d) is below 1.25.

    Eigen et al., Depth Map Prediction from a Single Image (2014).
    """
    import numpy as np

    near = np.maximum(depth / truth, truth / np.maximum(depth, _LEAST)) < _RATIO
    return float((np.abs(depth - truth) / truth).mean()), float((near & (depth > 0)).mean())
