"""A whole build: from a recipe to artifacts, measurements and one report. Joins all the parts."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from optcli import environment
from optcli.errors import InputError, OptcliError
from optcli.observer import Observer, Silent
from optcli.pipeline import device_reports, labels, on_devices, pictures, report_files, view
from optcli.pipeline.accuracy import EvaluationContext, judge
from optcli.pipeline.execute import BuildSettings, evaluating_nodes, require_ray
from optcli.pipeline.making import Phases, made_by, make, planned
from optcli.pipeline.places import MeasuringContext
from optcli.pipeline.plan import at_home
from optcli.recipe import Recipe
from optcli.results import Report
from optcli.results.serving import ServingChoice
from optcli.store import Store

# A third of what `optcli plan` simulates: the whole choice takes a second or so.
_REQUESTS = 10_000


def build(
    recipe: str | Path,
    *,
    store: Path | Store | None = None,
    artifacts: Path | None = None,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    settings: BuildSettings | None = None,
    remeasure: bool = False,
    observer: Observer | None = None,
) -> Report:
    """Build, measure and judge every variant of a recipe; gives the report that is also written.

    `store` is a folder, or a `Store` with a remote one; it defaults to OPTCLI_STORE with
    OPTCLI_REMOTE_STORE, else `artifacts/.store`. `artifacts` defaults to `artifacts` right here.
    `only` names variants (the baseline always takes part), `overrides` are `key=value` as with
    `--set`. `settings` say how many steps run at a time, for how long and where, and whom to trust.
    Raises `RecipeError` and `InputError` for what is wrong with the recipe, the model or the data,
    `MissingError` where a required variant cannot be built here, or no node of the cluster is a device
    of the recipe. A step that fails costs its variants: they are in the report, and in its `exit_code`.
    """
    began = environment.now()
    observer = observer or Silent()
    settings = settings or BuildSettings()
    phases = Phases()
    store = Store.of(store)
    require_ray(settings.ray, store)
    with ExitStack() as stack:
        stack.enter_context(store.connected(observer.warned))
        initial_plan = planned(Path(recipe), store, overrides, only)
        labels.say(initial_plan.recipe, observer)
        if settings.at_home:
            initial_plan = replace(initial_plan, recipe=at_home(initial_plan.recipe))
        folder = (artifacts or Path("artifacts")).absolute() / initial_plan.recipe.name
        devices_reached = stack.enter_context(
            on_devices.reached(settings.ray, initial_plan, store, observer)
        )
        made = make(initial_plan, store, observer, settings, phases, remeasure=remeasure)
        plan, built = made.plan, made.artifacts
        with view.alone(folder, observer):
            for variant in plan.variants:
                if variant.name in built:
                    view.place(folder / variant.name, built[variant.name], made_by(variant))
                else:  # what an earlier build left there is not what the report speaks of
                    view.remove(folder / variant.name)
            on_devices.clear(folder)
            # Before anything is measured: what is wrong with the data is found here.
            with phases.take("accuracy"), evaluating_nodes(settings.ray, store, observer) as nodes:
                context = EvaluationContext(
                    plan.recipe,
                    plan.role_keys.get("evaluation", ""),
                    store,
                    folder / "logs",
                    observer,
                    settings.timeout_s,
                    settings.jobs,
                    remeasure,
                    nodes,
                )
                judged, failures = judge(plan, built, context)
                wrong_data = failures.get(plan.baseline)
                if isinstance(wrong_data, InputError):  # they can judge no variant
                    raise wrong_data
                shown = pictures.of_build(plan, built, judged, context, folder)
            measuring = MeasuringContext(built, store, made.feeds, observer, remeasure)
            per_device = on_devices.measured(
                devices_reached, initial_plan, plan, folder, measuring, phases
            )
            reports = [
                device_reports.report_on(each, plan, made.done, judged, failures, store, began)
                for each in per_device
            ]
            report = device_reports.together(
                reports, [each.variants for each in devices_reached.devices]
            )
            serving = chosen(plan.recipe, report, folder)
            of_all = {"took_s": phases.took_s, "serving": serving}
            report = report_files.with_fields(report, {k: {"pictures": v} for k, v in shown.items()})
            report = report.model_copy(update=of_all)
            first, *others = [each.measured.quantiles for each in per_device]
            further = dict(zip(report.devices, others, strict=True))
            report_files.write(folder, report, report_files.Curves(first, further))
        store.digests.save()
        return report


def chosen(recipe: Recipe, report: Report, folder: Path) -> ServingChoice | None:
    """The configuration for the recommended variant, else the baseline; raw samples are in `folder`.

    None where the recipe names no rate or bounds no percentile, where nothing was measured, and where
    the choice fails for whatever reason: a build does not depend on it.
    """
    slo = recipe.slo
    if slo is None or slo.rate_per_s is None:
        return None
    quantiles = {name: int(name[1:-3]) / 100 for name in slo.percentiles_ms}
    limits_ms = {quantiles[name]: limit for name, limit in slo.percentiles_ms.items()}
    name = report.recommended or report.baseline
    if not limits_ms or name not in report.variants or not report.variants[name].on_host:
        return None
    try:
        return _choice(report, name, folder, slo.rate_per_s, limits_ms, recipe.seed)
    except (OptcliError, ArithmeticError, LookupError, ValueError) as error:
        logging.getLogger(__name__).info("no plan for the report", exc_info=error)
        return None


def _choice(
    report: Report, name: str, folder: Path, rate_per_s: float, limits_ms: dict[float, float], seed: int
) -> ServingChoice:
    from optcli.measure.latency.measured_curve import curve_of
    from optcli.measure.queueing.arrivals import Poisson
    from optcli.measure.queueing.choice import choose
    from optcli.measure.queueing.demand import Demand, Promise

    known = curve_of(report, name, folder / "report.json")
    slo_ms = {f"p{100 * q:g}": limit for q, limit in limits_ms.items()}
    short = ServingChoice(variant=name, rate_per_s=rate_per_s, slo_ms=slo_ms, kept=False)
    if known.unfit:
        return short.model_copy(update={"fit": False})
    demand = Demand(Poisson(rate_per_s), Promise(limits_ms), requests=_REQUESTS, seed=seed)
    choice = choose(known.curve, demand)
    best, prediction = choice.best, choice.prediction
    if best is None or prediction is None:
        return short
    figures = {"p50": prediction.p50_ms, "p95": prediction.p95_ms, "p99": prediction.p99_ms}
    return short.model_copy(
        update={
            "kept": True,
            "batch": best.batching.batch,
            "wait_ms": best.batching.wait_ms,
            "instances": best.batching.instances,
            "figures_ms": {name: figures[name].value for name in slo_ms},
            "padded_from": {
                size: first for first, size in known.curve.padded if first <= best.batching.batch
            },
        }
    )
