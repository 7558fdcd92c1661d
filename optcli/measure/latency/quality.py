"""How a comparison was measured, and what is doubtful about it: the report's protocol and flags."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from optcli.measure.latency.launches import (
    APART,
    FLUCTUATING,
    NOT_FIT,
    counting,
    is_fit,
    launch_spread,
    lost_of,
    spread_of,
)
from optcli.measure.latency.samples import Measured, OpenedArtifact, Series
from optcli.results import Flag, flags
from optcli.results.statistics import needed

# Other work is worth a word where it took this share of the timed calls. Some always does: an idle
# machine interrupts each round once or twice.
_NOISY = 0.08
# Computing this much of the time in which others have their turns disturbs them.
_RESTLESS = 0.05
# The quota stopped its processes for so long while all were measured.
_THROTTLED_S = 0.05


def flags_of(measured: Measured, series: Series) -> tuple[Flag, ...]:
    """All doubts about one artifact at one batch size."""
    counted, opened = counting(measured, series), measured.opened[series.name]
    return (
        *too_few(counted, (90, 95, 99)),
        *fitness_flags(series, counted, fit=is_fit(measured, series)),
        *_throttled(measured, series, counted),
        *_process_flags(measured, series, counted, opened),
        *(Flag.model_validate(flag) for flag in opened.effective.get("flags", ())),
    )


def device_flags_of(series: Series) -> tuple[Flag, ...]:
    """Doubts about the times on a device: what disturbs a processor is said of the whole calls."""
    return (*too_few(series, (90, 95, 99)), *_fluctuating(series))


def too_few(counted: Series, percentiles: Sequence[int]) -> list[Flag]:
    """Which of the percentiles the calls that count are too few for."""
    calls = int(counted.ns.size)
    return [
        flags.too_few_calls(q, calls, needed(q / 100)) for q in percentiles if calls < needed(q / 100)
    ]


def fitness_flags(series: Series, counted: Series, *, fit: bool) -> list[Flag]:
    """Why the series is not fit; else doubts about the rounds that count. And what other work cost."""
    if fit:
        doubts = _fluctuating(counted)
        rounds, left_out = len(series.ns), len(series.ns) - len(counted.ns)
        if left_out:
            doubts.append(flags.rounds_not_counted(left_out, rounds))
    else:
        spread, waited, times = spread_of(series), lost_of(series), launch_spread(series)
        not_fit = flags.environment_not_fit(
            spread=spread if spread > NOT_FIT else None,
            waited=waited if waited > NOT_FIT else None,
            apart=times if times > APART else None,
        )
        doubts = [not_fit]
    lost = lost_of(counted)
    if lost > _NOISY:  # over all rounds: a single one says little of calls by the thousand
        waited_s = sum(counted.waited_ns) / 1e9
        doubts.append(flags.noisy(lost, sum(counted.switches), sum(counted.steal_s), waited_s))
    return doubts


def _fluctuating(series: Series) -> list[Flag]:
    spread = spread_of(series)
    return [flags.fluctuating(spread)] if spread > FLUCTUATING else []


def _throttled(measured: Measured, series: Series, counted: Series) -> list[Flag]:
    """The CPU quota, where it may be what the threads of this artifact waited for."""
    before, after = (measured.conditions.get(when, {}) for when in ("before", "after"))
    seconds = after.get("throttled_s", 0.0) - before.get("throttled_s", 0.0)
    waited = lost_of(counted) > _NOISY or not is_fit(measured, series)
    return [flags.throttled(seconds, after["cpu_quota"])] if waited and seconds >= _THROTTLED_S else []


def _process_flags(
    measured: Measured, series: Series, counted: Series, opened: OpenedArtifact
) -> Iterator[Flag]:
    """Doubts about the launches, their processes and their threads."""
    settings, launches = measured.settings, series.launches
    unsteady = sum(start.steady is False for start in counted.starts)
    if unsteady:
        yield flags.unsteady(unsteady, len(counted.starts))
    if settings["mode"] == "table" and len(launches) < settings["launches"]:
        yield flags.fewer_launches(len(launches), settings["launches"])
    short = [len(rounds) for rounds in launches.values() if len(rounds) < settings["rounds"]]
    failed = series.name in measured.failures
    if short and not (failed and len(short) == 1):
        yield flags.time_cap(min(short), settings["rounds"], len(short), len(launches))
    if opened.wanted_threads not in (None, opened.threads):
        yield flags.other_thread_count(opened.threads, opened.wanted_threads)
    share = idle_share(measured, series)
    if share > _RESTLESS:
        yield flags.restless(share)


def idle_share(measured: Measured, series: Series) -> float:
    """Processor time between its turns, as a share of the others' timed calls."""
    others = sum(
        float(each.ns.sum())
        for each in measured.series
        if (each.batch_size, each.group) == (series.batch_size, series.group) and each is not series
    )
    return sum(series.idle_cpu_ns) / others if others else 0.0


