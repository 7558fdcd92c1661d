"""From raw samples to what the report says: percentiles, intervals, speed-ups and flags."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from optcli.latency.samples import Measured, Opened, Series
from optcli.results import Estimate, Latency
from optcli.statistics import needed, percentile, percentile_over_rounds, ratio_interval, spread

FLUCTUATING = 0.10
NOT_FIT = 0.25
# A round counts as disturbed from this share of its calls interrupted, or of its time stolen, on.
_DISTURBED_CALLS = 0.05
_DISTURBED_TIME = 0.01


def to_results(measured: Measured) -> dict[str, tuple[Latency, ...]]:
    """What each artifact's row says, one entry per batch size; those with no samples are left out."""
    found = {
        name: tuple(_latency(measured, series) for series in measured.of(name))
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
            return ratio_interval(other.rounds, series.rounds)
    return None


def protocol(measured: Measured) -> dict[str, Any]:
    """How it was measured, in plain data: the report's `protocol`, the table's footer."""
    calls = [series.ns.shape[1] for series in measured.series]
    threads = {opened.threads for opened in measured.opened.values()}
    return {
        "mode": measured.settings["mode"],
        "region": "host",
        "launches": 1,
        "rounds": measured.settings["rounds"],
        "calls_per_round": [min(calls), max(calls)] if calls else None,
        "warmup_calls": measured.settings["warmup"],
        "lead_in_calls": measured.lead_in,
        "threads": sorted(threads),
        "order": "random in every round",
        "seed": measured.seed,
        "inputs": "real samples in rotation" if measured.real_inputs else "random",
        "groups": [list(group) for group in measured.groups],
        "skipped_batch_sizes": {str(size): why for size, why in measured.skipped.items()},
    }


def _latency(measured: Measured, series: Series) -> Latency:
    opened = measured.opened[series.name]
    mean_ms = float(series.ns.mean()) / 1e6
    percentiles = {f"p{q}_ms": _percentile(series, q / 100) for q in (90, 95, 99)}
    return Latency(
        batch_size=series.batch_size,
        threads=opened.threads,
        samples=int(series.ns.size),
        p50_ms=_percentile(series, 0.5) or Estimate(value=percentile(series.ns, 0.5) / 1e6),
        **percentiles,
        mean_ms=mean_ms,
        throughput_per_s=series.batch_size / mean_ms * 1e3,
        speedup=_over_baseline(measured, series),
        cpu_ms=sum(series.cpu_ns) / series.ns.size / 1e6,
        import_ms=opened.import_ms,
        load_ms=opened.load_ms,
        first_ms=series.first_ms,
        peak_memory_bytes=series.peak_memory_bytes,
        measured_at=measured.measured_at,
        flags=tuple(_flags(measured, series, opened)),
    )


def _percentile(series: Series, q: float) -> Estimate | None:
    found = percentile_over_rounds(series.rounds, q)
    if found is None:
        return None
    low, high = (None if bound is None else bound / 1e6 for bound in (found.low, found.high))
    return Estimate(value=found.value / 1e6, low=low, high=high)


def _over_baseline(measured: Measured, series: Series) -> Estimate | None:
    if series.name == measured.baseline:
        return Estimate(value=1.0, low=1.0, high=1.0)
    base = measured.beside(series, measured.baseline)
    return None if base is None else ratio_interval(base.rounds, series.rounds)


def _flags(measured: Measured, series: Series, opened: Opened) -> list[str]:
    count = int(series.ns.size)
    flags = [
        f"p{q} n/a (n={count}, needs {needed(q / 100)})"
        for q in (90, 95, 99)
        if count < needed(q / 100)
    ]
    share = spread(series.ns)
    if share > FLUCTUATING:
        word = "environment not fit" if share > NOT_FIT else "fluctuating"
        flags.append(f"{word} (IQR/median {share:.0%})".replace("%", " %"))
    flags += _disturbed(series)
    rounds, planned = len(series.ns), measured.settings["rounds"]
    if rounds < planned:
        flags.append(f"time cap: {rounds} of {planned} rounds")
    wanted = opened.wanted_threads
    if wanted is not None and opened.threads != wanted:
        flags.append(f"ran with {opened.threads} threads, wanted {wanted}")
    flags += opened.effective.get("flags", [])
    if series.name != measured.baseline and measured.beside(series, measured.baseline) is None:
        flags.append(f"no speed-up: the baseline {measured.baseline} could not be measured beside it")
    return flags


def _disturbed(series: Series) -> list[str]:
    calls = series.ns.shape[1]
    rounds = [
        (switches, steal_s)
        for switches, steal_s, ns in zip(series.switches, series.steal_s, series.ns, strict=True)
        if switches > _DISTURBED_CALLS * calls or steal_s > _DISTURBED_TIME * float(ns.sum()) / 1e9
    ]
    if not rounds:
        return []
    switches, steal_s = sum(each[0] for each in rounds), sum(each[1] for each in rounds)
    causes = [f"{switches} involuntary context switches"] if switches else []
    causes += [f"{steal_s:.2f} s stolen by the hypervisor"] if steal_s else []
    return [f"noisy: {len(rounds)} of {len(series.ns)} rounds ({', '.join(causes)})"]


def _with_notes(measured: Measured, name: str, rows: Sequence[Latency]) -> tuple[Latency, ...]:
    """Put what has no row of its own on the first: batch sizes left out, a failure on the way."""
    notes = [f"batch size {size} not measured: {why}" for size, why in measured.skipped.items()]
    if name in measured.failures:
        notes.append(measured.failures[name])
    first = rows[0].model_copy(update={"flags": (*rows[0].flags, *notes)})
    return (first, *rows[1:])
