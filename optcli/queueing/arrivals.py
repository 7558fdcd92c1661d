"""When requests arrive: processes that are drawn with a seed, and what was drawn.

Rates are per second, times in milliseconds from the start.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import numpy as np


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Requests in the order in which they arrive.

    `times_ms` [requests], ascending. `priority` [requests] counts from 0, the most urgent; `stream`
    [requests] says which camera or caller a request is from. Both are None where there is one only.
    """

    times_ms: np.ndarray
    priority: np.ndarray | None = None
    stream: np.ndarray | None = None

    @property
    def count(self) -> int:
        raise NotImplementedError

    @property
    def rate_per_s(self) -> float:
        """Requests a second between the first and the last."""
        raise NotImplementedError


class Process(Protocol):
    """A way in which requests arrive. `rate_per_s` is its mean rate."""

    @property
    def rate_per_s(self) -> float: ...

    def draw(self, count: int, seed: int) -> Arrivals:
        """`count` requests; the same seed gives the same requests."""
        ...

    def scaled(self, factor: float) -> Process:
        """The same process, `factor` times as fast; by one seed the same requests, closer together."""
        ...


@dataclass(frozen=True)
class Poisson:
    """Independent requests at a constant mean rate."""

    rate_per_s: float

    def draw(self, count: int, seed: int) -> Arrivals:
        raise NotImplementedError

    def scaled(self, factor: float) -> Poisson:
        raise NotImplementedError


@dataclass(frozen=True)
class Constant:
    """Equal gaps: a sensor's clock."""

    rate_per_s: float

    def draw(self, count: int, seed: int) -> Arrivals:
        raise NotImplementedError

    def scaled(self, factor: float) -> Constant:
        raise NotImplementedError


@dataclass(frozen=True)
class Gamma:
    """Independent gamma gaps; `cv2` is their variance over their squared mean (1: Poisson)."""

    rate_per_s: float
    cv2: float

    def draw(self, count: int, seed: int) -> Arrivals:
        raise NotImplementedError

    def scaled(self, factor: float) -> Gamma:
        raise NotImplementedError


@dataclass(frozen=True)
class Bursts:
    """On/off bursts (MMPP-2): Poisson at `base_per_s`, in bursts at `burst_per_s`.

    `base_ms` and `burst_ms` are the mean lengths of the two states; lengths are exponential.
    """

    base_per_s: float
    burst_per_s: float
    base_ms: float
    burst_ms: float

    @property
    def rate_per_s(self) -> float:
        raise NotImplementedError

    def draw(self, count: int, seed: int) -> Arrivals:
        raise NotImplementedError

    def scaled(self, factor: float) -> Bursts:
        """Both rates times `factor`; the lengths stay."""
        raise NotImplementedError


@dataclass(frozen=True)
class Levels:
    """Poisson at one rate after another: (requests a second, milliseconds) each, over and over."""

    levels: tuple[tuple[float, float], ...]

    @property
    def rate_per_s(self) -> float:
        raise NotImplementedError

    def draw(self, count: int, seed: int) -> Arrivals:
        raise NotImplementedError

    def scaled(self, factor: float) -> Levels:
        raise NotImplementedError


@dataclass(frozen=True)
class Cameras:
    """Cameras with one clock each, of random phase; every `stride`-th frame becomes a request.

    `jitter_ms` moves each frame by up to so much to either side. `Arrivals.stream` is the camera.
    """

    count: int
    frames_per_s: float
    stride: int = 1
    jitter_ms: float = 0.0

    @property
    def rate_per_s(self) -> float:
        raise NotImplementedError

    def draw(self, count: int, seed: int) -> Arrivals:
        raise NotImplementedError

    def scaled(self, factor: float) -> Cameras:
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class Trace:
    """Recorded times of arrival, [requests] in milliseconds. `draw` starts at a place by the seed.

    What is longer than the trace goes round; `loops(count)` says how often.
    """

    times_ms: np.ndarray

    @classmethod
    def read(cls, path: Path) -> Trace:
        """A text file with one time in seconds a line, or the first column of a CSV file.

        Raises `InputError` for an empty file, for what is no number and for times that fall.
        """
        raise NotImplementedError

    @property
    def rate_per_s(self) -> float:
        raise NotImplementedError

    def loops(self, count: int) -> float:
        """How many times the trace is gone through for `count` requests."""
        raise NotImplementedError

    def draw(self, count: int, seed: int) -> Arrivals:
        raise NotImplementedError

    def scaled(self, factor: float) -> Trace:
        raise NotImplementedError


def parse(text: str, rate_per_s: float) -> Process:
    """A process from `poisson`, `constant`, `gamma:CV2` or `bursts:BURST_PER_S,BASE_MS,BURST_MS`.

    `rate_per_s` is its mean rate; the base rate of bursts follows from it. Raises `InputError`.
    """
    raise NotImplementedError


def with_priorities(arrivals: Arrivals, shares: Sequence[float], seed: int) -> Arrivals:
    """Each request gets a priority at random: `shares[0]` of them 0, the most urgent, and so on.

    Raises `InputError` where the shares are negative or their sum is not 1.
    """
    raise NotImplementedError


def thinned(arrivals: Arrivals, share: float, seed: int) -> Arrivals:
    """What is left when each request stays with the probability `share`: the misses of a cache."""
    raise NotImplementedError
