"""A model that is compiled for some batch sizes: which form computes a batch, and what t(B) is then.

A batch of a size in between is padded to the next compiled size and takes as long as that, or it goes
to the form for any size. So t(B) has steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from optcli.measure.queueing.curve import Curve
from optcli.results.statistics import monotone


@dataclass(frozen=True)
class Forms:
    """What is known of the forms of a model.

    `compiled` are the batch sizes that it is compiled for. `padded` are sizes that were measured while
    they were padded, and the size they were padded to. `gains` say by batch size how many times as fast
    the form for that size is as the form for any size. `padded_from` has for each compiled size the
    smallest one that is padded to it, where a model has this written in it: nothing is decided then.
    `can_pad` is false where no batch is padded. With `pieces`, a batch above the largest compiled size
    is computed in several parts; else it goes to the form for any size.
    """

    compiled: tuple[int, ...]
    padded: Mapping[int, int] = field(default_factory=dict)
    gains: Mapping[int, float] = field(default_factory=dict)
    padded_from: Mapping[int, int] | None = None
    can_pad: bool = True
    pieces: bool = False

    def own(self, known: Iterable[int]) -> list[int]:
        """Those of some known batch sizes that are no measurement of another known size's form."""
        sizes = sorted(known)
        return [size for size in sizes if self._stands_for(size) not in sizes]

    def _stands_for(self, size: int) -> int | None:
        """The compiled size whose form computed a batch that was measured; None: its own, or any."""
        if size in self.compiled:
            return None
        if self.padded_from is None:
            return self.padded.get(size)
        larger = min((each for each in self.compiled if each > size), default=None)
        padded = larger is not None and self.padded_from.get(larger, larger) <= size
        return larger if padded else None


def with_forms(curve: Curve, forms: Forms) -> Curve:
    """A curve of measured points with the steps that the forms of the model give it.

    A batch in between is padded where a measurement says so, and where the form for any size is not
    known to be faster. What that form takes is known from points that it computed, and at compiled
    sizes from `gains`; between and beyond these it is a straight line.
    """
    known = dict(curve.points)
    any_size = _AnySize(forms, known)
    between = _unmeasured(forms, known)
    own = known | between
    ranges: list[tuple[int, int]] = []
    below = 0
    for size in sorted(forms.compiled):
        if size in own:
            first = _padded_from(forms, own, any_size, below, size)
            between |= any_size.at_the_ends(below, first)
            if first < size:
                between[first] = own[size]
                ranges += [(first, size)] if forms.can_pad else []
        below = size
    following = min((size for size in known if size > below), default=below)
    if not forms.pieces:
        between |= any_size.at_the_ends(below, following)
    elif below in known:
        stepped = curve.stepped(between, ranges)
        above = range(below + 1, curve.sizes[-1])
        between |= {size: _in_pieces(stepped, size, below) for size in above}
    return curve.stepped(between, ranges)


def _unmeasured(forms: Forms, known: Mapping[int, float]) -> dict[int, float]:
    """What compiled sizes take that were not measured, but lie between two that were."""
    points = sorted((size, known[size]) for size in forms.compiled if size in known)
    return {
        size: start + (end - start) * (size - low) / (high - low)
        for (low, start), (high, end) in pairwise(points)
        for size in forms.compiled
        if low < size < high
    }


class _AnySize:
    """What the form for any size takes, as far as that is known."""

    def __init__(self, forms: Forms, known: Mapping[int, float]) -> None:
        times = {
            size: known[size] * forms.gains[size]
            for size in forms.compiled
            if size in forms.gains and size in known
        }
        most = max(forms.compiled) if forms.pieces else math.inf
        for size, ms in known.items():
            if size not in forms.compiled and size not in forms.padded and size <= most:
                times[size] = ms
        self._sizes = sorted(times)
        self._times = monotone([times[size] for size in self._sizes])

    def time_ms(self, size: int) -> float | None:
        """Milliseconds of a batch; None where fewer than two batch sizes are known."""
        if size in self._sizes:
            return self._times[self._sizes.index(size)]
        if len(self._sizes) < 2:
            return None
        pieces = list(pairwise(zip(self._sizes, self._times, strict=True)))
        (low, start), (high, end) = next((p for p in pieces if size < p[1][0]), pieces[-1])
        time = start + (end - start) * (size - low) / (high - low)
        # What a call costs however large its batch is, is not below zero.
        return max(time, start * size / low) if size < low else time

    def at_the_ends(self, low: int, high: int) -> dict[int, float]:
        """The times of the smallest and the largest size between two others, where they are known."""
        ends = {size: self.time_ms(size) for size in (low + 1, high - 1) if low < size < high}
        return {size: time for size, time in ends.items() if time is not None}


def _padded_from(
    forms: Forms, known: Mapping[int, float], any_size: _AnySize, below: int, size: int
) -> int:
    """The smallest batch size above `below` that takes as long as `size`; `size` itself: none does.

    It is padded to `size`, where a model can be: a curve does not fall, also where it cannot.
    """
    if forms.padded_from is not None:
        return min(size, max(below + 1, forms.padded_from.get(size, size)))
    start = max((each for each in known if below < each < size), default=below) + 1
    seen = [each for each, to in forms.padded.items() if to == size and each >= start]
    end = min(seen, default=size)
    for each in range(start, end):
        time = any_size.time_ms(each)
        if time is None and not forms.can_pad:
            return size
        if time is None or time >= known[size]:
            return each
    return end


def _in_pieces(curve: Curve, size: int, largest: int) -> float:
    """Milliseconds of a batch that is computed as several of the largest compiled size, and a rest."""
    whole, rest = divmod(size, largest)
    return whole * curve.time_ms(largest) + (curve.time_ms(rest) if rest else 0.0)
