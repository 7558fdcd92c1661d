"""For how long a batch keeps its worker: the curve's mean, or drawn from what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

from optcli.queueing.curve import Curve


@dataclass(frozen=True, eq=False)
class Durations:
    """`rows[B - 1]` are equally likely milliseconds of a batch of B; `levels` chooses among them."""

    rows: list[list[float]]
    seed: int

    @classmethod
    def of(cls, curve: Curve, largest: int, occupied_ms: float, seed: int) -> Durations:
        """Batches of 1 to `largest`, each `occupied_ms` longer than the model takes."""
        table = curve.quantiles_ms(largest)
        if table is None:
            return cls([[time + occupied_ms] for time in curve.times_ms(largest)], seed)
        return cls((table + occupied_ms).tolist(), seed)

    def levels(self, count: int) -> Iterator[int]:
        """Places in a row for up to `count` batches, uniform; the same in every call."""
        import numpy as np

        if len(self.rows[0]) == 1:
            return repeat(0)
        drawn = np.random.default_rng([self.seed, 4]).integers(len(self.rows[0]), size=count)
        return iter(drawn.tolist())
