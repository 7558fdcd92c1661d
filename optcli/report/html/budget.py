"""The service level that a build was judged by, as charts draw it."""

from __future__ import annotations

from dataclasses import dataclass

from optcli.results import Report
from optcli.results.outcomes import SERVICE_LEVELS


@dataclass(frozen=True)
class Budget:
    """A service level: the percentile it bounds and the bound in milliseconds."""

    percentile: str
    limit_ms: float


def budget_of(report: Report) -> Budget | None:
    """The service level that the build judged, p99 before p95 before p50; None where there is none."""
    limits: dict[str, float] = {}
    for variant in report.variants.values():
        for verdict in variant.verdicts:
            if verdict.limit is not None:
                limits[verdict.name] = verdict.limit
        if variant.sweep is not None and variant.sweep.budget is not None:
            limits.setdefault(SERVICE_LEVELS["p99"], variant.sweep.budget.p99_ms)
    for percentile, name in reversed(SERVICE_LEVELS.items()):
        if name in limits:
            return Budget(percentile, limits[name])
    return None
