"""How a comparison was measured, in plain data: the report's `protocol`, the table's footer."""

from __future__ import annotations

from typing import Any

from optcli.measure.latency.quality_flags import idle_share
from optcli.measure.latency.samples import Measured


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
