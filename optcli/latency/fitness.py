"""Which launches count, and whether what was measured can decide anything.

What disturbs a measurement only slows it down, and not all alike: threads that wait for each other
suffer far more than a single one, so a comparison does not cancel it. A launch tells of it by calls
that spread, by threads that had no processor, and, where it was disturbed from beginning to end, by
being slower than the artifact's other launches.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from optcli.latency.samples import Measured, Series
from optcli.statistics import percentile, spread

if TYPE_CHECKING:
    import numpy as np

# Of the interquartile range over the median, as torch.utils.benchmark has them; and of the share of
# the time in which something that could have run had no processor.
FLUCTUATING = 0.10
NOT_FIT = 0.25
# Launches of one artifact on a quiet machine differ by a few percent. One whose median is so many
# times that of the best was disturbed from beginning to end.
APART = 1.2
# By how much the mean ratio of launch pairs may differ from the ratio of each side's best launch.
DISAGREE = 0.15
# A row needs so many launches that count, unless fewer were asked for; a ratio so many of both sides.
_LAUNCHES = 3
_PAIRS = 2
# An input's own median needs so many calls, else it would take noise for the input's.
_FEWEST_PER_FEED = 8


def spread_of(series: Series) -> float:
    """Interquartile range over the median within a launch; of several launches the median.

    After each input's own median is taken out: a network that takes longer for some inputs is not a
    noisy machine.
    """
    return median(_spreads(series).values())


def lost_of(series: Series) -> float:
    """The share of the timed calls in which a thread was ready to run and had no processor.

    Because others had them, or the hypervisor. Over all its threads, so it can be above 1.
    """
    lost_ns = sum(series.waited_ns) + 1e9 * sum(series.steal_s)
    return lost_ns / float(series.ns.sum())


def apart(series: Series) -> float:
    """How many times the median of its best launch that of its slowest launch is."""
    medians = _medians(series).values()
    return max(medians) / min(medians)


def counted_launches(series: Series) -> tuple[int, ...]:
    """The launches in which the machine was quiet, as far as these tell: see the module's words."""
    spreads, medians = _spreads(series), _medians(series)
    quiet = [
        launch for launch in medians if max(spreads[launch], lost_of(series.only([launch]))) <= NOT_FIT
    ]
    best = min((medians[launch] for launch in quiet), default=0.0)
    return tuple(launch for launch in quiet if medians[launch] <= APART * best)


def is_fit(measured: Measured, series: Series) -> bool:
    """Whether the machine was quiet enough for these times to decide anything.

    Enough launches count: three, or all where fewer were asked for. In gate mode all pairs count, and
    the calls of all of them are judged.
    """
    if measured.settings["mode"] == "gate":
        return max(spread_of(series), lost_of(series)) <= NOT_FIT
    return len(counted_launches(series)) >= _wanted(measured, series)


def counting(measured: Measured, series: Series) -> Series:
    """What figures are made of: the launches that count; all of them where too few do."""
    if measured.settings["mode"] == "gate" or not is_fit(measured, series):
        return series
    return series.only(counted_launches(series))


def counted_together(measured: Measured, one: Series, other: Series) -> tuple[int, ...]:
    """The launches that count on both sides; none where they are too few for a ratio."""
    if not (is_fit(measured, one) and is_fit(measured, other)):
        return ()
    both = [counting(measured, each) for each in (one, other)]
    common = tuple(launch for launch in both[0].paired(both[1]))
    wanted = min(_PAIRS, *(_wanted(measured, each) for each in (one, other)))
    return common if len(common) >= wanted else ()


def best_ratio(base: Series, other: Series) -> float:
    """How many times as fast `other` is, each side by the median of its best launch.

    Of a disturbance that only slows, the best launch has least.
    """
    return min(_medians(base).values()) / min(_medians(other).values())


def agree(ratio: float, best: float) -> bool:
    """Whether the ratio of pairs and the ratio of best launches tell the same."""
    return abs(math.log(ratio / best)) <= DISAGREE


def _wanted(measured: Measured, series: Series) -> int:
    """How many launches must count; an artifact that failed has only those before."""
    return min(_LAUNCHES, int(measured.settings["launches"]), len(series.launches))


def _medians(series: Series) -> dict[int, float]:
    import numpy as np

    return {
        launch: percentile(np.concatenate(rounds), 0.5) for launch, rounds in series.launches.items()
    }


def _spreads(series: Series) -> dict[int, float]:
    """By launch."""
    import numpy as np

    medians = _medians(series)
    levels = np.array([medians[launch] for launch in series.launch])
    scaled = series.ns / levels[:, None]
    if scaled.size >= _FEWEST_PER_FEED * series.feeds:
        turns = np.arange(series.ns.shape[1])[None, :] + np.array(series.first_feed)[:, None]
        feed = turns % series.feeds
        usual = np.array([_median_of(scaled[feed == each]) for each in range(series.feeds)])
        scaled = scaled / usual[feed]
    launches = np.array(series.launch)
    return {launch: spread(scaled[launches == launch]) for launch in medians}


def _median_of(values: np.ndarray) -> float:
    """1 for an input that no timed call had."""
    import numpy as np

    return float(np.median(values)) if values.size else 1.0
