"""The rows of a report's tables, before any column is chosen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from optcli.results import Latency, Report, Share, VariantReport


@dataclass(frozen=True)
class Row:
    """One variant at one batch size in one region; no `latency` where it was not measured."""

    report: Report
    name: str
    variant: VariantReport
    latency: Latency | None

    @property
    def is_baseline(self) -> bool:
        """Whether the others are compared with it."""
        return self.name == self.report.baseline

    @property
    def runner(self) -> Mapping[str, Any]:
        """The runner's name and settings; empty where nothing was run."""
        return self.variant.runner or {}

    @property
    def format(self) -> str | None:
        """Of what was built; None where building failed or was skipped."""
        return self.variant.artifact.format if self.variant.artifact else None

    @property
    def precision(self) -> str | None:
        """What it effectively computes in; of what was not run, what it was built for."""
        built = self.variant.artifact.precision if self.variant.artifact else None
        return self.runner.get("precision") or built

    @property
    def size_bytes(self) -> int | None:
        """Of the artifact's files."""
        return self.variant.artifact.size_bytes if self.variant.artifact else None

    @property
    def share(self) -> Share | None:
        """How near this batch size came to the machine's limit."""
        work, latency = self.variant.operations, self.latency
        if work is None or latency is None:
            return None
        return next((each for each in work.shares if each.batch_size == latency.batch_size), None)


def batch_sizes(report: Report) -> tuple[int | None, ...]:
    """The batch sizes that have a section, ascending; (None,) where nothing was measured."""
    sizes = {row.batch_size for variant in report.variants.values() for row in variant.on_host}
    return tuple(sorted(sizes)) or (None,)


def accuracy_label(report: Report) -> str | None:
    """What the accuracy column shows: the metric, `SQNR` without labels, None: there is no column."""
    judged = [variant.accuracy for variant in report.variants.values() if variant.accuracy]
    metrics = [accuracy.metric for accuracy in judged if accuracy.metric]
    if metrics:
        return metrics[0].replace("top", "top-")
    return "SQNR" if any(accuracy.output_error for accuracy in judged) else None


def fastest_fp32(report: Report) -> dict[int, str]:
    """By batch size: the fastest variant in fp32, where it is another one than the baseline."""
    fastest = {
        row.batch_size: row.over_fp32.variant
        for variant in report.variants.values()
        for row in variant.on_host
        if row.over_fp32 is not None
    }
    return fastest if any(name != report.baseline for name in fastest.values()) else {}


def rows(report: Report, batch_size: int | None) -> list[Row]:
    """One row for each variant that has an artifact, in the recipe's order.

    From the second batch size on, variants that were not measured there are left out.
    """
    first = batch_size == batch_sizes(report)[0]
    chosen = []
    for name, variant in report.variants.items():
        latency = next((each for each in variant.on_host if each.batch_size == batch_size), None)
        if variant.artifact is not None and (latency or (first and not variant.latency)):
            chosen.append(Row(report, name, variant, latency))
    return chosen


def every_row(report: Report) -> list[Row]:
    """One row per variant, batch size and region; one without latency where a variant has none."""
    return [
        Row(report, name, variant, latency)
        for name, variant in report.variants.items()
        for latency in variant.latency or (None,)
    ]
