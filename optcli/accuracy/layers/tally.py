"""Sums over samples from which signal to noise, cosine and the share of clipped values follow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass
class Tally:
    """Two tensors compared piece by piece, by `add`.

    Sums of squares: `signal` of the exact values, `power` of the approximate ones, `noise` of their
    differences. `product` is the sum of products of the two.
    """

    signal: float = 0.0
    power: float = 0.0
    product: float = 0.0
    noise: float = 0.0
    finite: bool = True

    def add(self, exact: np.ndarray, approximate: np.ndarray) -> None:
        """Take another piece: arrays of one shape."""
        import numpy as np

        a, b = exact.astype(np.float64).ravel(), approximate.astype(np.float64).ravel()
        if not np.isfinite(b).all():
            self.finite = False
            return
        self.signal += float(a @ a)
        self.power += float(b @ b)
        self.product += float(a @ b)
        self.noise += float(((a - b) ** 2).sum())

    def figures(self) -> dict[str, Any]:
        """What a `LayerError` says of it."""
        own = {"own_db": self.sqnr_db, "cosine": self.cosine}
        return {**own, "factor": self.factor, "finite": self.finite}

    @property
    def sqnr_db(self) -> float | None:
        """10 log10(signal power / noise power); None where the two are equal, or not finite."""
        if not self.finite or self.noise == 0 or not math.isfinite(self.noise):
            return None
        return 10 * math.log10(max(self.signal, 1e-300) / self.noise)

    @property
    def factor(self) -> float | None:
        """The factor that brings the exact values nearest to the others; None without signal."""
        return self.product / self.signal if self.finite and self.signal > 0 else None

    @property
    def cosine(self) -> float | None:
        """Of the angle between them; None where one is all zeros."""
        length = math.sqrt(self.signal) * math.sqrt(self.power)
        return min(1.0, self.product / length) if self.finite and length > 0 else None


def worst_channel(exact: np.ndarray, approximate: np.ndarray, axis: int) -> tuple[int, float] | None:
    """The channel with the lowest signal to noise ratio, and that ratio in decibel."""
    import numpy as np

    a = np.moveaxis(exact, axis, 0).reshape(exact.shape[axis], -1).astype(np.float64)
    b = np.moveaxis(approximate, axis, 0).reshape(approximate.shape[axis], -1).astype(np.float64)
    noise, signal = ((a - b) ** 2).sum(axis=1), (a**2).sum(axis=1)
    # A channel of zeros has no signal that noise could drown.
    ratio = np.full(len(a), np.inf)
    noisy = (noise > 0) & (signal > 0)
    ratio[noisy] = 10 * np.log10(signal[noisy] / noise[noisy])
    worst = int(ratio.argmin())
    return (worst, float(ratio[worst])) if np.isfinite(ratio[worst]) else None
