"""Batches for a file that has one batch size: computed piece by piece, and joined again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcli.errors import RunnerError
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Pieces:
    """`feeds` has the arrays of each piece, in the order of the inputs.

    `rows` is the number of samples where they were divided, and `size` that of a piece.
    """

    feeds: list[list[np.ndarray]]
    rows: int | None = None
    size: int = 0

    @classmethod
    def of(
        cls,
        arrays: list[np.ndarray],
        inputs: Sequence[TensorSpec],
        shapes: Sequence[Sequence[int | None]],
    ) -> Pieces:
        """Divide arrays by the batch size in `shapes`, the file's; None in it varies.

        The last piece is filled up with its last sample.
        """
        import numpy as np

        batched = [spec.batch_symbol is not None for spec in inputs]
        sizes = [shape[0] for shape, varies in zip(shapes, batched, strict=True) if varies]
        rows = [len(array) for array, varies in zip(arrays, batched, strict=True) if varies]
        if not sizes or sizes[0] is None or rows[0] == sizes[0]:
            return cls([arrays])
        feeds = []
        for start in range(0, rows[0], sizes[0]):
            places = np.arange(start, start + sizes[0]).clip(max=rows[0] - 1)
            parts = zip(arrays, batched, strict=True)
            feeds.append([each[places] if varies else each for each, varies in parts])
        return cls(feeds, rows[0], sizes[0])

    def joined(self, name: str, parts: Sequence[np.ndarray]) -> np.ndarray:
        """An output of all pieces. Raises `RunnerError` where it has no row for each sample."""
        import numpy as np

        if self.rows is None:
            return parts[0]
        if {len(part) if part.ndim else 0 for part in parts} != {self.size}:
            raise RunnerError(
                f"the file computes {self.size} samples at once, and its output {name!r} has no row "
                "for each: batches cannot be computed piece by piece",
                hint="write the file's batch size under the recipe's `inputs`",
            )
        return np.concatenate(parts)[: self.rows]
