"""Top-1: the share of samples whose largest score is the label's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli.accuracy.metrics._classes import Classification

if TYPE_CHECKING:
    import numpy as np

    from optcli.accuracy.metrics import Records


class Top1(Classification):
    """The first of the largest scores `[batch, classes]` is the label's."""

    def right(self, records: Records) -> np.ndarray:
        right: np.ndarray = records["rank"] < 1
        return right
