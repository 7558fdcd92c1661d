"""Top-5: the share of samples whose label is among the five largest scores."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from optcli.accuracy.metrics._classes import Classification

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records


class Top5(Classification):
    """The label's score is among the five largest of `[batch, classes]`; of equal ones the first."""

    guesses: ClassVar[int] = 5

    def right(self, records: Records) -> np.ndarray:
        right: np.ndarray = records["rank"] < 5
        return right
