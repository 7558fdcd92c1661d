"""From what each device measured to one report: verdicts and a recommendation for each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from optcli import environment
from optcli.errors import ExitCode, OptcliError
from optcli.pipeline import reporting, standing, verdicts
from optcli.pipeline.ending import ending
from optcli.pipeline.execute import StepResult
from optcli.pipeline.on_devices import OnDevice
from optcli.pipeline.plan import Plan, PlannedVariant
from optcli.pipeline.terms import terms_of
from optcli.recipe import Recipe
from optcli.report import recommend
from optcli.results import Accuracy, DeviceReport, DeviceVariant, Report, VariantReport
from optcli.store import Store


def report_on(
    found: OnDevice,
    whole: Plan,
    done: Mapping[str, StepResult],
    judged: Mapping[str, Accuracy],
    failures: Mapping[str, OptcliError],
    store: Store,
    began: str,
) -> Report:
    """The report of a build as one device alone gives it.

    `whole` has all variants: those that are measured on other devices alone are in the report too.
    `failures` holds what went wrong while accuracy was judged.
    """
    recipe, to_do = whole.recipe, found.plan
    failures = {**found.failures, **failures}
    stands = to_do.baseline in found.measured.rows and to_do.baseline not in failures
    measured = standing.beside(to_do, found.measured, baseline_stands=stands)

    def about(variant: PlannedVariant, plan: Plan) -> VariantReport:
        return verdicts.variant_report(
            variant, plan, done, measured, judged, failures, store, found.logs
        ).model_copy(update={"sweep": found.swept.get(variant.name)})

    there = {variant.name: about(variant, to_do) for variant in to_do.variants}
    there = standing.beside_fp32(to_do, measured, there)
    variants = {
        each.name: there[each.name] if each.name in there else _elsewhere(about(each, whole), found)
        for each in whole.variants
    }
    errors = {key: one.error for key, one in done.items() if one.error is not None} | failures
    advice = recommend(there, to_do.baseline, measured.ratio, first_only=_has_service_level(recipe))
    end = ending(to_do, variants, errors, advice)
    report = reporting.report(
        reporting.recipe_summary(recipe),
        to_do.baseline,
        variants,
        packages=whole.packages(),
        started=began,
        code=end.code,
        reason=end.reason,
        advice=advice,
        protocol=measured.protocol,
        machine=environment.machine(),
        judged_by=terms_of(recipe, store.digests).model_dump(mode="json"),
    )
    around = {} if found.environment is None else {"environment": found.environment}
    return report.model_copy(update={**around, "device": to_do.device})


def together(reports: Sequence[Report], members: Sequence[Sequence[str]]) -> Report:
    """One report of those of several devices; `members` are the variants measured on each.

    The first one's figures stand in the report's own places, where whoever knows no devices reads them.
    The exit code is the first that applies of all.
    """
    first, *others = reports
    if not others:
        return first
    code = ExitCode.first_of([ExitCode(each.exit_code) for each in reports])
    told = reports if code == ExitCode.DONE else [each for each in reports if each.exit_code == code]
    devices = {
        str(each.device): _of_device(each, names)
        for each, names in zip(others, members[1:], strict=True)
    }
    return first.model_copy(
        update={
            "devices": devices,
            "exit_code": int(code),
            "exit_reason": "; ".join(f"on {each.device}: {each.exit_reason}" for each in told),
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


def _elsewhere(report: VariantReport, found: OnDevice) -> VariantReport:
    """A variant that is measured on other devices alone."""
    if report.status not in ("built", "cached") or report.reason is not None:
        return report
    return report.model_copy(update={"reason": f"not measured on {found.plan.device}"})


def _has_service_level(recipe: Recipe) -> bool:
    """Whether the recipe promises a bound: of latency, that is at the smallest batch size."""
    return recipe.slo is not None and bool(recipe.slo.bounds)
