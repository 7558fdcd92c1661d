"""AbsRel of depth: the mean relative error. Lower is better."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from optcli.accuracy.metrics._maps import Depth

if TYPE_CHECKING:
    from optcli.accuracy.metrics import Records


class AbsRel(Depth):
    """|prediction - target| / target, averaged over the valid pixels of an image, then over images.

    Reads a map `[batch, 1, height, width]` or `[batch, height, width]`; targets are depth `[height,
    width]`, where 0 or NaN is not valid. Resampling draws images. delta1 is a further figure.
    """

    figure: ClassVar[str] = "abs_rel"

    def better(self) -> Literal["higher", "lower"]:
        return "lower"

    def chance(self, records: Records) -> float | None:
        """A depth of 0 everywhere has an error of 1; with an alignment, the median of each target."""
        import numpy as np

        return 1.0 if self.align == "none" else float(np.nanmean(records["guess_abs_rel"]))

    def largest_change(self, records: Records) -> float | None:
        """Taken is that no image comes out worse than the worst one seen, or than a depth of 0."""
        import numpy as np

        return max(1.0, float(np.nanmax(records["abs_rel"])))
