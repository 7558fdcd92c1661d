"""What is to be said about a measurement beside its numbers: noise, caps, what is not there."""

from __future__ import annotations

from collections.abc import Sequence

from optcli.latency.fitness import (
    APART,
    FLUCTUATING,
    NOT_FIT,
    apart,
    counting,
    is_fit,
    lost_of,
    spread_of,
)
from optcli.latency.samples import Measured, Opened, Series
from optcli.statistics import needed

# Other work is worth a word where it took this share of the timed calls. Some always does: an idle
# machine interrupts each round once or twice.
_NOISY = 0.08
# How the flag of a row begins whose times decide nothing.
UNFIT = "environment not fit"
# Computing this much of the time in which others have their turns disturbs them.
_RESTLESS = 0.05


def flags_of(measured: Measured, series: Series) -> tuple[str, ...]:
    """All doubts about one artifact at one batch size."""
    counted = counting(measured, series)
    flags = _too_few(int(counted.ns.size))
    flags += [*fitness_flags(series, counted, fit=is_fit(measured, series)), *_starts(counted)]
    flags += _cut_short(measured, series)
    flags += _threads(measured.opened[series.name])
    flags += _restless(measured, series)
    flags += measured.opened[series.name].effective.get("flags", [])
    return tuple(flags)


def device_flags_of(measured: Measured, series: Series) -> tuple[str, ...]:
    """Doubts about the times on a device: what disturbs a processor is told of the whole calls."""
    flags = _too_few(int(series.ns.size))
    if spread_of(series) > FLUCTUATING:
        flags.append(f"fluctuating (IQR/median {spread_of(series) * 100:.0f} %)")
    return tuple(flags)


def _too_few(count: int) -> list[str]:
    return [
        f"p{q} n/a (n={count}, needs {needed(q / 100)})"
        for q in (90, 95, 99)
        if count < needed(q / 100)
    ]


def fitness_flags(series: Series, counted: Series, *, fit: bool) -> list[str]:
    """Why it is not fit, over all launches; else what is to be known of those that count.

    And what other work cost.
    """
    return [*_fitness(series, counted, fit), *_disturbed(counted)]


def _fitness(series: Series, counted: Series, fit: bool) -> list[str]:
    if not fit:
        shares = {"IQR/median": spread_of(series), "waiting for a processor": lost_of(series)}
        found = [f"{name} {share * 100:.0f} %" for name, share in shares.items() if share > NOT_FIT]
        if (times := apart(series)) > APART:
            found.append(f"launches {times:.2g} times apart")
        return [f"{UNFIT} ({', '.join(found or ['in too many launches'])})"]
    share = spread_of(counted)
    flags = [f"fluctuating (IQR/median {share * 100:.0f} %)"] if share > FLUCTUATING else []
    if left_out := len(series.ns) - len(counted.ns):
        flags.append(f"not counted: {left_out} of {len(series.ns)} rounds, the machine was not quiet")
    return flags


def _disturbed(series: Series) -> list[str]:
    """What other work cost over all rounds; a single round says little of calls by the thousand."""
    if lost_of(series) <= _NOISY:
        return []
    switches, steal_s = sum(series.switches), sum(series.steal_s)
    waited_s = sum(series.waited_ns) / 1e9
    causes = [f"{switches} involuntary context switches"] if switches else []
    causes += [f"{steal_s:.2f} s stolen by the hypervisor"] if steal_s else []
    causes += [f"{waited_s:.2f} s waiting for a processor"] if waited_s >= 0.005 else []
    return [f"noisy: {lost_of(series) * 100:.0f} % of the time lost ({', '.join(causes)})"]


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
