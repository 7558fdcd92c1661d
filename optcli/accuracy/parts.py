"""How far the parts of an output lie from the baseline's, and whether each of them still lives.

A part is what `outputs` says. An output of which nothing is known is cut along the dimension where the
ranges of its slices differ most: boxes of 0..640 and scores of 0..1 are two groups.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcli.outputs import OutputMeaning, OutputPart
from optcli.outputs.ranges import MOST_SLICES, groups_by_range
from optcli.results.outcomes import PartDistance

if TYPE_CHECKING:
    import numpy as np

# A slice counts where it varies by this share of the range of its part,
_MATTERS = 0.05
# and a class where it reaches this share of the score from which detections are used.
_OF_THE_SCORE = 0.1
# Scores from which detections are used, where a recipe asks for lower ones, as mAP does.
CONFIDENT = 0.25
# What varies by less than this share of what it varied by before gives nothing away any more.
_DEAD = 0.01
# A slice that varies by as much of the range of its part, or reaches the score, is wrong as a whole
# where the noise has half the power of its signal, its mean apart.
_PROMINENT = 0.3
_WRONG = 0.5
_BLOCK_VALUES = 1 << 20
_NAMED = 10
WHOLE = -1  # in place of a dimension: all values as one slice


@dataclass
class _Slices:
    """Figures of the slices along one dimension, `[slices]`; of sums over all samples.

    `varies`, `still_varies`: the largest spread of one value over the samples, of the baseline and of
    the variant. `low`, `high`: the baseline's extremes.
    """

    varies: np.ndarray
    still_varies: np.ndarray
    low: np.ndarray
    high: np.ndarray
    count: np.ndarray
    total: np.ndarray
    signal: np.ndarray
    noise: np.ndarray
    product: np.ndarray
    offset: np.ndarray
    largest: np.ndarray

    @property
    def reach(self) -> np.ndarray:
        """The largest absolute value of each slice of the baseline."""
        import numpy as np

        reach: np.ndarray = np.maximum(np.abs(self.low), np.abs(self.high))
        return reach


def part_distances(
    meaning: OutputMeaning, candidate: np.ndarray, reference: np.ndarray, score: float
) -> tuple[PartDistance, ...]:
    """The distance of each part of an output; `candidate` and `reference` are rows `[samples, ...]`.

    `score` is the one from which detections are used. Whole numbers, and outputs without dimensions or
    with fewer than two samples, have no parts.
    """
    if (
        min(len(candidate), len(reference)) < 2
        or candidate.dtype.kind != "f"
        or reference.dtype.kind != "f"
    ):
        return ()
    return tuple(
        distance
        for part in _with_class_numbers(meaning.parts, reference)
        for distance in _distances(meaning.output, part, part.of(candidate), part.of(reference), score)
    )


def _distances(
    output: str, part: OutputPart, candidate: np.ndarray, reference: np.ndarray, score: float
) -> Iterator[PartDistance]:
    import numpy as np

    if part.kind == "class_numbers":
        yield _agreement(output, part, candidate, reference)
        return
    dimensions = [
        axis for axis, size in enumerate(candidate.shape[1:]) if part.axis in (None, axis) and size > 1
    ]
    slices = {axis: _slices(candidate, reference, axis) for axis in dimensions or [WHOLE]}
    first = next(iter(slices))
    axis, groups = first, [np.arange(len(slices[first].low))]
    if part.kind == "unknown":
        reaches = {axis: each.reach for axis, each in slices.items()}
        axis, groups = groups_by_range(reaches) or (axis, groups)
    for members in groups:
        chosen = slices[axis]
        low, high = float(chosen.low[members].min()), float(chosen.high[members].max())
        span = high - low
        signal, noise = (float(each[members].sum()) for each in (chosen.signal, chosen.noise))
        wrong = members[_wrong(part, chosen, members, span, score)]
        dead, faded, where = _dead(part, slices, axis, members, span, score)
        offsets = chosen.offset[members] / chosen.count[members]
        power = chosen.noise[members] / chosen.count[members]
        # A shift is the greater part of what is wrong, or it is none.
        shifted = np.where(np.square(offsets) >= 0.5 * power, offsets, 0.0)
        worst = float(shifted[np.abs(shifted).argmax()])
        yield PartDistance(
            output=output,
            part=part.kind,
            axis=None if where == WHOLE else where + 1,
            of=(part.start + int(members[0]), part.start + int(members[-1]) + 1)
            if axis != WHOLE and (len(groups) > 1 or part.axis is not None)
            else None,
            sqnr_db=10 * math.log10(signal / noise) if signal > 0 and noise > 0 else None,
            max_abs=float(chosen.largest[members].max()),
            low=low,
            high=high,
            scale=float(chosen.product[members].sum()) / signal if signal > 0 else None,
            shift=worst / span if span > 0 else None,
            dead=tuple(part.start + int(each) for each in dead[:_NAMED]),
            dead_count=len(dead),
            faded_count=faded,
            wrong=tuple(part.start + int(each) for each in wrong[:_NAMED]),
            wrong_count=len(wrong),
        )


def _with_class_numbers(parts: Sequence[OutputPart], reference: np.ndarray) -> Sequence[OutputPart]:
    """The parts; of an unknown output one slice of whole numbers among others is class numbers."""
    import numpy as np

    if [part.kind for part in parts] != ["unknown"] or parts[0].axis is not None or reference.ndim < 3:
        return parts
    whole = reference == np.round(reference)
    for axis in range(1, reference.ndim):
        size = reference.shape[axis]
        others = tuple(i for i in range(reference.ndim) if i != axis)
        if not 4 < size <= MOST_SLICES:  # a box and its class at least
            continue
        numbers = np.flatnonzero(whole.all(axis=others))
        if len(numbers) == 1:
            values = np.take(reference, numbers[0], axis)
            if values.min() >= 0 and values.max() >= 1 and np.ptp(values) > 0:
                at = int(numbers[0])
                cut = [("unknown", 0, at), ("class_numbers", at, at + 1), ("unknown", at + 1, size)]
                return [
                    OutputPart(kind, axis - 1, start, stop)  # type: ignore[arg-type]
                    for kind, start, stop in cut
                    if start < stop
                ]
    return parts


def _agreement(
    output: str, part: OutputPart, candidate: np.ndarray, reference: np.ndarray
) -> PartDistance:
    """Class numbers agree or do not: the noise is the share of those that differ."""
    import numpy as np

    differing = float((candidate != reference).mean())
    still = np.ptp(candidate) > 0 or np.ptp(reference) == 0
    return PartDistance(
        output=output,
        part=part.kind,
        axis=None if part.axis is None else part.axis + 1,
        of=None if part.stop is None else (part.start, part.stop),
        sqnr_db=-10 * math.log10(differing) if differing else None,
        max_abs=float(np.abs(candidate - reference).max(initial=0.0)),
        low=float(reference.min()),
        high=float(reference.max()),
        dead=() if still else (part.start,),
        dead_count=0 if still else 1,
    )


def _slices(candidate: np.ndarray, reference: np.ndarray, axis: int) -> _Slices:
    """Figures of the slices along a dimension of a sample."""
    import numpy as np

    count = min(len(candidate), len(reference))
    if axis == WHOLE:
        return _block(candidate[:count].reshape(count, 1, -1), reference[:count].reshape(count, 1, -1))
    moved = [np.moveaxis(rows[:count], axis + 1, 1) for rows in (candidate, reference)]
    each = max(1, math.prod(moved[0].shape[2:]))
    step = max(1, _BLOCK_VALUES // (each * count))
    blocks = []
    for start in range(0, moved[0].shape[1], step):
        a, b = (np.asarray(rows[:, start : start + step]).reshape(count, -1, each) for rows in moved)
        blocks.append(_block(a, b))
    return _Slices(
        **{name: np.concatenate([vars(block)[name] for block in blocks]) for name in vars(blocks[0])}
    )


def _block(candidate: np.ndarray, reference: np.ndarray) -> _Slices:
    """Figures of slices `[samples, slices, values]`."""
    import numpy as np

    a, b = candidate.astype(np.float64), reference.astype(np.float64)
    difference = a - b
    every = (0, 2)
    return _Slices(
        varies=np.ptp(b, axis=0).max(axis=1),
        still_varies=np.ptp(a, axis=0).max(axis=1),
        low=b.min(axis=every),
        high=b.max(axis=every),
        count=np.full(b.shape[1], b.shape[0] * b.shape[2]),
        total=b.sum(axis=every),
        signal=np.square(b).sum(axis=every),
        noise=np.square(difference).sum(axis=every),
        product=(a * b).sum(axis=every),
        offset=difference.sum(axis=every),
        largest=np.abs(difference).max(axis=every),
    )


def _wrong(
    part: OutputPart, slices: _Slices, members: np.ndarray, span: float, score: float
) -> np.ndarray:
    """Which slices of a part have hardly anything in common with the baseline's."""
    import numpy as np

    power = slices.signal - np.square(slices.total) / slices.count
    prominent = slices.varies[members] >= _PROMINENT * span
    if part.kind in ("scores", "objectness"):
        prominent |= slices.high[members] >= max(score, CONFIDENT)
    wrong: np.ndarray = prominent & (slices.noise[members] > _WRONG * power[members])
    return wrong


def _dead(
    part: OutputPart,
    slices: dict[int, _Slices],
    axis: int,
    members: np.ndarray,
    span: float,
    score: float,
) -> tuple[list[int], int, int]:
    """Slices that varied by what matters and do so no more, how many others do not; the dimension.

    Along the dimension that was cut the members of the group count. What lies along others counts where
    it is one group with the whole.
    """
    import numpy as np

    least = _MATTERS * span
    faded = 0
    for dimension, each in slices.items():
        if len(each.low) > MOST_SLICES or (dimension != axis and len(members) < len(slices[axis].low)):
            continue
        numbers = members if dimension == axis else np.arange(len(each.low))
        still = each.still_varies[numbers] > _DEAD * each.varies[numbers]
        gone = (each.varies[numbers] > 0) & ~still
        matters = each.varies[numbers] >= least
        if part.kind in ("scores", "objectness"):
            matters |= each.high[numbers] >= _OF_THE_SCORE * max(score, CONFIDENT)
        if (gone & matters).any():
            return (
                [int(number) for number in numbers[gone & matters]],
                int((gone & ~matters).sum()),
                (dimension),
            )
        if dimension == axis:
            faded = int(gone.sum())
    return [], faded, axis
