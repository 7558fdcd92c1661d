"""The pipeline: from a recipe to artifacts, measurements and one report. Joins all the parts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from optcli import environment, results
from optcli.errors import InputError, OptcliError, RunnerError
from optcli.observer import Observer, Silent
from optcli.pipeline import (
    latency,
    report_files,
    reporting,
    serving_choice,
    standing,
    sweep,
    verdicts,
    view,
)
from optcli.pipeline.accuracy import EvaluationContext, judge
from optcli.pipeline.ending import ending
from optcli.pipeline.execute import Settings, StepResult, evaluating_nodes, require_ray
from optcli.pipeline.making import made_by, make, planned
from optcli.pipeline.phases import Phases
from optcli.pipeline.plan import Plan
from optcli.pipeline.preview import preview
from optcli.pipeline.terms import terms_of
from optcli.recipe import Recipe
from optcli.report import recommend
from optcli.results import Report
from optcli.store import Store

__all__ = ["build", "preview"]


def build(
    recipe: str | Path,
    *,
    store: Path | Store | None = None,
    artifacts: Path | None = None,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    jobs: int = 1,
    keep_going: bool = True,
    timeout_s: float = 3600.0,
    remeasure: bool = False,
    trust: bool = False,
    ray: str | None = None,
    observer: Observer | None = None,
) -> Report:
    """Build, measure and judge every variant of a recipe; gives the report that is also written.

    `store` is a folder, or a `Store` with a remote one; it defaults to OPTCLI_STORE with
    OPTCLI_REMOTE_STORE, else `artifacts/.store`. `artifacts` defaults to `artifacts` right here.
    `only` names variants (the baseline always takes part), `overrides` are `key=value` as with
    `--set`, `timeout_s` bounds each step. `trust` opens a model that a scan cannot prove harmless.
    `ray` has passes and evaluations run on a Ray cluster: `auto`, the address of its head, or `local`.
    Raises `RecipeError` and `InputError` for what is wrong with the recipe, the model or the data,
    `MissingError` where a required variant cannot be built here. A step that fails costs its variants:
    they are in the report, and in its `exit_code`.
    """
    began = environment.now()
    observer = observer or Silent()
    phases = Phases()
    kept = Store.of(store)
    require_ray(ray, kept)
    with kept.connected(observer.warned):
        to_do = planned(Path(recipe), kept, overrides, only)
        folder = (artifacts or Path("artifacts")).absolute() / to_do.recipe.name
        how = Settings(jobs, keep_going, timeout_s, trust, ray)
        made = make(to_do, kept, observer, how, phases, remeasure=remeasure)
        to_do = made.plan
        built, feeds = made.artifacts, made.feeds
        with view.alone(folder, observer):
            for variant in to_do.variants:
                if variant.name in built:
                    view.place(folder / variant.name, built[variant.name], made_by(variant))
                else:  # what an earlier build left there is not what the report speaks of
                    view.remove(folder / variant.name)
            logs = folder / "logs"
            samples = folder / "samples.npz"
            # Before anything is measured: what is wrong with the data is found here.
            with phases.take("accuracy"), evaluating_nodes(ray, kept, observer) as nodes:
                around = EvaluationContext(
                    to_do.recipe,
                    to_do.role_keys.get("evaluation", ""),
                    kept,
                    logs,
                    observer,
                    timeout_s,
                    jobs,
                    remeasure,
                    nodes,
                )
                judged, failures = judge(to_do, built, around)
                wrong_data = failures.get(to_do.baseline)
                if isinstance(wrong_data, InputError):  # they can judge no variant
                    raise wrong_data
            with phases.take("latency"):
                measured = latency.measure(
                    to_do, built, kept, feeds, samples, logs, observer, remeasure
                )
            with phases.take("sweep"):
                swept = sweep.measure(to_do, built, kept, feeds, logs, observer, remeasure)
            for name, reason in measured.failures.items():
                failures.setdefault(name, RunnerError(reason, place=f"{name} › latency"))
            report = _report(to_do, made.done, measured, swept, judged, failures, kept, logs, began)
            serving = serving_choice.chosen(to_do.recipe, report, folder)
            report = report.model_copy(update={"took_s": phases.took_s, "serving": serving})
            report_files.write(folder, report, measured.quantiles)
        kept.digests.save()
        return report


def _report(
    to_do: Plan,
    done: dict[str, StepResult],
    measured: latency.LatencyResults,
    swept: dict[str, results.Sweep],
    judged: dict[str, results.Accuracy],
    failures: dict[str, OptcliError],
    store: Store,
    logs: Path,
    began: str,
) -> Report:
    recipe = to_do.recipe
    stands = to_do.baseline in measured.rows and to_do.baseline not in failures
    measured = standing.beside(to_do, measured, baseline_stands=stands)
    variants = {
        variant.name: verdicts.variant_report(
            variant, to_do, done, measured, judged, failures, store, logs
        ).model_copy(update={"sweep": swept.get(variant.name)})
        for variant in to_do.variants
    }
    variants = standing.beside_fp32(to_do, measured, variants)
    errors = {key: one.error for key, one in done.items() if one.error is not None} | failures
    packages = {p for v in to_do.variants for step in v.steps for p in step.needs.packages}
    packages |= {p for v in to_do.variants for p in v.runner.needs.packages}
    advice = recommend(variants, to_do.baseline, measured.ratio, first_only=_has_service_level(recipe))
    end = ending(to_do, variants, errors, advice)
    return reporting.report(
        reporting.recipe_summary(recipe),
        to_do.baseline,
        variants,
        packages=packages,
        started=began,
        code=end.code,
        reason=end.reason,
        advice=advice,
        protocol=measured.protocol,
        machine=environment.machine(),
        judged_by=terms_of(recipe, store.digests).model_dump(mode="json"),
    )


def _has_service_level(recipe: Recipe) -> bool:
    """Whether the recipe promises a latency: that is at the smallest batch size."""
    slo = recipe.slo
    return slo is not None and any((slo.p50_ms, slo.p95_ms, slo.p99_ms))
