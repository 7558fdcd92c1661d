"""Inputs that a server saw against those that its model was calibrated with, statistic by statistic."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from optcli.errors import UsageError, counted
from optcli.results import Verdict
from optcli.results.loadtest import Drift, DriftChannel, DriftInput, DriftStatistic
from optcli.results.outcomes import Outcome
from optcli.serving.drift.compared import About, TensorSummary, of_url
from optcli.serving.loadtest import endpoint, verdicts

if TYPE_CHECKING:
    from optcli.serving.drift.input_statistics import Statistics

# Where fewer of the reference's rows differ, equal rows are nothing that was sent twice.
_DISTINCT = 0.9
# Of Wei and Dudley, in place of the 2 that is right for large samples.
FACTOR = 2.16863
# The probability that anything drifted by chance alone, over all statistics of all inputs.
ALPHA = 0.01
# Smaller distances do not matter, however sure they are: about a quarter of a standard deviation.
LEAST = 0.1
# Nothing is accepted that could hide a larger one: about two thirds of a standard deviation.
COARSEST = 0.25
# With fewer rows nothing is said.
FEWEST = 20
# What says nothing by itself: both are known of the reference before.
_UNTESTED = ("outside", "checksum")
# A standard deviation below this share of the mean is the rounding of float32.
_ROUNDING = 1e-6
# In order of what says most where several are far.
_ORDER = ("mean", "std", "size", "max", "min")


def distance(
    first: np.ndarray, first_weights: np.ndarray, second: np.ndarray, second_weights: np.ndarray
) -> float:
    """The largest difference of two distribution functions (Kolmogorov and Smirnov), from 0 to 1.

    Values and weights [rows]; each sample's weights add up to 1.
    """
    values = np.concatenate([first, second])
    order = np.argsort(values, kind="stable")
    steps = np.concatenate([first_weights, -second_weights])[order]
    ordered = values[order]
    # Between equal values there is no step: the functions differ after the last of them.
    last = np.append(ordered[1:] != ordered[:-1], True)
    return min(1.0, float(np.abs(np.cumsum(steps)[last]).max()))


def p_value(statistic: float, first_rows: float, second_rows: float) -> float:
    """The probability of such a distance or a larger one by chance, at most.

    A bound that holds for two samples of any common size from four rows on: F. Wei and R. M. Dudley,
    Two-sample Dvoretzky-Kiefer-Wolfowitz inequalities, Statistics & Probability Letters 82 (2012)
    636-644.
    """
    both = first_rows * second_rows / (first_rows + second_rows)
    return min(1.0, FACTOR * math.exp(-2 * both * statistic**2))


def detectable(alpha: float, tests: int, first_rows: float, second_rows: float) -> float:
    """The distance from which on the first of `tests` tests rejects."""
    both = first_rows * second_rows / (first_rows + second_rows)
    return math.sqrt(math.log(FACTOR * max(tests, 1) / alpha) / (2 * both))


def holm(p_values: Sequence[float]) -> list[float]:
    """P values corrected for their number: one of them is below alpha by chance with that probability.

    S. Holm, A simple sequentially rejective multiple test procedure, Scandinavian Journal of
    Statistics 6 (1979) 65-70. Holds however the tests depend on each other.
    """
    order = sorted(range(len(p_values)), key=p_values.__getitem__)
    corrected, highest = [1.0] * len(p_values), 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p_values[place]))
        corrected[place] = highest
    return corrected


def effective(marks: np.ndarray, weights: np.ndarray, *, repeated: bool) -> float:
    """How many equally weighted, different rows say as much: L. Kish, Survey Sampling (1965).

    `marks` [rows] are equal where rows are, weights add up to 1. With `repeated`, equal rows count as
    one row that has the weight of all of them.
    """
    if not len(marks):
        return 0.0
    if repeated:
        _, places = np.unique(marks, return_inverse=True)
        weights = np.bincount(places.ravel(), weights)
    return float(1 / np.sum(weights**2))


def are_distinct(marks: np.ndarray) -> bool:
    """Whether rows of such data are hardly ever equal, so that equal ones are the same input again."""
    return len(np.unique(marks)) >= _DISTINCT * len(marks)


@dataclass(frozen=True)
class _Sides:
    """One input: matrices [rows, statistics] of both sides, the weights of what was seen, rows."""

    how: TensorSummary
    columns: list[tuple[str, int | None]]
    reference: np.ndarray
    seen: np.ndarray
    weights: np.ndarray
    rows: float
    reference_rows: float


def drift_of(target: str, model: str | None = None) -> Drift:
    """Compare what a server has kept of its inputs with its reference; sends no traffic.

    `target` is its URL, where it may have to be asked for a `model`. Raises `UsageError` for anything
    else, and as `of_url` does.
    """
    if not endpoint.is_url(target):
        raise UsageError(
            "a server has the statistics of its inputs in its memory",
            place=target,
            hint="name the URL of the running server, such as http://127.0.0.1:8000/v2/models/NAME",
        )
    return compared(*of_url(target, model), target)


def compared(about: About, statistics: Statistics, target: str) -> Drift:
    """The verdict on every input of the model, and on all of them."""
    sides = [_sides(about, statistics, index) for index in range(len(about.inputs))]
    tested = [list(_tests(each)) for each in sides]
    corrected = iter(holm([p for tests in tested for _, _, p in tests]))
    tests = sum(map(len, tested))
    inputs = tuple(
        _judged(one, [(place, value, next(corrected)) for place, value, _ in each], tests, about)
        for one, each in zip(sides, tested, strict=True)
    )
    decided = [_verdict(each) for each in inputs]
    outcome = verdicts.overall(decided)
    return Drift(
        model=about.model,
        target=target,
        outcome=outcome,
        sentence=f"{outcome}: {verdicts.sentence(decided)}",
        started=verdicts.now(),
        begun=_time(min((each.begun for each in about.periods), default=about.written)),
        written=_time(about.written),
        seen=sum(each.seen for each in about.periods),
        kept=len(sides[0].seen),
        reference=about.reference,
        alpha=ALPHA,
        inputs=inputs,
        verdicts=tuple(decided),
        notes=tuple(_notes(about, sides)),
    )


def _sides(about: About, statistics: Statistics, index: int) -> _Sides:
    from optcli.serving.drift.input_statistics import checksums, names

    how, reference = about.inputs[index], statistics.reference[index]
    periods = [each[index] for each in statistics.periods]
    seen = np.concatenate([*periods, reference[:0]])
    # A row stands for as many as its period saw for each that it kept.
    weights = np.concatenate(
        [
            np.full(len(rows), max(period.seen, len(rows)) / max(len(rows), 1))
            for rows, period in zip(periods, about.periods, strict=True)
        ]
        or [np.zeros(0)]
    )
    weights = weights / weights.sum() if len(weights) else weights
    marks = checksums(reference, how.raw())
    repeated = are_distinct(marks)
    even = np.full(len(reference), 1 / max(len(reference), 1))
    return _Sides(
        how=how,
        columns=names(how.raw()),
        reference=reference,
        seen=seen,
        weights=weights,
        rows=effective(checksums(seen, how.raw()), weights, repeated=repeated),
        reference_rows=effective(marks, even, repeated=repeated),
    )


def _tests(sides: _Sides) -> Iterator[tuple[int, float, float]]:
    """The column, the distance and the p value of each statistic that varies at all."""
    if min(sides.rows, sides.reference_rows) < FEWEST:
        return
    even = np.full(len(sides.reference), 1 / len(sides.reference))
    for place, (name, _) in enumerate(sides.columns):
        first, second = sides.reference[:, place], sides.seen[:, place]
        if name in _UNTESTED or (first.min() == first.max() == second.min() == second.max()):
            continue
        value = distance(first, even, second, sides.weights)
        yield place, value, p_value(value, sides.reference_rows, sides.rows)


def _judged(
    sides: _Sides, tests: Sequence[tuple[int, float, float]], all_tests: int, about: About
) -> DriftInput:
    statistics = _ranked([_statistic(sides, *each) for each in tests])
    drifted = [each for each in statistics if each.drifted]
    shown = None
    if min(sides.rows, sides.reference_rows) > 0:
        shown = detectable(ALPHA, all_tests, sides.reference_rows, sides.rows)
    outcome: Outcome = "accept"
    if drifted:
        outcome = "reject"
        reason = f"{_words(drifted[0], sides.how, about.reference.role)}; {len(drifted)} of"
        reason += f" {counted(len(statistics), 'statistic')} drifted"
    elif shown is None or min(sides.rows, sides.reference_rows) < FEWEST or shown > COARSEST:
        outcome, reason = "inconclusive", _too_few(sides, all_tests)
    else:
        reason = f"none of {counted(len(statistics), 'statistic')} drifted; {sides.rows:.0f} inputs"
        reason += f" would have shown a distance of {shown:.2f}"
    return DriftInput(
        name=sides.how.name,
        outcome=outcome,
        reason=reason,
        rows=sides.rows,
        reference_rows=sides.reference_rows,
        detectable=None if shown is None else min(1.0, shown),
        tests=len(statistics),
        drifted=len(drifted),
        channels=tuple(_channels(sides)),
        statistics=tuple(statistics),
    )


def _statistic(sides: _Sides, place: int, distance: float, p: float) -> DriftStatistic:
    name, which = sides.columns[place]
    values = sides.reference[:, place].astype(float)
    mean, sd = float(values.mean()), float(values.std())
    seen = float(sides.weights @ sides.seen[:, place].astype(float))
    return DriftStatistic(
        statistic=name,
        channel=which,
        reference=mean,
        reference_sd=sd,
        seen=seen,
        shift_sd=(seen - mean) / sd if sd > _ROUNDING * abs(mean) else None,
        distance=distance,
        p=p,
        drifted=p <= ALPHA and distance >= LEAST,
    )


def _ranked(statistics: Sequence[DriftStatistic]) -> list[DriftStatistic]:
    """The farthest first; what drifted and is half as far begins, where it says more."""
    farthest = sorted(statistics, key=lambda one: (not one.drifted, -one.distance))
    near = [one for one in farthest if one.drifted and one.distance >= farthest[0].distance / 2]
    first = min(near, key=lambda one: _ORDER.index(one.statistic), default=None)
    return farthest if first is None else [first, *(one for one in farthest if one is not first)]


def _words(one: DriftStatistic, how: TensorSummary, role: str) -> str:
    """`channel 2: mean 0.61 in place of 0.42, 0.8 calibration sd higher (distance 0.41, p 2e-09)`."""
    noun = "feature" if how.single else "channel"
    named = f"{noun} {one.channel}: " if one.channel is not None else ""
    what = "number of values" if one.statistic == "size" else one.statistic
    text = f"{named}{what} {one.seen:.3g} in place of"
    text += f" {one.reference:.3g}"
    if one.shift_sd is not None:
        text += f", {abs(one.shift_sd):.1f} {role} sd {'higher' if one.shift_sd > 0 else 'lower'}"
    return f"{text} (distance {one.distance:.2f}, p {one.p:.1g})"


def _too_few(sides: _Sides, tests: int) -> str:
    """Why nothing is said, and what would do."""
    tests = tests or sum(name not in _UNTESTED for name, _ in sides.columns)
    both = math.log(FACTOR * tests / ALPHA) / (2 * COARSEST**2)
    if sides.reference_rows <= max(both, FEWEST):
        return (
            f"the reference has {sides.reference_rows:.0f} different samples, too few: about"
            f" {2 * both:.0f} are needed on both sides"
        )
    needed = max(FEWEST, both * sides.reference_rows / (sides.reference_rows - both))
    return f"{sides.rows:.0f} different inputs are too few: about {math.ceil(needed)} are needed"


def _channels(sides: _Sides) -> Iterator[DriftChannel]:
    from optcli.serving.drift.input_statistics import columns_of

    how, raw = sides.how, sides.how.raw()
    if not len(sides.seen):
        return
    of = {name: columns_of(raw, name) for name in ("mean", "std", "min", "max", "outside")}
    lows, highs = (of["mean"], of["mean"]) if how.single else (of["min"], of["max"])

    def seen(place: int) -> float:
        return float(sides.weights @ sides.seen[:, place])

    for channel in range(how.channels):
        spread = None if how.single else of["std"][channel]
        yield DriftChannel(
            channel=channel,
            reference_mean=float(sides.reference[:, of["mean"][channel]].mean()),
            seen_mean=seen(of["mean"][channel]),
            reference_std=None if spread is None else float(sides.reference[:, spread].mean()),
            seen_std=None if spread is None else seen(spread),
            reference_range=(how.low[channel], how.high[channel]),
            seen_range=(
                float(sides.seen[:, lows[channel]].min()),
                float(sides.seen[:, highs[channel]].max()),
            ),
            outside=seen(of["outside"][channel]),
        )


def _verdict(one: DriftInput) -> Verdict:
    return Verdict(
        name=f"drift of {one.name}",
        outcome=one.outcome,
        blocking=True,
        limit=LEAST,
        actual=one.statistics[0].distance if one.statistics else None,
        reason=one.reason,
    )


def _notes(about: About, sides: Sequence[_Sides]) -> Iterator[str]:
    if about.reference.role != "calibration":
        yield f"the recipe has no calibration data: its {about.reference.role} data are the reference"
    rows = len(sides[0].seen)
    different = min((each.rows for each in sides), default=0.0)
    if rows and different < rows / 2:
        yield (
            f"{rows} inputs count as {counted(round(different), 'different one')}: the same inputs come"
            " again, or the traffic of the days differs much"
        )


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
