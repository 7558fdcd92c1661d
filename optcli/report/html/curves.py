"""Variants over batch sizes, and the service level of a build, as the operating curve draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optcli.report import wording
from optcli.results import Estimate, Report, SweepFit, VariantReport
from optcli.results.outcomes import SERVICE_LEVEL


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
            limits.setdefault(f"{SERVICE_LEVEL}p99_ms", variant.sweep.budget.p99_ms)
    for percentile in ("p99", "p95", "p50"):
        if (limit := limits.get(f"{SERVICE_LEVEL}{percentile}_ms")) is not None:
            return Budget(percentile, limit)
    return None


@dataclass(frozen=True)
class Point:
    """One batch size; `ms` is None where there were too few calls for the percentile that is drawn."""

    batch_size: int
    ms: Estimate | None
    throughput_per_s: float
    fit: bool = True

    def inside(self, budget: Budget | None) -> bool:
        """Whether the whole interval surely keeps the budget; true where there is none."""
        if budget is None:
            return True
        high = self.ms.high if self.ms is not None and self.fit else None
        return high is not None and high <= budget.limit_ms


@dataclass(frozen=True)
class Curve:
    """One variant over its batch sizes, ascending; `index` is its place in the report."""

    index: int
    name: str
    points: Sequence[Point]
    line: SweepFit | None

    @property
    def known(self) -> list[tuple[Point, Estimate]]:
        """The points that have a latency to draw."""
        return [(point, point.ms) for point in self.points if point.ms is not None]


def curves_of(report: Report, percentile: str) -> list[Curve]:
    """Every variant that was measured: its sweep where it has one, else what the table has."""
    fitted = percentile == "p50"  # what the line of a sweep goes through
    return [
        Curve(index, name, points, variant.sweep.fit if variant.sweep and fitted else None)
        for index, (name, variant) in enumerate(report.variants.items())
        if (points := _points(variant, percentile))
    ]


def _points(variant: VariantReport, percentile: str) -> list[Point]:
    rows = variant.sweep.points if variant.sweep and variant.sweep.points else variant.on_host
    points = [
        Point(row.batch_size, getattr(row, f"{percentile}_ms", None), row.throughput_per_s, row.fit)
        for row in rows
    ]
    return sorted(points, key=lambda point: point.batch_size)


def largest(curve: Curve, budget: Budget) -> str:
    """In words, from the measured batch sizes alone: larger ones may do as well."""
    inside = []
    for point in curve.points:
        if not point.inside(budget):
            break
        inside.append(point)
    bound = f"{budget.limit_ms:g} ms ({budget.percentile})"
    if not curve.known:
        return f"too few calls for {budget.percentile} to tell which batch size keeps {bound}"
    if not inside:
        return f"no measured batch size surely keeps {bound}"
    best = inside[-1]
    more = ", the largest measured" if best is curve.points[-1] else ""
    rate = wording.number(best.throughput_per_s)
    return f"up to batch size {best.batch_size}{more} inside {bound}: {rate} images a second"


def sizes_of(curves: Sequence[Curve]) -> list[int]:
    """All batch sizes, ascending."""
    return sorted({point.batch_size for curve in curves for point in curve.points})
