"""The parts of an output, by dimension and range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from optcli.settings.outputs import Kind

if TYPE_CHECKING:
    import numpy as np

Source = Literal["recipe", "metadata", "shape", "unknown"]


@dataclass(frozen=True)
class Part:
    """Some entries `start` to `stop` of the dimension `axis` of a sample (from 0, without the batch).

    `axis` None: the whole output.
    """

    kind: Kind
    axis: int | None = None
    start: int = 0
    stop: int | None = None

    def of(self, rows: np.ndarray) -> np.ndarray:
        """The part of rows `[samples, ...]`; nothing is copied."""
        if self.axis is None:
            return rows
        return rows[(slice(None),) * (self.axis + 1) + (slice(self.start, self.stop),)]


@dataclass(frozen=True)
class OutputMeaning:
    """What an output holds, and where that is known from; a `shape` is a guess."""

    output: str
    parts: tuple[Part, ...]
    source: Source
