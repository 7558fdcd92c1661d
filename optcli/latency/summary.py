"""From raw samples to what the report says: percentiles, intervals, speed-ups and flags."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from optcli.latency.doubts import device_flags_of, flags_of, is_fit, notes_of, spread_of, waited_of
from optcli.latency.launches import of_one_launch, percentile_over_launches, ratio_over_launches
from optcli.latency.samples import Measured, Series
from optcli.results import Estimate, Latency
from optcli.statistics import log_ratios, percentile, ratio_interval


def to_results(measured: Measured) -> dict[str, tuple[Latency, ...]]:
    """What each artifact's row says, one entry per batch size; those with no samples are left out.

    Whole calls first (region `host`), then, where they were timed, the same calls on the device.
    """
    found = {
        name: (
            *(_latency(measured, series) for series in measured.of(name)),
            *(
                _on_device(measured, each)
                for series in measured.of(name)
                if (each := series.on_device())
            ),
        )
        for name in measured.names
    }
    return {name: _with_notes(measured, name, rows) for name, rows in found.items() if rows}


def speedup(measured: Measured, name: str, over: str, batch_size: int) -> Estimate | None:
    """How many times as fast one artifact is as another; None unless both took turns in one group."""
    for series in measured.series:
        if (series.name, series.batch_size) != (name, batch_size):
            continue
        other = measured.beside(series, over)
        if other is not None:
            return _ratio(other, series)
    return None


def pair_log_ratios(
    measured: Measured, name: str, batch_size: int, *, over: str | None = None, q: float = 0.5
) -> list[float]:
    """ln(quantile of `name` / quantile of `over`), one value for each launch pair: above 0 is slower.

    Each is the median of the launch's rounds. `over` is the baseline unless told otherwise. Empty where
    the two were not measured side by side.
    """
    for series in measured.series:
        other = measured.beside(series, over or measured.baseline)
        if (series.name, series.batch_size) == (name, batch_size) and other is not None:
            return _launch_log_ratios(series, other, q)
    return []


def _launch_log_ratios(series: Series, other: Series, q: float = 0.5) -> list[float]:
    """ln(quantile of series / quantile of other): for each launch the median of its rounds'."""
    return [
        median(log_ratios([mine for mine, _ in rounds], [theirs for _, theirs in rounds], q))
        for rounds in series.paired(other).values()
    ]


def _ratio(base: Series, other: Series) -> Estimate | None:
    paired = base.paired(other)
    if len(paired) > 1:
        return ratio_over_launches(_launch_log_ratios(base, other))
    rounds = [each for launch in paired.values() for each in launch]
    return of_one_launch(ratio_interval([mine for mine, _ in rounds], [theirs for _, theirs in rounds]))


def _latency(measured: Measured, series: Series) -> Latency:
    opened = measured.opened[series.name]
    return Latency(
        **_times(measured, series),
        speedup=_over_baseline(measured, series),
        cpu_ms=sum(series.cpu_ns) / series.ns.size / 1e6,
        import_ms=median(opened.import_ms),
        load_ms=median(opened.load_ms),
        first_ms=median(start.first_ms for start in series.starts),
        warm_calls=int(median(start.warm_calls for start in series.starts)),
        peak_memory_bytes=_median(start.peak_memory_bytes for start in series.starts),
        peak_gpu_memory_bytes=_median(start.peak_gpu_memory_bytes for start in series.starts),
        waited=round(waited_of(series), 4),
        fit=is_fit(series),
        flags=flags_of(measured, series),
    )


def _on_device(measured: Measured, series: Series) -> Latency:
    """What belongs to the process (memory, loading, processor time) stands with the whole calls."""
    return Latency(
        **_times(measured, series),
        speedup=_over_baseline(measured, series),
        flags=device_flags_of(measured, series),
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
    """Of those that are known."""
    known = [value for value in values if value is not None]
    return int(median(known)) if known else None


def _percentile(series: Series, q: float) -> Estimate | None:
    found = percentile_over_launches(list(series.launches.values()), q)
    if found is None:
        return None
    low, high = (None if bound is None else bound / 1e6 for bound in (found.low, found.high))
    return Estimate(value=found.value / 1e6, low=low, high=high)


def _over_baseline(measured: Measured, series: Series) -> Estimate | None:
    if series.name == measured.baseline:
        return Estimate(value=1.0, low=1.0, high=1.0)
    base = measured.beside(series, measured.baseline)
    if base is not None and series.region == "device":
        base = base.on_device()
    return None if base is None else _ratio(base, series)


def _with_notes(measured: Measured, name: str, rows: Sequence[Latency]) -> tuple[Latency, ...]:
    """Put what has no row of its own on the first: batch sizes left out, a failure on the way."""
    notes = notes_of(measured, name)
    first = rows[0].model_copy(update={"flags": (*rows[0].flags, *notes)})
    return (first, *rows[1:])
