"""delta1 of depth: the share of pixels within a factor of 1.25 of the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from optcli.accuracy.metrics._maps import Depth

if TYPE_CHECKING:
    from optcli.accuracy.metrics import Records


class Delta1(Depth):
    """max(prediction / target, target / prediction) < 1.25, of the valid pixels, averaged over images.

    Outputs and targets are those of `abs_rel`, which is a further figure.
    """

    figure: ClassVar[str] = "delta1"

    def chance(self, records: Records) -> float | None:
        """With an alignment the median of each target."""
        import numpy as np

        return None if self.align == "none" else float(np.nanmean(records["guess_delta1"]))
