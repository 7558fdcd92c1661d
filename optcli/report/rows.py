"""The table's rows as text, before any layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from optcli.report import wording
from optcli.results import Latency, Report, VariantReport

# Instead of an interval, where the machine was not quiet enough for one to mean anything.
DISTURBED = "disturbed"


@dataclass(frozen=True)
class Row:
    """One variant at one batch size; every field is ready to be shown.

    `short` has figures with their intervals in few columns: `p50`, `p95`, `p99`, `speed-up`, `fp32`.
    """

    variant: str
    runtime: str
    precision: str
    size: str
    p50: str
    p50_interval: str
    p95: str
    p95_interval: str
    p99: str
    p99_interval: str
    rate: str
    speedup: str
    speedup_interval: str
    fp32: str
    fp32_interval: str
    accuracy: str
    change: str
    verdict: str
    outcome: str
    short: Mapping[str, str]
    device: str = ""
    operations: str = ""
    share: str = ""
    share_interval: str = ""


def batch_sizes(report: Report) -> tuple[int | None, ...]:
    """The batch sizes that have a section, ascending; (None,) where nothing was measured."""
    found = {row.batch_size for variant in report.variants.values() for row in variant.on_host}
    return tuple(sorted(found)) or (None,)


def accuracy_label(report: Report) -> str | None:
    """What the accuracy column shows: the metric, `SQNR` without labels, None: there is no column."""
    judged = [variant.accuracy for variant in report.variants.values() if variant.accuracy]
    metrics = [accuracy.metric for accuracy in judged if accuracy.metric]
    if metrics:
        return metrics[0].replace("top", "top-")
    return "SQNR" if any(accuracy.output_error for accuracy in judged) else None


def fastest_fp32(report: Report) -> dict[int, str]:
    """By batch size: the fastest variant in fp32, where it is another one than the baseline."""
    found = {
        row.batch_size: row.over_fp32.variant
        for variant in report.variants.values()
        for row in variant.on_host
        if row.over_fp32 is not None
    }
    return found if any(name != report.baseline for name in found.values()) else {}


def rows(report: Report, batch_size: int | None) -> list[Row]:
    """One row for each variant that has an artifact, in the recipe's order.

    From the second batch size on, variants that were not measured there are left out.
    """
    first = batch_size == batch_sizes(report)[0]
    labelled = accuracy_label(report) != "SQNR"
    found = []
    for name, variant in report.variants.items():
        latency = next((each for each in variant.on_host if each.batch_size == batch_size), None)
        if variant.artifact is not None and (latency or (first and not variant.latency)):
            found.append(_row(name, variant, latency, name == report.baseline, labelled))
    return found


def _row(
    name: str, variant: VariantReport, latency: Latency | None, is_baseline: bool, labelled: bool
) -> Row:
    assert variant.artifact is not None
    runner = variant.runner or {}
    accuracy = variant.accuracy
    fp32 = latency.over_fp32 if latency else None
    unfit = latency is not None and not latency.fit
    if labelled:
        right = wording.percent(accuracy.value if accuracy else None)
    else:
        error = accuracy.output_error if accuracy else None
        right = "reference" if is_baseline else wording.difference(error)
    short, outcome = wording.verdict(variant, is_baseline)
    if variant.status == "failed":
        short, outcome = "failed", "reject"
    return Row(
        variant=name,
        runtime=str(runner.get("name", variant.artifact.format)),
        precision=str(runner.get("precision") or variant.artifact.precision),
        size=wording.megabytes(variant.artifact.size_bytes),
        p50=wording.milliseconds(latency.p50_ms if latency else None),
        p50_interval=DISTURBED if unfit else wording.interval(latency.p50_ms if latency else None),
        p95=wording.milliseconds(latency.p95_ms if latency else None),
        p95_interval=wording.interval(latency.p95_ms if latency and latency.fit else None),
        p99=wording.milliseconds(latency.p99_ms if latency else None),
        p99_interval=wording.interval(latency.p99_ms if latency and latency.fit else None),
        rate=wording.number(latency.throughput_per_s) if latency else wording.NONE,
        speedup=wording.times(latency.speedup if latency else None),
        speedup_interval="" if is_baseline else wording.interval(latency.speedup if latency else None),
        fp32=wording.times(fp32.speedup if fp32 else None),
        fp32_interval=wording.interval(fp32.speedup) if fp32 and fp32.variant != name else "",
        accuracy=right,
        change="" if is_baseline else wording.change(accuracy),
        verdict=short,
        outcome=outcome,
        short=_short(latency, name, is_baseline),
        device=_on_device(variant, latency),
        **_near_the_limit(variant, latency),
    )


def _short(latency: Latency | None, name: str, is_baseline: bool) -> dict[str, str]:
    if latency is None:
        return dict.fromkeys(("p50", "p95", "p99", "speed-up", "fp32"), wording.NONE)
    fp32 = latency.over_fp32
    figures = (("p50", latency.p50_ms), ("p95", latency.p95_ms), ("p99", latency.p99_ms))
    found = {
        label: wording.milliseconds(each) + (wording.half_width(each) if latency.fit else "")
        for label, each in figures
    }
    if not latency.fit:
        found["p50"] += f" {DISTURBED}"
    found["speed-up"] = wording.times(latency.speedup)
    found["speed-up"] += "" if is_baseline else wording.half_width(latency.speedup)
    found["fp32"] = wording.times(fp32.speedup if fp32 else None)
    found["fp32"] += wording.half_width(fp32.speedup) if fp32 and fp32.variant != name else ""
    return found


def _on_device(variant: VariantReport, latency: Latency | None) -> str:
    """The median of the same calls on the device, with its interval."""
    row = variant.on_device.get(latency.batch_size) if latency else None
    return f"{wording.milliseconds(row.p50_ms)} {wording.interval(row.p50_ms)}".strip() if row else ""


def _near_the_limit(variant: VariantReport, latency: Latency | None) -> dict[str, str]:
    """Operations of a call in units of 10^9, and the share of what the machine can do at most."""
    work = variant.operations
    if work is None or latency is None:
        return {}
    share = next((each for each in work.shares if each.batch_size == latency.batch_size), None)
    operations = wording.number(work.per_image * latency.batch_size / 1e9)
    if share is None:
        return {"operations": operations, "share": wording.NONE}
    span = ""
    if share.low is not None and share.high is not None:
        span = f"[{_percent(share.low)}, {_percent(share.high)}]"
    shown = f"{_percent(share.share)} % ({share.bound})"
    return {"operations": operations, "share": shown, "share_interval": span}


def _percent(share: float) -> str:
    return f"{100 * share:.0f}" if share >= 0.1 else f"{100 * share:.1f}"
