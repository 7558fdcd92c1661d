"""The curve t(B): how long a batch of B takes, from measured samples, a table, a line or a text."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from optcli.errors import InputError, excerpt
from optcli.measure.queueing import milliseconds, number, whole
from optcli.results.statistics import monotone

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

# A table may fall by this share below what a smaller batch took; what falls more is an error.
FALL_TOLERANCE = 0.05
PLACE = "curve"
_LINE = re.compile(r"(?P<fixed>[^+]+)\+(?P<per_image>[^*]+)\*\s*[bB]")
_FORMS = "write 1:25ms,2:27ms,4:34ms (batch size and time), 6ms+4ms*b (a line) or 12ms (batch 1 only)"


@dataclass(frozen=True, eq=False)
class Curve:
    """Milliseconds of a batch at every batch size, and how they are known.

    `points` are (batch size, mean milliseconds), ascending, never falling; empty for a line.
    `fixed_ms` and `per_image_ms` are the line t(B) = fixed + B * per_image, fitted by least squares
    with both at least zero; None where there is one point only. `largest_residual` is the largest
    distance of a point from it, as a share of the point. `samples_ms` holds the measured times of
    single batches by batch size, where there are some: a simulation draws from them, each time for
    itself. `between` are further (batch size, mean milliseconds) that are known without a measurement
    of their own, and between all of them the curve is straight. `padded` are (first, to): batches of
    `first` to `to` - 1 are padded to `to`, and take as long.
    """

    points: tuple[tuple[int, float], ...]
    fixed_ms: float | None
    per_image_ms: float | None
    largest_residual: float = 0.0
    samples_ms: Mapping[int, np.ndarray] = field(default_factory=dict)
    between: tuple[tuple[int, float], ...] = ()
    padded: tuple[tuple[int, int], ...] = ()

    @classmethod
    def parse(cls, text: str) -> Curve:
        """A curve from `1:25ms,2:27ms,8:48ms`, `6ms+4ms*b` or `12ms` (batch size 1 only).

        Units are `us`, `ms` and `s`. Raises `InputError` for anything else.
        """
        text = text.strip()
        if line := _LINE.fullmatch(text):
            return cls.from_line(
                milliseconds(line["fixed"], PLACE), milliseconds(line["per_image"], PLACE)
            )
        if text and ":" not in text and "," not in text:
            return cls.from_points({1: milliseconds(text, PLACE)})
        points: dict[int, float] = {}
        for part in text.split(","):
            size, colon, time = part.partition(":")
            if not colon or not re.fullmatch(r"\s*[0-9]{1,9}\s*", size):
                raise InputError(f"{excerpt(part)!r} is no point of a curve", place=PLACE, hint=_FORMS)
            if int(size) in points:
                raise InputError(
                    f"batch size {int(size)} stands twice", place=PLACE, hint="leave one of them out"
                )
            points[int(size)] = milliseconds(time, PLACE)
        return cls.from_points(points)

    @classmethod
    def from_points(cls, points: Mapping[int, float]) -> Curve:
        """A curve from milliseconds by batch size. Raises `InputError` where they cannot be one."""
        if not points:
            raise InputError("the curve has no points", place=PLACE, hint=_FORMS)
        sizes = [whole(size, "a batch size", PLACE, least=1) for size in points]
        times = [
            number(time, f"the time of batch {size}", PLACE, least=0, above=True)
            for size, time in points.items()
        ]
        ordered = sorted(zip(sizes, times, strict=True))
        _refuse_a_fall(ordered)
        rising = monotone([time for _, time in ordered])
        flat = tuple((size, time) for (size, _), time in zip(ordered, rising, strict=True))
        if len(flat) == 1:
            return cls(points=flat, fixed_ms=None, per_image_ms=None)
        fixed, per_image = _fit(flat)
        residual = max(abs(fixed + per_image * size - time) / time for size, time in flat)
        return cls(flat, fixed, per_image, largest_residual=residual)

    @classmethod
    def from_line(cls, fixed_ms: float, per_image_ms: float) -> Curve:
        """The line fixed + B * per_image, in milliseconds, known at every batch size.

        Raises `InputError` where one of them is negative or both are zero.
        """
        fixed = number(fixed_ms, "the fixed part of the line", PLACE, least=0)
        per_image = number(per_image_ms, "the part per image of the line", PLACE, least=0)
        if fixed + per_image == 0:
            raise InputError(
                "the curve is 0 ms for every batch", place=PLACE, hint="give batches a time above 0 ms"
            )
        return cls(points=(), fixed_ms=fixed, per_image_ms=per_image)

    @classmethod
    def from_samples(cls, samples_ms: Mapping[int, ArrayLike]) -> Curve:
        """A curve from times of single batches, by batch size, in milliseconds; each array [calls].

        Its points are the means. Raises `InputError` where a size has no times, or impossible ones.
        """
        arrays = {
            size: np.sort(np.asarray(each, dtype=float).ravel()) for size, each in samples_ms.items()
        }
        for size, array in arrays.items():
            if not array.size or not np.isfinite(array).all() or array[0] <= 0:
                raise InputError(
                    f"batch {size} has no measured times, or one that is not above 0 ms",
                    place=PLACE,
                    hint="measure the curve again",
                )
        means = {size: float(array.mean()) for size, array in arrays.items()}
        curve = cls.from_points(means)
        # Where the table was flattened, what is drawn keeps to the table.
        moved = {size: arrays[size] * (time / means[size]) for size, time in curve.points}
        return replace(curve, samples_ms=moved)

    def stepped(self, between: Mapping[int, float], padded: Iterable[tuple[int, int]] = ()) -> Curve:
        """The curve with other times between its points, and with ranges that are padded.

        Where such a time is not between those of its neighbours, it is moved to the nearest one. Raises
        `InputError` where it is none.
        """
        points = dict(self.points)
        times: dict[int, float] = {}
        for size in sorted({whole(each, "a batch size", PLACE, least=1) for each in between}):
            if size in points:
                continue
            time = number(between[size], f"the time of batch {size}", PLACE, least=0, above=True)
            least = max([ms for at, ms in (*self.points, *times.items()) if at < size], default=time)
            most = min([ms for at, ms in self.points if at > size], default=time)
            times[size] = min(max(time, least), max(most, least))
        return replace(self, between=tuple(times.items()), padded=tuple(sorted(padded)))

    def scaled(self, factor: float) -> Curve:
        """The curve with every time multiplied by a factor above 0."""
        if self.samples_ms:
            curve = Curve.from_samples({size: ms * factor for size, ms in self.samples_ms.items()})
        elif self.points:
            curve = Curve.from_points({size: ms * factor for size, ms in self.points})
        else:
            return Curve.from_line((self.fixed_ms or 0.0) * factor, (self.per_image_ms or 0.0) * factor)
        return curve.stepped({size: ms * factor for size, ms in self.between}, self.padded)

    @cached_property
    def knots(self) -> tuple[int, ...]:
        """The batch sizes between which the curve is straight; empty for a line."""
        return tuple(sorted(self._times))

    @cached_property
    def _times(self) -> dict[int, float]:
        return dict((*self.between, *self.points))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes that are known; empty for a line."""
        return tuple(size for size, _ in self.points)

    def time_ms(self, batch_size: int) -> float:
        """Mean milliseconds of a batch: a point, between two, or that of the size it is padded to.

        Beyond the points the line goes on, raised to the last point where it lies below it, and
        lowered to the first where it lies above. Raises `InputError` where the curve is one point and
        another batch size is asked for.
        """
        size = whole(batch_size, "a batch size", PLACE, least=1)
        known, knots = self._times, self.knots
        if size in known:
            return known[size]
        if knots and knots[0] < size < knots[-1]:
            right = bisect_left(knots, size)
            below, above = knots[right - 1], knots[right]
            low, high = known[below], known[above]
            return low + (high - low) * (size - below) / (above - below)
        if self.fixed_ms is None or self.per_image_ms is None:
            raise InputError(
                f"the curve has one point, batch {self.sizes[0]}; batch {size} is not known",
                place=PLACE,
                hint="give the times of two batch sizes or more, or a line such as 6ms+4ms*b",
            )
        line = self.fixed_ms + self.per_image_ms * size
        if not knots:
            return line
        if size < knots[0]:
            return min(line, known[knots[0]])
        last = knots[-1]
        return line + max(0.0, known[last] - self.fixed_ms - self.per_image_ms * last)

    def times_ms(self, largest: int) -> list[float]:
        """Mean milliseconds of batches of 1 to `largest`."""
        return [self.time_ms(size) for size in range(1, largest + 1)]

    def per_s(self, batch_size: int) -> float:
        """Inferences a second of one worker that always runs full batches: the capacity mu_B."""
        return 1000 * batch_size / self.time_ms(batch_size)

    def is_extrapolated(self, batch_size: int) -> bool:
        """Whether a batch size lies outside the known ones; never for a line."""
        return bool(self.knots) and not self.knots[0] <= batch_size <= self.knots[-1]

    def padded_to(self, batch_size: int) -> int | None:
        """The batch size to which one is padded; None where it is not."""
        return next((to for first, to in self.padded if first <= batch_size < to), None)

    def largest_within(self, limit_ms: float, sizes: Sequence[int]) -> int | None:
        """The largest of some batch sizes whose time is within a limit; None where none is."""
        return max((size for size in sizes if self.time_ms(size) <= limit_ms), default=None)

    def quantiles_ms(self, largest: int, levels: int = 4096) -> np.ndarray | None:
        """What a simulation draws from: [largest, levels], row B - 1 for batches of B, ascending.

        Entries of a row are equally likely: quantiles of the samples, between two batch sizes
        interpolated level by level, beyond them those of the nearest in proportion to `time_ms`; those
        of the larger size where a batch is padded. None where nothing was measured: times are then
        `times_ms`.
        """
        if not self.samples_ms:
            return None
        at = (np.arange(levels) + 0.5) / levels
        rows = {}
        for size, samples in self.samples_ms.items():
            ordered = np.sort(samples)
            rows[size] = ordered[(at * ordered.size).astype(int)]
        sizes = self.sizes
        table = np.empty((largest, levels))
        for size in range(1, largest + 1):
            to = self.padded_to(size)
            if to in rows:
                table[size - 1] = rows[to]
                continue
            if size <= sizes[0] or size >= sizes[-1]:
                nearest = sizes[0] if size <= sizes[0] else sizes[-1]
                table[size - 1] = rows[nearest] * (self.time_ms(size) / self.time_ms(nearest))
                continue
            right = bisect_left(sizes, size)
            below, above = sizes[right - 1], sizes[right]
            part = (size - below) / (above - below)
            table[size - 1] = (1 - part) * rows[below] + part * rows[above]
            if self.between and size not in rows:
                straight = (1 - part) * self.time_ms(below) + part * self.time_ms(above)
                table[size - 1] *= self.time_ms(size) / straight
        return table


