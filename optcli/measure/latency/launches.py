"""Launches: which of them count, and intervals over them.

A fresh process of the same artifact is what is repeated. Rounds of one process share where its memory
lies and how its threads are placed; calls of one round share what else the machine was doing. An
interval over calls would be far too narrow.

Other work on the machine only ever slows a measurement down. It slows some artifacts more than others:
threads that wait for each other suffer far more than a single one, so a comparison does not cancel it.
It comes and goes within seconds, and on a shared host often only the times show it. A round was
disturbed where its threads had no processor, or where it is slower than the artifact's best launch. A
launch was disturbed where its calls spread.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from optcli.measure.latency.samples import Measured, Series
from optcli.results import Estimate
from optcli.results.statistics import (
    moderated_interval,
    percentile,
    percentile_over_rounds,
    spread,
    t_interval,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike

# Of the interquartile range over the median (torch.utils.benchmark warns at 10 and 25 %; on an idle
# machine on a shared host it is 5 to 16 %), and, `NOT_FIT`, of the share of the time in which something
# that could have run had no processor. These bars, `APART` and the usual differences between launches
# are calibrated together by `benchmarks/headline.py`.
FLUCTUATING = 0.20
NOT_FIT = 0.30
# Launches of one artifact on a quiet machine differ by a few percent, beside busy neighbours on a host
# by up to 20 %. A round whose median is so many times that of the best launch was disturbed.
APART = 1.3
# A launch counts where so many of its rounds were quiet, and this share of them.
_ROUNDS = 2
_SHARE = 0.25
# By how much the mean ratio of launch pairs may differ from the ratio of each side's best launch.
DISAGREE = 0.15
# A row needs so many launches that count, unless fewer were asked for; a ratio so many of both sides.
_LAUNCHES = 3
_PAIRS = 2
# An input's own median needs so many calls, else it would take noise for the input's. A quick
# measurement of slow calls has seven of each.
_FEWEST_PER_FEED = 6


def spread_of(series: Series) -> float:
    """Interquartile range over the median within a launch; of several launches the median.

    After each input's own median is taken out: a network that takes longer for some inputs is not a
    noisy machine.
    """
    import numpy as np

    scaled, launches = _scaled(series), np.array(series.launch)
    return median(spread(scaled[launches == launch]) for launch in series.launches)


def lost_of(series: Series) -> float:
    """The share of the timed calls in which a thread was ready to run and had no processor.

    Other processes, or the hypervisor, had the processors then. The share is summed over all threads,
    so it can be above 1.
    """
    lost_ns = sum(series.waited_ns) + 1e9 * sum(series.steal_s)
    return lost_ns / float(series.ns.sum())


def launch_spread(series: Series) -> float:
    """The median of the slowest launch over the median of the best one."""
    medians = _medians(series).values()
    return max(medians) / min(medians)


def quiet_rounds(series: Series) -> tuple[int, ...]:
    """The rows of `ns` in which the machine was quiet, in order; only those of launches that count.

    The module's docstring says what makes a round or a launch count.
    """
    import numpy as np

    total_ns = series.ns.sum(axis=1)
    lost = (np.array(series.waited_ns) + 1e9 * np.array(series.steal_s)) / total_ns
    levels, scaled = _medians(series), _scaled(series)
    medians = np.median(scaled, axis=1) * [levels[launch] for launch in series.launch]
    by_launch: dict[int, list[int]] = {}
    for row, launch in enumerate(series.launch):
        by_launch.setdefault(launch, []).append(row)
    quiet: list[tuple[list[int], int]] = []
    for rows in by_launch.values():
        fewest = min(len(rows), max(_ROUNDS, math.ceil(_SHARE * len(rows))))
        calm = [row for row in rows if lost[row] <= NOT_FIT]
        if len(calm) >= fewest:
            quiet.append((calm, fewest))
    best = min((float(np.median(medians[rows])) for rows, _ in quiet), default=0.0)
    counted: list[int] = []
    for rows, fewest in quiet:
        close = [row for row in rows if medians[row] <= APART * best]
        if len(close) >= fewest and spread(scaled[close]) <= NOT_FIT:
            counted += close
    return tuple(sorted(counted))


def counted_launches(series: Series) -> tuple[int, ...]:
    """The launches in which the machine was quiet for long enough."""
    return tuple(dict.fromkeys(series.launch[row] for row in quiet_rounds(series)))


def is_fit(measured: Measured, series: Series) -> bool:
    """Whether the machine was quiet enough for these times to decide anything.

    Enough launches count: three, or all where fewer were asked for. In gate mode all pairs count, and
    the calls of all of them are judged.
    """
    if measured.settings["mode"] == "gate":
        return max(spread_of(series), lost_of(series)) <= NOT_FIT
    return is_quiet(series, int(measured.settings["launches"]))


def is_quiet(series: Series, launches: int) -> bool:
    """Whether so many launches count that the others may be left out; `launches` were asked for."""
    return len(counted_launches(series)) >= _fewest_launches(series, launches)


def counting(measured: Measured, series: Series) -> Series:
    """The rounds that figures are computed from: those that count, or all where too few launches do."""
    if measured.settings["mode"] == "gate" or not is_fit(measured, series):
        return series
    return series.rows(quiet_rounds(series))


def counted_together(measured: Measured, one: Series, other: Series) -> tuple[int, ...]:
    """The launches with rounds that count on both sides; none where they are too few for a ratio."""
    if not (is_fit(measured, one) and is_fit(measured, other)):
        return ()
    common = tuple(counting(measured, one).paired(counting(measured, other)))
    launches = int(measured.settings["launches"])
    fewest = min(_PAIRS, *(_fewest_launches(series, launches) for series in (one, other)))
    return common if len(common) >= fewest else ()


def best_ratio(base: Series, other: Series) -> float:
    """How many times as fast `other` is, each side by the median of its best launch.

    Other work only slows a launch down: the best launch was disturbed least.
    """
    return min(_medians(base).values()) / min(_medians(other).values())


def agree(ratio: float, best: float) -> bool:
    """Whether the ratio of pairs and the ratio of best launches tell the same."""
    return abs(math.log(ratio / best)) <= DISAGREE


def _fewest_launches(series: Series, launches: int) -> int:
    """How many launches must count; an artifact that failed has only those before."""
    return min(_LAUNCHES, launches, len(series.launches))


def _medians(series: Series) -> dict[int, float]:
    return {launch: percentile(rounds, 0.5) for launch, rounds in series.launches.items()}


def _scaled(series: Series) -> np.ndarray:
    """Calls over their launch's median, and over what their input usually takes; shaped as `ns`."""
    import numpy as np

    medians = _medians(series)
    scaled = series.ns / np.array([medians[launch] for launch in series.launch])[:, None]
    if scaled.size >= _FEWEST_PER_FEED * series.feeds:
        turns = np.arange(series.ns.shape[1])[None, :] + np.array(series.first_feed)[:, None]
        feed = turns % series.feeds
        for number in np.unique(feed):
            scaled[feed == number] /= np.median(scaled[feed == number])
    return np.asarray(scaled)


