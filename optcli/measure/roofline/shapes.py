"""What is computed to find the peaks: matrix products and convolutions that libraries do best.

They last a few milliseconds at most, so that on a machine that is not quiet some are left alone.
"""

from __future__ import annotations

from dataclasses import dataclass

MATRICES = (512, 1024)


@dataclass(frozen=True)
class ConvolutionShape:
    """A 3 x 3 convolution that keeps its size, with as many channels in as out."""

    batch: int
    channels: int
    side: int

    @property
    def operations(self) -> int:
        """Two for each multiply-accumulate of the direct algorithm."""
        return 2 * self.batch * self.side**2 * self.channels**2 * 9

    @property
    def size(self) -> str:
        """For a report."""
        return f"{self.batch} x {self.channels} x {self.side} x {self.side}, 3 x 3"


CONVOLUTIONS = (ConvolutionShape(2, 64, 56), ConvolutionShape(4, 256, 14))


def product_operations(side: int) -> int:
    """Operations of a product of two square matrices."""
    return 2 * side**3


def product_size(side: int) -> str:
    """For a report."""
    return f"{side} x {side} x {side}"
