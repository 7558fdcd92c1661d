"""Reports and comparisons as CSV: one row per variant, batch size and region, unknown cells empty."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import Any

from optcli.report import wording
from optcli.report.changes.model import Comparison, SpeedChange, VariantChange
from optcli.results import Estimate, Latency, Report, VariantReport

Cells = dict[str, Any]


def csv_text(report: Report) -> str:
    """The columns are documented in the README. A variant without latency has one row without it."""
    found = []
    for name, variant in report.variants.items():
        for row in variant.latency or (None,):
            found.append(_cells(report, name, variant, row))
    return _written(found)


def csv_of_changes(comparisons: Sequence[Comparison]) -> str:
    """Variants that only one side has are left out."""
    return _written([cells for each in comparisons for cells in _changes(each)])


def _cells(report: Report, name: str, variant: VariantReport, row: Latency | None) -> Cells:
    runner, artifact, accuracy = variant.runner or {}, variant.artifact, variant.accuracy
    verdict, outcome = wording.verdict(variant, name == report.baseline)
    judged = variant.status in ("built", "cached")
    return {
        "recipe": report.recipe.name,
        "variant": name,
        "status": variant.status,
        "verdict": verdict if judged else "",
        "outcome": outcome if judged else "",
        "runtime": runner.get("name"),
        "precision": runner.get("precision") or (artifact.precision if artifact else None),
        "format": artifact.format if artifact else None,
        "size_bytes": artifact.size_bytes if artifact else None,
        "build_s": variant.build_s,
        **_latency(row),
        **_limits(variant, row),
        "metric": accuracy.metric if accuracy else None,
        "accuracy": accuracy.value if accuracy else None,
        "accuracy_samples": accuracy.samples if accuracy else None,
        **_estimate("accuracy_drop", accuracy.drop if accuracy else None),
        "sqnr_db": accuracy.output_error.sqnr_db if accuracy and accuracy.output_error else None,
        "reason": variant.reason,
        "not_measured": "; ".join(flag.kind for flag in variant.flags) or None,
    }


def _latency(row: Latency | None) -> Cells:
    plain = ("batch_size", "region", "threads", "launches", "samples")
    found: Cells = {name: getattr(row, name, None) for name in plain}
    for name in ("p50_ms", "p90_ms", "p95_ms", "p99_ms"):
        found |= _estimate(name, getattr(row, name, None))
    for name in ("mean_ms", "throughput_per_s"):
        found[name] = getattr(row, name, None)
    found |= _estimate("speedup", row.speedup if row else None)
    for name in ("over_fp32", "over_parent"):
        against = getattr(row, name, None)
        found |= {f"{name}_variant": against.variant if against else None}
        found |= _estimate(f"speedup_{name}", against.speedup if against else None)
    rest = ("cpu_ms", "import_ms", "load_ms", "first_ms", "peak_memory_bytes", "measured_at")
    found |= {name: getattr(row, name, None) for name in rest}
    return {
        **found,
        "fit": row.fit if row else None,
        "flags": "; ".join(flag.text for flag in row.flags) if row else None,
    }


def _limits(variant: VariantReport, row: Latency | None) -> Cells:
    """Of one call: operations, bytes at least, and the share of the machine's peak."""
    names = (
        *("operations", "moved_bytes", "share_of_peak", "bound_by"),
        *("share_of_peak_low", "share_of_peak_high"),
    )
    work = variant.operations
    if work is None or row is None or row.region == "device":
        return dict.fromkeys(names)
    share = next((each for each in work.shares if each.batch_size == row.batch_size), None)
    size = row.batch_size
    found = (share.share, share.bound, share.low, share.high) if share else (None,) * 4
    return dict(zip(names, (work.per_image * size, work.moved_bytes(size), *found), strict=True))


def _changes(comparison: Comparison) -> Iterator[Cells]:
    sides = {
        "before": comparison.before.label,
        "after": comparison.after.label,
        "comparable": comparison.comparable,
    }
    for variant in comparison.variants:
        for row in variant.latency or (None,):
            yield {
                **sides,
                "variant": variant.name,
                "variant_before": variant.name_before,
                "same_artifact": variant.same,
                "batch_size": row.batch_size if row else None,
                "region": row.region if row else None,
                **_speed("p50", row.p50 if row else SpeedChange()),
                **_speed("p95", row.p95 if row else SpeedChange()),
                **_speed("p99", row.p99 if row else SpeedChange()),
                **_rest(variant),
            }


def _speed(name: str, change: SpeedChange) -> Cells:
    return {
        **_estimate(f"{name}_before_ms", change.before),
        **_estimate(f"{name}_after_ms", change.after),
        **_estimate(f"{name}_ratio", change.ratio),
        f"{name}_outcome": change.outcome,
    }


def _rest(variant: VariantChange) -> Cells:
    accuracy = variant.accuracy
    return {
        "size_bytes_before": variant.size_bytes_before,
        "size_bytes": variant.size_bytes,
        "metric": accuracy.metric if accuracy else None,
        "accuracy_before": accuracy.before if accuracy else None,
        "accuracy": accuracy.after if accuracy else None,
        **_estimate("accuracy_difference", accuracy.difference if accuracy else None),
        "accuracy_outcome": accuracy.outcome if accuracy else None,
        "settings": "; ".join(variant.settings),
    }


def _estimate(name: str, estimate: Estimate | None) -> Cells:
    """The value and its interval: `p50_ms`, `p50_low_ms`, `p50_high_ms`."""
    stem, unit = (name[:-3], "_ms") if name.endswith("_ms") else (name, "")
    return {
        name: estimate.value if estimate else None,
        f"{stem}_low{unit}": estimate.low if estimate else None,
        f"{stem}_high{unit}": estimate.high if estimate else None,
    }


def _written(found: Sequence[Cells]) -> str:
    stream = io.StringIO()
    if found:
        writer = csv.DictWriter(stream, fieldnames=list(found[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)
    return stream.getvalue()
