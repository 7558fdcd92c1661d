"""The curve t(B): how long a batch of B takes, from measured samples, a table, a line or a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

# A table may fall by this share from one batch size to the next; what falls more is an error.
FALL_TOLERANCE = 0.05


@dataclass(frozen=True, eq=False)
class Curve:
    """Milliseconds of a batch at every batch size, and how they are known.

    `points` are (batch size, mean milliseconds), ascending, never falling; empty for a line.
    `fixed_ms` and `per_image_ms` are the line t(B) = fixed + B * per_image, fitted by least squares
    with both at least zero; None where there is one point only. `largest_residual` is the largest
    distance of a point from it, as a share of the point. `flattened` names batch sizes whose time was
    moved because the table fell within `FALL_TOLERANCE`. `samples_ms` holds the measured times of
    single batches by batch size, where there are some: a simulation draws from them.
    """

    points: tuple[tuple[int, float], ...]
    fixed_ms: float | None
    per_image_ms: float | None
    largest_residual: float = 0.0
    flattened: tuple[int, ...] = ()
    samples_ms: Mapping[int, np.ndarray] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> Curve:
        """A curve from `1:25ms,2:27ms,8:48ms`, `6ms+4ms*b` or `12ms` (batch size 1 only).

        Units are `us`, `ms` and `s`. Raises `InputError` for anything else.
        """
        raise NotImplementedError

    @classmethod
    def from_points(cls, points: Mapping[int, float]) -> Curve:
        """A curve from milliseconds by batch size. Raises `InputError` where they cannot be one."""
        raise NotImplementedError

    @classmethod
    def from_line(cls, fixed_ms: float, per_image_ms: float) -> Curve:
        """The line fixed + B * per_image, in milliseconds, known at every batch size."""
        raise NotImplementedError

    @classmethod
    def from_samples(cls, samples_ms: Mapping[int, ArrayLike]) -> Curve:
        """A curve from times of single batches, by batch size, in milliseconds; each array [calls]."""
        raise NotImplementedError

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes that are known; empty for a line."""
        raise NotImplementedError

    def time_ms(self, batch_size: int) -> float:
        """Mean milliseconds of a batch: a point, between two points, or beyond them by the line.

        Raises `InputError` where the curve is one point and another batch size is asked for.
        """
        raise NotImplementedError

    def times_ms(self, largest: int) -> list[float]:
        """Mean milliseconds of batches of 1 to `largest`."""
        raise NotImplementedError

    def per_s(self, batch_size: int) -> float:
        """Inferences a second of one worker that always runs full batches: the capacity mu_B."""
        raise NotImplementedError

    def is_extrapolated(self, batch_size: int) -> bool:
        """Whether a batch size lies outside the known ones; never for a line."""
        raise NotImplementedError

    def extrapolated(self, largest: int) -> tuple[int, ...]:
        """The batch sizes from 1 to `largest` that lie outside the known ones."""
        raise NotImplementedError

    def largest_within(self, limit_ms: float, sizes: Sequence[int]) -> int | None:
        """The largest of some batch sizes whose time is within a limit; None where none is."""
        raise NotImplementedError

    def quantiles_ms(self, largest: int, levels: int = 4096) -> np.ndarray | None:
        """What a simulation draws from: [largest, levels], row B - 1 for batches of B, ascending.

        Row entries are equally likely. None where nothing was measured: times are then `times_ms`.
        """
        raise NotImplementedError
