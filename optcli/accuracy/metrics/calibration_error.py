"""Expected calibration error: how far confidence lies from being right. Lower is better."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from optcli.accuracy.metrics._classes import Classification, calibration_error

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records


class CalibrationError(Classification):
    """Over 15 equal bins of the largest softmax probability."""

    reads_scores: ClassVar[bool] = True
    low: ClassVar[float | None] = None

    def better(self) -> Literal["higher", "lower"]:
        return "lower"

    def chance(self, records: Records) -> float | None:
        return None  # of errors; whether the classes are guessed top1 tells

    def largest_change(self, records: Records) -> float | None:
        return 2.0  # a sample leaves one bin and enters another, a gap of at most 1 each

    def value(self, records: Records) -> float:
        return float(calibration_error(records))

    def resampled(self, records: Records, counts: np.ndarray) -> np.ndarray:
        errors: np.ndarray = calibration_error(records, counts)
        return errors
