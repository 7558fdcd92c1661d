"""For how long a batch keeps its worker: the curve's mean, or drawn from what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcli.measure.queueing.curve import Curve

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, eq=False)
class Durations:
    """`table` [largest batch, levels] in milliseconds: row B - 1 holds equally likely times of a batch.

    One level means that nothing is drawn.
    """

    table: np.ndarray
    seed: int

    @classmethod
    def of(cls, curve: Curve, largest: int, seed: int) -> Durations:
        """Batches of 1 to `largest`."""
        import numpy as np

        table = curve.quantiles_ms(largest)
        if table is None:
            table = np.array(curve.times_ms(largest))[:, None]
        return cls(table, seed)

    @property
    def is_fixed(self) -> bool:
        """Whether batches of one size all take the same time."""
        return bool(self.table.shape[1] == 1)

    def levels(self, count: int) -> np.ndarray:
        """The level of each of up to `count` batches [count], uniform; the same in every call."""
        import numpy as np

        if self.is_fixed:
            return np.zeros(count, dtype=np.int64)
        return np.random.default_rng([self.seed, 4]).integers(self.table.shape[1], size=count)