# So many launches tell themselves how they differ.
_ENOUGH = 5
# Fewer do not: three may agree by chance, or share a minute in which the machine was slow. Launches
# then count as differing by this much as well (standard deviation of the logarithm), which weighs as
# much as three launches. On a quiet machine it is 1 to 3 %; where neighbours share the host, 5 to 12 %:
# for the times of one artifact more than for the ratio of two, which drift together. Calibrated by
# `benchmarks/headline.py`.
_USUAL = 0.12
_USUAL_RATIO = 0.10
_WEIGHT = 2.0
# Peak memory differs by so much between launches of the same artifact.
MEMORY_SLACK_BYTES = 8_000_000


def percentile_over_launches(launches: Sequence[Sequence[ArrayLike]], q: float) -> Estimate | None:
    """The q-quantile of all samples with an interval over launches and rounds.

    `launches` holds the rounds of each launch. The logarithms of the launches' own quantiles give an
    interval around the common one. It is widened to the interval over all rounds: rare events make a
    tail, and some launches do not see them; and where a network has two speeds, the median may be
    either. With fewer than five launches the interval of the median reaches down to the best launch,
    since other work only slows.
    With one launch it is the interval over rounds, widened by what launches usually differ by.
    """
    rounds = [each for launch in launches for each in launch]
    over_rounds = percentile_over_rounds(rounds, q)
    if over_rounds is None:
        return None
    if len(launches) < 2:
        return of_one_launch(over_rounds, _USUAL)
    import numpy as np

    logs = [math.log(percentile(np.concatenate(launch), q)) for launch in map(list, launches)]
    centre, *ends = mean_interval(logs, _USUAL)
    lower, upper = (over_rounds.value * math.exp(end - centre) for end in ends)
    if over_rounds.low is not None and over_rounds.high is not None:
        lower, upper = min(lower, over_rounds.low), max(upper, over_rounds.high)
    if q == 0.5 and len(launches) < _ENOUGH:
        lower = min(lower, math.exp(min(logs)))
    return Estimate(value=over_rounds.value, low=lower, high=upper)


