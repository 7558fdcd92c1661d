"""When requests arrive: processes that are drawn with a seed, and what was drawn.

Rates are per second, times in milliseconds from the start. Every process raises `InputError` for rates
and lengths that make no sense.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from optcli.errors import InputError, excerpt
from optcli.measure.queueing import milliseconds, number, share, whole

PLACE = "arrivals"
# Bursts are less than this on average, so that their form alone is looked at.
ANY_RATE = 1e12
_FORMS = "write poisson, constant, gamma:CV2 or bursts:BURST_PER_S,BASE_LENGTH,BURST_LENGTH"


@dataclass(frozen=True, eq=False)
class Arrivals:
    """Requests in the order in which they arrive.

    `times_ms` [requests], ascending. Raises `InputError` for times that fall, are negative or endless.
    """

    times_ms: np.ndarray

    def __post_init__(self) -> None:
        times = np.asarray(self.times_ms, dtype=float)
        object.__setattr__(self, "times_ms", times)
        if not np.isfinite(times).all() or times[0] < 0 or (np.diff(times) < 0).any():
            raise InputError(
                "the times of arrival fall, or are no numbers of 0 or more",
                place=PLACE,
                hint="give them in milliseconds from the start, in order",
            )

    @property
    def count(self) -> int:
        """How many requests there are."""
        return int(self.times_ms.size)

    @property
    def rate_per_s(self) -> float:
        """Requests a second between the first and the last; 0 where there is no time between them."""
        span = float(self.times_ms[-1] - self.times_ms[0]) if self.count else 0.0
        return 1000 * (self.count - 1) / span if span else 0.0


class Process(Protocol):
    """A way in which requests arrive."""

    @property
    def rate_per_s(self) -> float:
        """The mean rate."""

    def draw(self, count: int, seed: int) -> Arrivals:
        """`count` requests; the same seed gives the same requests."""

    def scaled(self, factor: float) -> Process:
        """The same process, `factor` times as fast; by one seed the same requests, closer together."""


@dataclass(frozen=True)
class Poisson:
    """Independent requests at a constant mean rate."""

    rate_per_s: float

    def __post_init__(self) -> None:
        number(self.rate_per_s, "the rate", PLACE, least=0, above=True)

    def draw(self, count: int, seed: int) -> Arrivals:
        return Arrivals(_unit_poisson(count, seed) * (1000 / self.rate_per_s))

    def scaled(self, factor: float) -> Poisson:
        return replace(self, rate_per_s=self.rate_per_s * factor)


@dataclass(frozen=True)
class Constant:
    """Equal gaps: the clock of a sensor."""

    rate_per_s: float

    def __post_init__(self) -> None:
        number(self.rate_per_s, "the rate", PLACE, least=0, above=True)

    def draw(self, count: int, seed: int) -> Arrivals:
        return Arrivals(np.arange(1, _counted(count) + 1) * (1000 / self.rate_per_s))

    def scaled(self, factor: float) -> Constant:
        return replace(self, rate_per_s=self.rate_per_s * factor)


@dataclass(frozen=True)
class Gamma:
    """Independent gamma gaps; `cv2` is their variance over their squared mean (1: Poisson)."""

    rate_per_s: float
    cv2: float

    def __post_init__(self) -> None:
        number(self.rate_per_s, "the rate", PLACE, least=0, above=True)
        number(self.cv2, "the squared coefficient of variation", PLACE, least=0, above=True)

    def draw(self, count: int, seed: int) -> Arrivals:
        gaps = np.random.default_rng(seed).standard_gamma(1 / self.cv2, _counted(count))
        return Arrivals(np.cumsum(gaps) * (self.cv2 * 1000 / self.rate_per_s))

    def scaled(self, factor: float) -> Gamma:
        return replace(self, rate_per_s=self.rate_per_s * factor)


@dataclass(frozen=True)
class Bursts:
    """On/off bursts (MMPP-2): Poisson at `base_per_s`, in bursts at `burst_per_s`.

    `base_ms` and `burst_ms` are the mean lengths of the two states; lengths are exponential. `scaled`
    changes both rates; the lengths stay.
    """

    base_per_s: float
    burst_per_s: float
    base_ms: float
    burst_ms: float

    def __post_init__(self) -> None:
        number(self.base_per_s, "the rate between bursts", PLACE, least=0)
        number(self.burst_per_s, "the rate in bursts", PLACE, least=0, above=True)
        number(self.base_ms, "the length between bursts", PLACE, least=0, above=True)
        number(self.burst_ms, "the length of a burst", PLACE, least=0, above=True)

    @property
    def rate_per_s(self) -> float:
        """The mean rate over both states."""
        whole_ms = self.base_ms + self.burst_ms
        return (self.base_per_s * self.base_ms + self.burst_per_s * self.burst_ms) / whole_ms

    def draw(self, count: int, seed: int) -> Arrivals:
        # The states have a stream of their own, so that a scaled process sees the same ones.
        states = np.random.default_rng([seed, 1])
        length_ms = np.array([self.base_ms, self.burst_ms])
        per_ms = np.array([self.base_per_s, self.burst_per_s]) / 1000
        first = int(states.random() < self.burst_ms / length_ms.sum())
        pair = [first, 1 - first]
        units = _unit_poisson(count, seed)
        rounds = 64
        edges, counted = np.zeros(1), np.zeros(1)
        while counted[-1] < units[-1]:
            lengths = states.standard_exponential((rounds, 2)) * length_ms[pair]
            edges = np.append(edges, edges[-1] + np.cumsum(lengths))
            counted = np.append(counted, counted[-1] + np.cumsum(lengths * per_ms[pair]))
            rounds *= 2
        return Arrivals(np.interp(units, counted, edges))

    def scaled(self, factor: float) -> Bursts:
        return replace(self, base_per_s=self.base_per_s * factor, burst_per_s=self.burst_per_s * factor)


def parse(text: str, rate_per_s: float) -> Process:
    """A process from `poisson`, `constant`, `gamma:CV2` or `bursts:BURST_PER_S,BASE,BURST`.

    BASE and BURST are mean lengths such as `1800ms` and `200ms`. `rate_per_s` is the mean rate; the
    rate between bursts follows from it. Raises `InputError`.
    """
    kind, _, rest = text.strip().partition(":")
    if kind == "poisson" and not rest:
        return Poisson(rate_per_s)
    if kind == "constant" and not rest:
        return Constant(rate_per_s)
    if kind == "gamma" and rest:
        return Gamma(rate_per_s, _float(rest, text))
    parts = rest.split(",")
    if kind != "bursts" or len(parts) != 3:
        raise InputError(f"{excerpt(text)!r} is no kind of arrivals", place=PLACE, hint=_FORMS)
    burst_per_s = _float(parts[0], text)
    base_ms, burst_ms = (milliseconds(part, PLACE) for part in parts[1:])
    whole_ms = number(base_ms + burst_ms, "the length of a cycle", PLACE, least=0, above=True)
    base_per_s = rate_per_s - (burst_per_s - rate_per_s) * burst_ms / (base_ms or whole_ms)
    if base_per_s < 0:
        raise InputError(
            f"bursts of {burst_per_s:g} requests/s for {burst_ms / whole_ms:.0%} of the time are"
            f" {burst_per_s * burst_ms / whole_ms:g} requests/s in the mean, more than the rate"
            f" {rate_per_s:g}",
            place=PLACE,
            hint="give a higher rate, or slower or shorter bursts",
        )
    return Bursts(base_per_s, burst_per_s, base_ms, burst_ms)


def kept_at_random(count: int, kept: float, seed: int) -> np.ndarray:
    """Which of `count` requests stay when each does with the probability `kept`: a mask [count]."""
    share(kept, "the share that stays", PLACE)
    mask: np.ndarray = np.random.default_rng([seed, 3]).random(count) < kept
    return mask


def _unit_poisson(count: int, seed: int) -> np.ndarray:
    """Poisson arrivals of rate 1."""
    return np.cumsum(np.random.default_rng(seed).standard_exponential(_counted(count)))


def _counted(count: int) -> int:
    return whole(count, "the number of requests", PLACE, least=1)


def _float(text: str, whole_text: str) -> float:
    try:
        return float(text)
    except ValueError:
        message = f"{excerpt(text)!r} in {excerpt(whole_text)!r} is no number"
        raise InputError(message, place=PLACE, hint=_FORMS) from None
