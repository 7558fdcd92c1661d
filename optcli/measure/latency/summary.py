"""From raw samples to what the report says: percentiles, intervals, speed-ups and their shape."""

from __future__ import annotations

import math
import zipfile
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from optcli.measure.latency.launches import (
    MEMORY_SLACK_BYTES,
    agree,
    best_ratio,
    counted_together,
    counting,
    in_ms,
    interval_over_launches,
    is_fit,
    lost_of,
    of_one_launch,
    percentile_over_launches,
    ratio_over_launches,
    spread_of,
)
from optcli.measure.latency.quality import device_flags_of, flags_of, notes_of
from optcli.measure.latency.samples import Measured, Series, load
from optcli.results import Estimate, Flag, Latency, flags
from optcli.results.statistics import log_ratios, needed, percentile, ratio_interval

if TYPE_CHECKING:
    import numpy as np

Region = Literal["host", "device"]


def to_results(measured: Measured) -> dict[str, tuple[Latency, ...]]:
    """What each artifact's row says, one entry per batch size; those with no samples are left out.

    Whole calls first (region `host`), then, where they were timed, the same calls on the device. Of
    the launches that count (see `optcli.measure.latency.launches`).
    """
    latencies: dict[str, tuple[Latency, ...]] = {}
    for name in measured.names:
        every = measured.of(name)
        timed_there = [series for series in every if series.device_ns is not None]
        rows = [_latency(measured, series) for series in every]
        rows += [_on_device(measured, series) for series in timed_there]
        if rows:
            # What has no row of its own stands with the first: sizes left out, a failure on the way.
            noted = (*rows[0].flags, *notes_of(measured, name))
            latencies[name] = (rows[0].model_copy(update={"flags": noted}), *rows[1:])
    return latencies


def speedup(measured: Measured, name: str, over: str, batch_size: int) -> Estimate | None:
    """How many times as fast one artifact is as another, in whole calls.

    None unless both took turns in one group, and where the machine was not fit for either.
    """
    for series in measured.series:
        if (series.name, series.batch_size) != (name, batch_size):
            continue
        other = measured.paired_with(series, over)
        if other is not None:
            return _ratio(measured, other, series)
    return None


@dataclass(frozen=True)
class Undecided:
    """The variants of a group that must be measured again, with the batch sizes."""

    names: tuple[str, ...]
    batch_sizes: tuple[int, ...]


def undecided(measured: Measured) -> dict[int, Undecided]:
    """By group, the comparisons with the baseline for which the machine was not fit.

    An artifact without a baseline beside it is judged alone. Artifacts that failed are left out: they
    would fail again.
    """
    names: dict[int, list[str]] = {}
    sizes: dict[int, list[int]] = {}
    for series in measured.series:
        if series.name in measured.failures:
            continue
        base = measured.paired_with(series, measured.baseline)
        alone = base is None or base is series or base.name in measured.failures
        if base is None or alone:
            decided = is_fit(measured, series)
        else:
            decided = _ratio(measured, base, series) is not None
        if decided:
            continue
        names.setdefault(series.group, []).extend([] if alone else [measured.baseline])
        names[series.group].append(series.name)
        sizes.setdefault(series.group, []).append(series.batch_size)
    return {
        group: Undecided(tuple(dict.fromkeys(group_names)), tuple(sorted(set(sizes[group]))))
        for group, group_names in names.items()
    }


def lost_p99(measured: Measured) -> bool:
    """Whether enough calls for p99 were timed of some artifact, and too few of them count."""
    enough = needed(0.99)
    return any(each.ns.size >= enough > counting(measured, each).ns.size for each in measured.series)


def pair_log_ratios(measured: Measured, name: str, batch_size: int, *, q: float = 0.5) -> list[float]:
    """ln(quantile of `name` / the baseline's), one value for each launch pair: above 0 is slower.

    Each is the median of the launch's rounds. Empty where the two were not measured side by side.
    """
    for series in measured.series:
        other = measured.paired_with(series, measured.baseline)
        if (series.name, series.batch_size) == (name, batch_size) and other is not None:
            return _launch_log_ratios(series, other, q)
    return []


def _launch_log_ratios(series: Series, other: Series, q: float = 0.5) -> list[float]:
    """ln(quantile of series / quantile of other): for each launch the median of its rounds'."""
    return [
        median(
            log_ratios(
                [candidate for candidate, _ in rounds], [reference for _, reference in rounds], q
            )
        )
        for rounds in series.paired(other).values()
    ]


def _ratio(measured: Measured, base: Series, other: Series, region: Region = "host") -> Estimate | None:
    """How many times as fast `other` is; None where the launches do not carry a ratio.

    Whole calls say which launches count, in either region.
    """
    launches = counted_together(measured, base, other)
    if not launches:
        return None
    counted = [counting(measured, each).only(launches) for each in (base, other)]
    base_counted, other_counted = (each if region == "host" else each.on_device() for each in counted)
    if base_counted is None or other_counted is None:
        return None
    if len(launches) == 1:
        rounds = [each for launch in base_counted.paired(other_counted).values() for each in launch]
        ratio = ratio_interval(
            [candidate for candidate, _ in rounds], [reference for _, reference in rounds]
        )
        return of_one_launch(ratio)
    best = best_ratio(base_counted, other_counted)
    ratio = ratio_over_launches(_launch_log_ratios(base_counted, other_counted), best=best)
    if measured.settings["mode"] == "gate":
        return ratio
    return ratio if ratio and agree(ratio.value, best) else None