def _refuse_a_fall(ordered: Sequence[tuple[int, float]]) -> None:
    highest = ordered[0]
    for _, (size, time) in pairwise(ordered):
        if time < highest[1] * (1 - FALL_TOLERANCE):
            raise InputError(
                f"the curve falls: batch {highest[0]} takes {highest[1]:g} ms, batch {size} takes"
                f" {time:g} ms",
                place=PLACE,
                hint="a larger batch takes no less time: measure both again, or leave out the slower",
            )
        highest = max(highest, (size, time), key=lambda point: point[1])


def _fit(points: Sequence[tuple[int, float]]) -> tuple[float, float]:
    """Least squares of t = fixed + B * per_image with neither below zero."""
    count = len(points)
    size_mean = sum(size for size, _ in points) / count
    time_mean = sum(time for _, time in points) / count
    spread = sum((size - size_mean) ** 2 for size, _ in points)
    # The points never fall, so that the slope is not negative.
    per_image = sum((size - size_mean) * (time - time_mean) for size, time in points) / spread
    fixed = time_mean - per_image * size_mean
    if fixed >= 0:
        return fixed, per_image
    return 0.0, sum(size * time for size, time in points) / sum(size**2 for size, _ in points)


@dataclass(frozen=True)
class CompiledForms:
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


def with_forms(curve: Curve, forms: CompiledForms) -> Curve:
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


def _unmeasured(forms: CompiledForms, known: Mapping[int, float]) -> dict[int, float]:
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

    def __init__(self, forms: CompiledForms, known: Mapping[int, float]) -> None:
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
    forms: CompiledForms, known: Mapping[int, float], any_size: _AnySize, below: int, size: int
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
