"""From what each device measured to one report: verdicts and a recommendation for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from optcli import environment
from optcli.errors import ExitCode, OptcliError
from optcli.pipeline import reporting, verdicts
from optcli.pipeline.execute import StepResult
from optcli.pipeline.exit_status import exit_status
from optcli.pipeline.latency import LatencyResults
from optcli.pipeline.on_devices import OnDevice
from optcli.pipeline.plan import BuildPlan, PlannedVariant
from optcli.pipeline.terms import terms_of
from optcli.pipeline.verdicts import changes_network, parent_of
from optcli.recipe import Recipe
from optcli.report import wording
from optcli.report.recommendation import Advice, recommend
from optcli.results import (
    Accuracy,
    Against,
    DeviceReport,
    DeviceVariant,
    Estimate,
    Latency,
    Report,
    VariantReport,
    flags,
)
from optcli.store import Store


def report_on(
    on_device: OnDevice,
    whole_plan: BuildPlan,
    done: Mapping[str, StepResult],
    judged: Mapping[str, Accuracy],
    failures: Mapping[str, OptcliError],
    store: Store,
    began: str,
) -> Report:
    """The report of a build as one device alone gives it.

    `whole_plan` has all variants, those that are measured on other devices alone among them.
    `failures` holds what went wrong while accuracy was judged.
    """
    recipe, plan = whole_plan.recipe, on_device.plan
    failures = {**on_device.failures, **failures}
    stands = plan.baseline in on_device.measured.rows and plan.baseline not in failures
    measured = compared(plan, on_device.measured, baseline_stands=stands)

    def about(variant: PlannedVariant, plan: BuildPlan) -> VariantReport:
        return verdicts.variant_report(
            variant, plan, done, measured, judged, failures, store, on_device.logs
        ).model_copy(update={"sweep": on_device.swept.get(variant.name)})

    there = {variant.name: about(variant, plan) for variant in plan.variants}
    there = compared_with_fp32(plan, measured, there)
    variants = {
        each.name: there[each.name]
        if each.name in there
        else _elsewhere(about(each, whole_plan), on_device)
        for each in whole_plan.variants
    }
    errors = {key: one.error for key, one in done.items() if one.error is not None} | failures
    advice = (
        _without_latency(recipe)
        if recipe.latency.is_off
        else recommend(there, plan.baseline, measured.ratio, first_only=_has_service_level(recipe))
    )
    end = exit_status(plan, variants, errors, advice)
    report = reporting.report(
        reporting.recipe_summary(recipe),
        plan.baseline,
        variants,
        packages=whole_plan.packages(),
        started=began,
        code=end.code,
        reason=end.reason,
        advice=advice,
        protocol=measured.protocol,
        machine=environment.machine(),
        judged_by=terms_of(recipe, store.digests).model_dump(mode="json"),
    )
    machine = {} if on_device.environment is None else {"environment": on_device.environment}
    return report.model_copy(update={**machine, "device": plan.device})


def _without_latency(recipe: Recipe) -> Advice:
    """What a build says that measured no latency."""
    needed = ["slo"] if recipe.slo is not None else []
    needed += ["latency.min_speedup"] if recipe.latency.min_speedup is not None else []
    open_ones = f", {wording.listed(needed)} not judged" if needed else ""
    sentence = f"Latency was not measured (latency: off){open_ones}: no variant is recommended."
    return Advice(recommended=None, sentence=sentence, by_batch={})


def together(reports: Sequence[Report], members: Sequence[Sequence[str]]) -> Report:
    """One report of those of several devices; `members` are the variants measured on each.

    The first one's figures stand in the report's own places, where whoever knows no devices reads them.
    The exit code is the first that applies of all.
    """
    first, *others = reports
    if not others:
        return first
    code = ExitCode.first_of([ExitCode(each.exit_code) for each in reports])
    deciding = (
        reports if code == ExitCode.DONE else [each for each in reports if each.exit_code == code]
    )
    devices = {
        str(each.device): _of_device(each, names)
        for each, names in zip(others, members[1:], strict=True)
    }
    return first.model_copy(
        update={
            "devices": devices,
            "exit_code": int(code),
            "exit_reason": "; ".join(f"on {each.device}: {each.exit_reason}" for each in deciding),
        }
    )


def _of_device(report: Report, names: Sequence[str]) -> DeviceReport:
    record = {name: getattr(report, name) for name in DeviceReport.model_fields}
    variants = {
        name: DeviceVariant(
            **{field: getattr(report.variants[name], field) for field in DeviceVariant.model_fields}
        )
        for name in names
    }
    return DeviceReport(**{**record, "variants": variants})


def _elsewhere(report: VariantReport, on_device: OnDevice) -> VariantReport:
    """A variant that is measured on other devices alone."""
    if report.status not in ("built", "cached") or report.reason is not None:
        return report
    return report.model_copy(update={"reason": f"not measured on {on_device.plan.device}"})


def _has_service_level(recipe: Recipe) -> bool:
    """Whether the recipe promises a bound: of latency, that is at the smallest batch size."""
    return recipe.slo is not None and bool(recipe.slo.bounds)


def compared(plan: BuildPlan, measured: LatencyResults, *, baseline_stands: bool) -> LatencyResults:
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


def compared_with_fp32(
    plan: BuildPlan, measured: LatencyResults, variants: Mapping[str, VariantReport]
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


def _fastest_fp32(plan: BuildPlan, variants: Mapping[str, VariantReport]) -> dict[int, str]:
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