def _latency(measured: Measured, series: Series) -> Latency:
    opened, counted = measured.opened[series.name], counting(measured, series)
    ratio, doubts = _over_baseline(measured, series, "host")
    return Latency(
        **_times(measured, counted),
        speedup=ratio,
        cpu_ms=sum(counted.cpu_ns) / counted.ns.size / 1e6,
        import_ms=median(opened.import_ms),
        load_ms=median(opened.load_ms),
        load_interval_ms=interval_over_launches(opened.load_ms),
        first_ms=median(start.first_ms for start in counted.starts),
        warm_calls=int(median(start.warm_calls for start in counted.starts)),
        peak_memory_bytes=_median(start.peak_memory_bytes for start in counted.starts),
        memory_interval_bytes=_memory_interval(counted),
        peak_gpu_memory_bytes=_median(start.peak_gpu_memory_bytes for start in counted.starts),
        waited=round(lost_of(counted), 4),
        fit=is_fit(measured, series),
        flags=(*flags_of(measured, series), *doubts),
    )


def _memory_interval(series: Series) -> tuple[int, int] | None:
    peaks = [each.peak_memory_bytes for each in series.starts if each.peak_memory_bytes is not None]
    interval = interval_over_launches(peaks, MEMORY_SLACK_BYTES)
    return None if interval is None else (math.floor(interval[0]), math.ceil(interval[1]))


def _on_device(measured: Measured, series: Series) -> Latency:
    """The row of the region `device`; memory, loading and processor time are in the row of `host`."""
    counted = counting(measured, series).on_device()
    assert counted is not None
    ratio, doubts = _over_baseline(measured, series, "device")
    return Latency(
        **_times(measured, counted),
        speedup=ratio,
        fit=is_fit(measured, series),
        flags=(*device_flags_of(counted), *doubts),
    )


def _times(measured: Measured, series: Series) -> dict[str, Any]:
    """What the raw samples alone say, whatever the region."""
    mean_ms = float(series.ns.mean()) / 1e6
    return {
        "batch_size": series.batch_size,
        "region": series.region,
        "threads": measured.opened[series.name].threads,
        "samples": int(series.ns.size),
        "p50_ms": _percentile(series, 0.5) or Estimate(value=percentile(series.ns, 0.5) / 1e6),
        **{f"p{q}_ms": _percentile(series, q / 100) for q in (90, 95, 99)},
        "mean_ms": mean_ms,
        "throughput_per_s": series.batch_size / mean_ms * 1e3,
        "launches": len(series.launches),
        "rounds": len(series.ns),
        "spread": round(spread_of(series), 4),
        "measured_at": measured.measured_at,
    }


def _median(values: Iterable[int | None]) -> int | None:
    """The median of the values that are known; None where none is."""
    figures = [value for value in values if value is not None]
    return int(median(figures)) if figures else None


def _percentile(series: Series, q: float) -> Estimate | None:
    estimate = percentile_over_launches(list(series.launches.values()), q)
    return None if estimate is None else in_ms(estimate)


def _over_baseline(
    measured: Measured, series: Series, region: Region
) -> tuple[Estimate | None, list[Flag]]:
    """The speed-up; where there is none, a flag that says why."""
    name = measured.baseline
    if series.name == name:
        return Estimate(value=1.0, low=1.0, high=1.0), []
    base = measured.paired_with(series, name)
    if region == "device" and (base is None or base.device_ns is None):
        return None, [flags.no_speedup_on_device(name)]
    if base is None:
        return None, [flags.no_speedup("baseline-not-beside", name)]
    ratio = _ratio(measured, base, series, region)
    if ratio is not None:
        return ratio, []
    launches = len(base.paired(series))
    unfit = tuple(each.name for each in (base, series) if not is_fit(measured, each))
    if unfit:
        return None, [flags.no_speedup("not-fit", name, unfit, launches)]
    together = counted_together(measured, base, series)
    why: flags.NoSpeedup = "launches-disagree" if together else "not-fit-together"
    return None, [flags.no_speedup(why, name, launches=launches)]


POINTS = 201
# What NumPy, zipfile and zlib raise over what is no whole .npz of ours.
_DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
)


def quantiles(measured: Measured) -> dict[str, dict[int, list[float]]]:
    """Milliseconds at evenly spaced probabilities from 0 to 1, by variant and batch size.

    Over the calls of an artifact's series that count, as in the table, whatever launch or round they
    belong to; four significant digits, as no chart shows more.
    """
    return {
        name: {
            series.batch_size: milliseconds(counting(measured, series).ns)
            for series in measured.of(name)
        }
        for name in measured.names
    }


def milliseconds(ns: np.ndarray) -> list[float]:
    """Milliseconds at `POINTS` evenly spaced probabilities, of nanoseconds of any shape."""
    import numpy as np

    return [float(f"{ms:.4g}") for ms in np.quantile(ns, np.linspace(0.0, 1.0, POINTS)) / 1e6]


def quantiles_of(samples: Path) -> dict[str, dict[int, list[float]]]:
    """From the raw samples beside a report; nothing where they are not there, or not readable."""
    try:
        return quantiles(load(samples))
    except _DAMAGED:
        return {}