def notes_of(measured: Measured, name: str) -> list[Flag]:
    """What has no row of its own: batch sizes left out, a failure on the way."""
    notes = [flags.batch_size_not_measured(size, why) for size, why in measured.skipped.items()]
    if name in measured.failures:
        notes.append(flags.stopped(measured.failures[name]))
    return notes


def protocol(measured: Measured) -> dict[str, Any]:
    """All that a reader needs to judge the numbers, or to measure them again."""
    calls = [series.ns.shape[1] for series in measured.series]
    starts = [start for series in measured.series for start in series.starts]
    warm = [start.warm_calls for start in starts]
    settings = measured.settings
    return {
        "mode": settings["mode"],
        "region": "host",
        "device_region": any(series.device_ns is not None for series in measured.series),
        "launches": max((len(series.launches) for series in measured.series), default=0),
        "launches_planned": settings["launches"],
        "rounds": settings["rounds"],
        "calls_per_round": [min(calls), max(calls)] if calls else None,
        "warmup_calls": settings["warmup"],
        "warmup": _WARMUP[settings["mode"]],
        "warm_calls": [min(warm), max(warm)] if warm else None,
        "lead_in_calls": measured.lead_in,
        "max_seconds": settings["max_seconds"],
        "threads": sorted({opened.threads for opened in measured.opened.values()}),
        "order": "random in every round",
        "seed": measured.seed,
        "inputs": "real samples in rotation" if measured.real_inputs else "random",
        "distinct_inputs": max((series.feeds for series in measured.series), default=0),
        "groups": [list(group) for group in measured.groups],
        "skipped_batch_sizes": {str(size): why for size, why in measured.skipped.items()},
        "processes": "fresh for each launch, open at once, one running at a time",
        "waiting": _waiting(measured),
        "seconds": _seconds(measured),
        "conditions": _conditions(measured),
    }


_WARMUP = {
    "quick": "a number of calls",
    "table": "until two successive windows of 0.2 s differ by less than 3 %, 10 s at most",
    "gate": "as many calls on both sides as the baseline took to be steady",
}


def _waiting(measured: Measured) -> dict[str, Any]:
    """How threads wait while others are measured, and what the processes computed meanwhile.

    `environment` was set before any import, by artifact; `idle_cpu` is a share of the others' time.
    """
    variables = {name: opened.environment for name, opened in measured.opened.items()}
    shares = [idle_share(measured, series) for series in measured.series]
    spinning = {
        name: opened.effective["spinning"]
        for name, opened in measured.opened.items()
        if "spinning" in opened.effective
    }
    return {
        "environment": variables,
        "spinning": spinning,
        "idle_cpu": round(max(shares, default=0.0), 4),
    }


def _seconds(measured: Measured) -> dict[str, float]:
    """Where the time went; `share_measuring` of it in warm-up and rounds."""
    seconds = dict(measured.seconds)
    wall = seconds.get("wall", 0.0)
    measuring = seconds.get("warm_up", 0.0) + seconds.get("timed", 0.0)
    seconds["share_measuring"] = measuring / wall if wall else 0.0
    return {name: round(value, 3) for name, value in seconds.items()}


def _conditions(measured: Measured) -> dict[str, Any]:
    """The machine before and after, and the share of its time that the hypervisor kept."""
    before, after = (measured.conditions.get(when, {}) for when in ("before", "after"))
    stolen = [each.get("steal_s") for each in (before, after)]
    share = None
    wall = measured.seconds.get("wall", 0.0)
    if stolen[0] is not None and stolen[1] is not None and wall:
        cores = len(before.get("affinity") or [0])
        share = round((stolen[1] - stolen[0]) / (wall * cores), 5)
    return {"before": before, "after": after, "steal": share}
