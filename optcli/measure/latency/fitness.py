"""Which launches count, and whether what was measured can decide anything.

Other work on the machine only ever slows a measurement down. It slows some artifacts more than others:
threads that wait for each other suffer far more than a single one, so a comparison does not cancel it.
It comes and goes within seconds, and on a shared host often only the times show it. A round was
disturbed where its threads had no processor, or where it is slower than the artifact's best launch. A
launch was disturbed where its calls spread.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from optcli.measure.latency.samples import Measured, Series
from optcli.results.statistics import percentile, spread

if TYPE_CHECKING:
    import numpy as np

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


def apart(series: Series) -> float:
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


def is_quiet(series: Series, asked: int) -> bool:
    """Whether so many launches count that the others may be left out; `asked` were asked for."""
    return len(counted_launches(series)) >= _fewest_launches(series, asked)


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
    asked = int(measured.settings["launches"])
    fewest = min(_PAIRS, *(_fewest_launches(series, asked) for series in (one, other)))
    return common if len(common) >= fewest else ()


def best_ratio(base: Series, other: Series) -> float:
    """How many times as fast `other` is, each side by the median of its best launch.

    Other work only slows a launch down: the best launch was disturbed least.
    """
    return min(_medians(base).values()) / min(_medians(other).values())


def agree(ratio: float, best: float) -> bool:
    """Whether the ratio of pairs and the ratio of best launches tell the same."""
    return abs(math.log(ratio / best)) <= DISAGREE


def _fewest_launches(series: Series, asked: int) -> int:
    """How many launches must count; an artifact that failed has only those before."""
    return min(_LAUNCHES, asked, len(series.launches))


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
