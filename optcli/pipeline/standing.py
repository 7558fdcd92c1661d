"""How variants stand beside each other: over the baseline, their parent, the fastest in fp32.

All of it from turns taken side by side. Where one side is not fit, or the baseline does not stand,
there is no ratio: nothing is compared with a substitute.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from optcli.pipeline.latency import LatencyResults
from optcli.pipeline.parents import changes_network, parent_of
from optcli.pipeline.plan import Plan, PlannedVariant
from optcli.results import Against, Estimate, Latency, VariantReport, flags


def beside(plan: Plan, measured: LatencyResults, *, baseline_stands: bool) -> LatencyResults:
    """What was measured, each row with its speed-up over the baseline and over its parent, if any."""
    parents = {variant.name: parent_of(variant, plan) for variant in plan.variants}
    base = measured.rows.get(plan.baseline, ()) if baseline_stands else ()

    def compared(name: str, row: Latency) -> Latency:
        if name == plan.baseline:
            return row if baseline_stands else row.model_copy(update={"speedup": None})
        updates: dict[str, object] = {}
        if not (_is_fit(measured.rows.get(name, ()), row) and _is_fit(base, row)):
            updates["speedup"] = None
        if not baseline_stands and row.speedup is not None:
            updates["flags"] = (*row.flags, flags.no_speedup("baseline-failed", plan.baseline))
        parent = parents.get(name)
        if row.region == "host" and parent is not None:
            updates["over_parent"] = _against(measured, name, parent, row.batch_size)
        return row.model_copy(update=updates)

    rows = {name: tuple(compared(name, row) for row in each) for name, each in measured.rows.items()}
    return replace(measured, rows=rows)


def _is_fit(rows: tuple[Latency, ...], where: Latency) -> bool:
    """Whether the whole calls at this batch size are there and fit, and what the device did of them."""
    fit_by_region = {row.region: row.fit for row in rows if row.batch_size == where.batch_size}
    return fit_by_region.get("host", False) and fit_by_region.get(where.region, False)


def _against(measured: LatencyResults, name: str, other: str, batch_size: int) -> Against | None:
    """The ratio of two variants; None where they took no turns together, or one of them is not fit."""
    for each in (name, other):
        rows = (row for row in measured.rows.get(each, ()) if row.region == "host")
        if not any(row.fit for row in rows if row.batch_size == batch_size):
            return None
    ratio = measured.ratio(name, other, batch_size)
    return None if ratio is None else Against(variant=other, speedup=ratio)


def beside_fp32(
    plan: Plan, measured: LatencyResults, variants: Mapping[str, VariantReport]
) -> dict[str, VariantReport]:
    """The variants, each row with its speed-up over the fastest accepted one in fp32 at its batch size.

    Of the unchanged network: what is pruned computes in fp32 as well, and is no reference for it.
    """
    fastest = _fastest_fp32(plan, variants)
    return {
        name: variant.model_copy(
            update={
                "latency": tuple(_over_fp32(measured, name, row, fastest) for row in variant.latency)
            }
        )
        for name, variant in variants.items()
    }


def _over_fp32(
    measured: LatencyResults, name: str, row: Latency, fastest: Mapping[int, str]
) -> Latency:
    reference = fastest.get(row.batch_size)
    if row.region != "host" or reference is None:
        return row
    if name == reference:
        same = Against(variant=name, speedup=Estimate(value=1.0, low=1.0, high=1.0))
        return row.model_copy(update={"over_fp32": same})
    return row.model_copy(update={"over_fp32": _against(measured, name, reference, row.batch_size)})


def _fastest_fp32(plan: Plan, variants: Mapping[str, VariantReport]) -> dict[int, str]:
    """By batch size; none where what seems to be the fastest was disturbed: it may be faster still."""
    fastest: dict[int, tuple[float, str, bool]] = {}
    for variant in plan.variants:
        report = variants[variant.name]
        if not _is_reference(variant, report):
            continue
        for row in report.on_host:
            if row.p50_ms.value < fastest.get(row.batch_size, (float("inf"), "", False))[0]:
                fastest[row.batch_size] = (row.p50_ms.value, variant.name, row.fit)
    return {size: name for size, (_, name, fit) in fastest.items() if fit}


def _is_reference(variant: PlannedVariant, report: VariantReport) -> bool:
    if report.status not in ("built", "cached") or report.artifact is None or changes_network(variant):
        return False
    precision = (report.runner or {}).get("precision") or report.artifact.precision
    refused = any(each.blocking and each.outcome != "accept" for each in report.verdicts)
    return precision == "fp32" and not refused