def ratio_over_launches(log_ratios: Sequence[float], *, best: float | None = None) -> Estimate | None:
    """How many times as fast, from one log ratio for each launch pair; None where there is none.

    The mean with the interval of `mean_interval`. `best` is the ratio of each side's best launch; the
    interval of few pairs holds it.
    """
    if not log_ratios:
        return None
    if len(log_ratios) == 1:
        return Estimate(value=math.exp(log_ratios[0]))
    interval = mean_interval(log_ratios, _USUAL_RATIO)
    value, low, high = (math.exp(each) for each in interval)
    if best is not None and len(log_ratios) < _ENOUGH:
        low, high = min(low, best), max(high, best)
    return Estimate(value=value, low=low, high=high)


def of_one_launch(estimate: Estimate | None, usual: float = _USUAL_RATIO) -> Estimate | None:
    """A figure over rounds of a single launch, its interval widened by what launches usually differ by.

    One launch cannot show that itself, and its rounds may agree to a tenth of a percent. `usual` is a
    standard deviation of the logarithm; by default that of the ratio of a pair of launches.
    """
    if estimate is None or estimate.low is None or estimate.high is None:
        return estimate
    _, _, reach = moderated_interval([0.0], usual, _WEIGHT)
    below = math.hypot(math.log(estimate.value / estimate.low), reach)
    above = math.hypot(math.log(estimate.high / estimate.value), reach)
    return Estimate(
        value=estimate.value,
        low=estimate.value * math.exp(-below),
        high=estimate.value * math.exp(above),
    )


def mean_interval(values: Sequence[float], usual: float) -> tuple[float, float, float]:
    """Mean, lower and upper bound of what launches gave: Student's t.

    Of fewer than five launches the variance is moderated by the usual one, of standard deviation
    `usual`.
    """
    if len(values) < _ENOUGH:
        return moderated_interval(values, usual, _WEIGHT)
    return t_interval(values)


def interval_over_launches(
    values: Sequence[float], slack: float | None = None
) -> tuple[float, float] | None:
    """Where the median of what each launch gave lies with 95 %; None where there is none above 0.

    `slack` is what launches usually differ by, in the unit of the values; None: as times do.
    """
    if not values or min(values) <= 0:
        return None
    middle = median(values)
    usual = _USUAL if slack is None else slack / middle
    _, low, high = (math.exp(each) for each in mean_interval([math.log(x) for x in values], usual))
    return min(low, middle), max(high, middle)


def in_ms(ns: Estimate) -> Estimate:
    """A figure in nanoseconds as one in milliseconds."""
    low, high = (None if bound is None else bound / 1e6 for bound in (ns.low, ns.high))
    return Estimate(value=ns.value / 1e6, low=low, high=high)


def is_surely_over(percentiles: Mapping[float, Estimate | None], limit_ms: float, lost: float) -> bool:
    """Whether the artifact itself breaks the limit, whatever other work did.

    `percentiles` go by their share (0.99), up to the one that is judged. `lost` is the share of the
    time in which other work had the processors. The calls that it slowed are among the slowest ones.
    They may make up a whole tail that is no larger than that share, so a percentile with a larger tail
    must be over the limit too.
    """
    return any(
        estimate is not None
        and estimate.low is not None
        and estimate.low > limit_ms
        and 1 - share >= lost
        for share, estimate in percentiles.items()
    )
