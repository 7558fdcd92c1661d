"""Build: from a recipe to artifacts, measurements and one report. Joins all the parts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

from optcli import environment, report, results
from optcli.accuracy import require_metric
from optcli.artifact import Artifact
from optcli.build import latency, plugins, sweep, verdicts, view
from optcli.build.accuracy import Circumstances, judge
from optcli.build.execute import Done, Execution, Settings, log_of
from optcli.build.phases import Phases
from optcli.build.plan import Plan, PlannedVariant, plan
from optcli.errors import MissingError, OptcliError, RunnerError, StepError, UsageError, did_you_mean
from optcli.observer import Observer, Silent
from optcli.recipe import load
from optcli.report import html
from optcli.results import RecipeSummary, Report
from optcli.store import Store, explain

__all__ = ["build", "preview"]


def build(
    recipe: str | Path,
    *,
    store: Path | None = None,
    artifacts: Path | None = None,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    jobs: int = 1,
    keep_going: bool = True,
    timeout_s: float = 3600.0,
    remeasure: bool = False,
    observer: Observer | None = None,
) -> Report:
    """Build, measure and judge every variant of a recipe; gives the report that is also written.

    `store` defaults to OPTCLI_STORE, else `artifacts/.store`; `artifacts` to `artifacts` right here.
    `only` names variants (the baseline always takes part), `overrides` are `key=value` as with
    `--set`, `timeout_s` bounds each step. Raises `RecipeError` and `InputError` for what is wrong
    with the recipe, the model or the data, `MissingError` where a required variant cannot be built
    here. A step that fails costs its variants: they are in the report, and in its `exit_code`.
    """
    began = _now()
    observer = observer or Silent()
    phases = Phases()
    kept = Store(Store.default_root(store))
    planned = _plan(Path(recipe), kept, overrides, only)
    folder = (artifacts or Path("artifacts")).absolute() / planned.recipe.name
    with Execution(planned, kept, observer, Settings(jobs, keep_going, timeout_s)) as execution:
        try:
            with phases.take("data"):
                data = execution.prepare_data()
        except StepError as error:  # it died: of a sample that crashes a decoder, or for memory
            raise _with_log(error, "data", kept, planned.data_key) from error
        with phases.take("steps"):
            done = execution.run()
    _raise_what_fails_all(planned, done, kept)
    kept.digests.save()
    made = _made(planned, done)
    feeds = data.path / "probe.npz" if data else None
    with view.alone(folder, observer):
        for variant in planned.variants:
            if variant.name in made:
                view.place(folder / variant.name, made[variant.name], _made_by(variant))
            else:  # what an earlier build left there is not what the report speaks of
                view.remove(folder / variant.name)
        logs = folder / "logs"
        samples = folder / "samples.npz"
        with phases.take("latency"):
            measured = latency.measure(planned, made, kept, feeds, samples, logs, observer, remeasure)
        with phases.take("sweep"):
            swept = sweep.measure(planned, made, kept, feeds, logs, observer, remeasure)
        with phases.take("accuracy"):
            around = Circumstances(
                planned.recipe,
                planned.role_keys.get("evaluation", ""),
                kept,
                logs,
                observer,
                remeasure,
                timeout_s,
                jobs,
            )
            judged, failures = judge(planned, made, around)
        for name, reason in measured.failures.items():
            failures.setdefault(name, RunnerError(reason, place=f"{name} › latency"))
        found = _report(planned, done, measured, swept, judged, failures, kept, logs, began)
        found = found.model_copy(update={"took_s": phases.took_s})
        view.write(folder / "report.json", found.to_json() + "\n")
        view.write(folder / "report.md", report.markdown(found))
        view.write(folder / "report.html", html.page(found, measured.quantiles))
    kept.digests.save()
    return found


def preview(
    recipe: Path,
    *,
    store: Path | None = None,
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    explain: bool = False,
) -> tuple[list[str], dict[str, Any]]:
    """What a build would do, without doing it: lines to read, and the same as plain data.

    With `explain`, each step that must run comes with the ingredient that differs from the nearest
    result in the store.
    """
    kept = Store(Store.default_root(store))
    planned = _plan(recipe, kept, overrides, only)
    lines: list[str] = []
    record: dict[str, Any] = {"recipe": planned.recipe.name, "variants": {}}
    shown: set[str] = set()
    for variant in planned.variants:
        lines.append(f"{variant.name}  (runs in {variant.runner_name})")
        steps = []
        for step in variant.steps:
            cached = kept.sound("artifact", step.key) is not None
            state = "cached" if cached else "to do"
            lines.append(f"  {state:<7} {step.name:<20} {step.format.value:<10} {step.key[:12]}")
            steps.append({"name": step.name, "key": step.key, "cached": cached})
            if explain and not cached and step.key not in shown:
                why = _why(planned, kept, step.ingredients)
                lines.extend(f"          {line}" for line in why)
                steps[-1]["why"] = why
            shown.add(step.key)
        for one in variant.missing:
            lines.append(f"  skipped: {one.what} ({one.hint})")
        for one in variant.unmeasurable:
            lines.append(f"  not measured: {one.what} ({one.hint})")
        record["variants"][variant.name] = {
            "steps": steps,
            "missing": [one.what for one in variant.missing],
        }
    return lines, record


def _plan(path: Path, store: Store, overrides: Sequence[str], only: Sequence[str]) -> Plan:
    recipe = load(path, overrides)
    if recipe.accuracy is not None:
        require_metric(recipe.accuracy)
    for name in only:
        if name not in recipe.variants:
            hint = did_you_mean(name, list(recipe.variants))
            raise UsageError(f"the recipe has no variant {name!r}", place="--only", hint=hint)
    return plan(recipe, plugins.traits(recipe, store, store.digests), store.digests, only)


def _why(planned: Plan, store: Store, ingredients: dict[str, Any]) -> list[str]:
    wanted = {step.key: step.ingredients for v in planned.variants for step in v.steps}
    wanted.update(planned.data_roles)
    return list(explain(ingredients, store, "artifact", wanted).lines())


def _raise_what_fails_all(planned: Plan, done: dict[str, Done], store: Store) -> None:
    """A model that cannot be read fails every variant: that is an error, not a report."""
    key = planned.variants[0].steps[0].key
    source = done.get(key)
    if source is not None and isinstance(source.error, StepError):
        raise _with_log(source.error, "", store, key)
    if source is not None and source.error is not None:
        raise source.error
    if source is None:
        first = planned.variants[0].missing[0]
        raise MissingError(first.what, place=planned.variants[0].name, hint=first.hint)


def _with_log(error: StepError, place: str, store: Store, key: str | None) -> StepError:
    hint = f"log: {log_of(store, key)}" if key else ""
    hint = "; ".join(filter(None, (error.hint, hint)))
    return StepError(error.message, place=error.place or place, hint=hint)


def _made(planned: Plan, done: dict[str, Done]) -> dict[str, Artifact]:
    """The artifacts of all variants that were built."""
    return {
        variant.name: done[variant.last.key].artifact()
        for variant in planned.variants
        if variant.last.key in done and done[variant.last.key].status != "failed"
    }


def _made_by(variant: PlannedVariant) -> list[dict[str, Any]]:
    return [{"step": step.name, "key": step.key, **step.ingredients} for step in variant.steps]


def _report(
    planned: Plan,
    done: dict[str, Done],
    measured: latency.Found,
    swept: dict[str, results.Sweep],
    judged: dict[str, results.Accuracy],
    failures: dict[str, OptcliError],
    store: Store,
    logs: Path,
    began: str,
) -> Report:
    recipe = planned.recipe
    variants = {
        variant.name: verdicts.variant_report(
            variant, planned, done, measured, judged, failures, store, logs
        ).model_copy(update={"sweep": swept.get(variant.name)})
        for variant in planned.variants
    }
    errors = {key: one.error for key, one in done.items() if one.error is not None} | failures
    packages = {p for v in planned.variants for step in v.steps for p in step.needs.packages}
    packages |= {p for v in planned.variants for p in v.runner.needs.packages}
    recommended, sentence = report.recommend(variants, planned.baseline)
    return Report(
        recipe=RecipeSummary(name=recipe.name, path=str(recipe.path), digest=recipe.digest),
        environment=environment.describe(sorted(packages)),
        baseline=planned.baseline,
        recommended=recommended,
        recommendation=sentence,
        started=began,
        finished=_now(),
        exit_code=int(verdicts.exit_code(planned, variants, errors)),
        protocol=measured.protocol,
        variants=variants,
    )


class _Callable(ModuleType):
    """Importing this room hides the function of its name: `optcli.build(...)` calls it all the same."""

    __call__ = staticmethod(build)


sys.modules[__name__].__class__ = _Callable


def _now() -> str:
    return datetime.now(UTC).astimezone().isoformat(timespec="seconds")
