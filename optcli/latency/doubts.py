"""What is to be said about a measurement beside its numbers: noise, caps, what is not there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from optcli.latency.samples import Measured, Opened, Series
from optcli.statistics import needed, spread

if TYPE_CHECKING:
    import numpy as np

# Of the interquartile range over the median, as torch.utils.benchmark has them; and of the share of
# the time in which something that could have run had no processor.
FLUCTUATING = 0.10
NOT_FIT = 0.25
# A round counts as disturbed from this share of its calls interrupted, or of its time lost, on.
_DISTURBED_CALLS = 0.05
_DISTURBED_TIME = 0.01
# Computing this much of the time in which others have their turns disturbs them.
_RESTLESS = 0.05
# An input's own median needs so many calls, else it would take noise for the input's.
_FEWEST_PER_FEED = 8


def flags_of(measured: Measured, series: Series) -> tuple[str, ...]:
    """All doubts about one artifact at one batch size."""
    flags = _too_few(int(series.ns.size))
    flags += [*_fitness(series), *_disturbed(series), *_starts(series)]
    flags += _cut_short(measured, series)
    flags += _threads(measured.opened[series.name])
    flags += _restless(measured, series)
    flags += measured.opened[series.name].effective.get("flags", [])
    if series.name != measured.baseline and measured.beside(series, measured.baseline) is None:
        flags.append(f"no speed-up: the baseline {measured.baseline} could not be measured beside it")
    return tuple(flags)


def device_flags_of(measured: Measured, series: Series) -> tuple[str, ...]:
    """Doubts about the times on a device: what disturbs a processor is told of the whole calls."""
    count = int(series.ns.size)
    flags = _too_few(count)
    if spread_of(series) > FLUCTUATING:
        flags.append(f"fluctuating (IQR/median {spread_of(series) * 100:.0f} %)")
    base = measured.beside(series, measured.baseline)
    if series.name != measured.baseline and (base is None or base.device_ns is None):
        flags.append(
            f"no speed-up on the device: nothing of the baseline {measured.baseline} ran there"
        )
    return tuple(flags)


def _too_few(count: int) -> list[str]:
    return [
        f"p{q} n/a (n={count}, needs {needed(q / 100)})"
        for q in (90, 95, 99)
        if count < needed(q / 100)
    ]


def spread_of(series: Series) -> float:
    """Interquartile range over the median, after each input's own median is taken out.

    A network that takes longer for some inputs is not a noisy machine.
    """
    import numpy as np

    turns = np.arange(series.ns.shape[1])[None, :] + np.array(series.first_feed)[:, None]
    feed = turns % series.feeds
    if series.ns.size < _FEWEST_PER_FEED * series.feeds:
        return spread(series.ns)
    usual = np.array([_median_of(series.ns[feed == each]) for each in range(series.feeds)])
    return spread(series.ns / usual[feed])


def _median_of(values: np.ndarray) -> float:
    """1 for an input that no timed call had."""
    import numpy as np

    return float(np.median(values)) if values.size else 1.0


def waited_of(series: Series) -> float:
    """The share of the timed calls in which a thread was ready to run and had no processor.

    Over all its threads together, so it can be above 1.
    """
    return sum(series.waited_ns) / float(series.ns.sum())


def is_fit(series: Series) -> bool:
    """Whether the machine was quiet enough for these times to decide anything."""
    return max(spread_of(series), waited_of(series)) <= NOT_FIT


def _fitness(series: Series) -> list[str]:
    shares = {"IQR/median": spread_of(series), "waiting for a processor": waited_of(series)}
    worst = max(shares.values())
    if worst <= FLUCTUATING:
        return []
    word = "environment not fit" if worst > NOT_FIT else "fluctuating"
    found = [f"{name} {share * 100:.0f} %" for name, share in shares.items() if share > FLUCTUATING]
    return [f"{word} ({', '.join(found)})"]


def _disturbed(series: Series) -> list[str]:
    calls = series.ns.shape[1]
    rows = zip(series.switches, series.steal_s, series.waited_ns, series.ns, strict=True)
    rounds = [
        (switches, steal_s, waited_ns)
        for switches, steal_s, waited_ns, ns in rows
        if switches > _DISTURBED_CALLS * calls
        or steal_s + waited_ns / 1e9 > _DISTURBED_TIME * float(ns.sum()) / 1e9
    ]
    if not rounds:
        return []
    switches, steal_s, waited_ns = (sum(column) for column in zip(*rounds, strict=True))
    causes = [f"{switches} involuntary context switches"] if switches else []
    causes += [f"{steal_s:.2f} s stolen by the hypervisor"] if steal_s else []
    causes += [f"{waited_ns / 1e9:.2f} s waiting for a processor"] if waited_ns >= 5e6 else []
    return [f"noisy: {len(rounds)} of {len(series.ns)} rounds ({', '.join(causes)})"]


def _starts(series: Series) -> list[str]:
    unsteady = sum(start.steady is False for start in series.starts)
    if not unsteady:
        return []
    return [f"unsteady: {_of(unsteady, len(series.starts))} not steady after warming up"]


def _cut_short(measured: Measured, series: Series) -> list[str]:
    settings = measured.settings
    flags = []
    launches = series.launches
    if measured.settings["mode"] == "table" and len(launches) < settings["launches"]:
        flags.append(f"fewer launches: {len(launches)} of {settings['launches']}")
    short = [len(rounds) for rounds in launches.values() if len(rounds) < settings["rounds"]]
    failed = series.name in measured.failures
    if short and not (failed and len(short) == 1):
        many = f" in {_of(len(short), len(launches))}" if len(launches) > 1 else ""
        flags.append(f"time cap: {min(short)} of {settings['rounds']} rounds{many}")
    return flags


def _threads(opened: Opened) -> list[str]:
    wanted = opened.wanted_threads
    if wanted is None or opened.threads == wanted:
        return []
    return [f"ran with {opened.threads} threads, wanted {wanted}"]


def _restless(measured: Measured, series: Series) -> list[str]:
    """Whether it computed while others were timed; the first turn of a launch follows its warm-up."""
    share = idle_share(measured, series)
    if share <= _RESTLESS:
        return []
    return [f"restless: it computed {share * 100:.0f} % of the time in which others were timed"]


def idle_share(measured: Measured, series: Series) -> float:
    """Processor time between its turns, as a share of the others' timed calls."""
    others = sum(
        float(each.ns.sum())
        for each in measured.series
        if (each.batch_size, each.group) == (series.batch_size, series.group) and each is not series
    )
    return sum(series.idle_cpu_ns) / others if others else 0.0


def _of(count: int, total: int) -> str:
    return f"{count} of {total} launches" if total > 1 else f"{count} launch"


def notes_of(measured: Measured, name: str) -> Sequence[str]:
    """What has no row of its own: batch sizes left out, a failure on the way."""
    notes = [f"batch size {size} not measured: {why}" for size, why in measured.skipped.items()]
    if name in measured.failures:
        notes.append(measured.failures[name])
    return notes
