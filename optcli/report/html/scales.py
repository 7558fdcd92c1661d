"""Axes: from values to pixels, linear or logarithmic, with ticks at round values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

# From this ratio of largest to smallest on, a logarithmic axis shows more than a linear one.
_LARGE_RANGE = 8.0
_ROUND = (1.0, 2.0, 5.0)


@dataclass(frozen=True)
class Scale:
    """Maps `low`..`high` to the pixels `start`..`end`; `end` may lie left of or above `start`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value; what lies outside is put at the edge."""
        low, high, at = self._on_axis(self.low), self._on_axis(self.high), self._on_axis(value)
        share = min(1.0, max(0.0, (at - low) / (high - low)))
        return self.start + share * (self.end - self.start)

    def value(self, share: float) -> float:
        """The value at a share (0..1) of the axis."""
        low, high = self._on_axis(self.low), self._on_axis(self.high)
        at = low + share * (high - low)
        return math.exp(at) if self.log else at

    def ticks(self, apart: float = 64.0) -> list[float]:
        """Round values, on average at least `apart` pixels from each other."""
        most = max(2, int(abs(self.end - self.start) / apart))
        if not self.log:
            return _linear_ticks(self.low, self.high, most)
        return _log_ticks(self.low, self.high, most)

    def _on_axis(self, value: float) -> float:
        return math.log(max(value, 1e-300)) if self.log else value


def spanning(values: Iterable[float], start: float, end: float, *, log: bool | None = None) -> Scale:
    """A scale over all values with a little room at both ends; `log` None decides by their range."""
    finite = [value for value in values if math.isfinite(value)] or [1.0]
    low, high = min(finite), max(finite)
    if log is None:
        log = low > 0 and high / low > _LARGE_RANGE
    if log:
        room = max(1.06, (high / low) ** 0.04)
        return Scale(low / room, high * room, start, end, log=True)
    room = 0.05 * (high - low) or 0.05 * abs(high) or 1.0
    return Scale(low - room, high + room, start, end)


def from_zero(values: Iterable[float], start: float, end: float) -> Scale:
    """A linear scale from zero to a little above the largest value."""
    return Scale(0.0, 1.06 * max([*values, 0.0]) or 1.0, start, end)


def label(value: float) -> str:
    """A tick's text: `0.05`, `1`, `250`, `20k`, `1.5M`."""
    for unit, scale in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale * (10 if unit == "k" else 1):
            return f"{value / scale:.3g}{unit}"
    return f"{value:.6g}"


def _linear_ticks(low: float, high: float, most: int) -> list[float]:
    size = 10 ** math.floor(math.log10((high - low) / most))
    step = next(size * each for each in (1, 2, 5, 10, 20) if (high - low) / (size * each) <= most)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _log_ticks(low: float, high: float, most: int) -> list[float]:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: Sequence[float] = ()
    for factors in (_ROUND, (1.0, 3.0), (1.0,)):
        every = [float(f"{factor}e{decade}") for decade in decades for factor in factors]
        ticks = [value for value in every if low <= value <= high]
        if len(ticks) <= most:
            break
    if len(ticks) < 2:
        return _linear_ticks(low, high, min(most, 4))
    step = -(-len(ticks) // most)
    return list(ticks[::step])
