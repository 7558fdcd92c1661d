"""`optcli tune`: from a promise to the fastest artifact that keeps it, within a time.

The search chooses by validation samples. What it chose is then built as variants of an ordinary recipe,
measured together, and judged on the evaluation samples, which the search never saw.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli import environment, passes, user_code
from optcli.accuracy import require_metric
from optcli.artifact import Format
from optcli.digest import of_value
from optcli.errors import RecipeError, UsageError, did_you_mean
from optcli.observer import Observer, Silent
from optcli.paths import shown
from optcli.pipeline import report_files
from optcli.pipeline.accuracy import Nodes
from optcli.pipeline.execute import Settings, evaluating_nodes, require_ray
from optcli.pipeline.plan import plan, source_of
from optcli.pipeline.terms import judging_code
from optcli.recipe import Recipe, load
from optcli.report import tuning_words
from optcli.results.tuning import Tuning, TuningTrial
from optcli.settings import batch_range
from optcli.settings.tuning import Objective
from optcli.store import Store
from optcli.tuning import causes, finalists, judgement, rules, tuned_recipe
from optcli.tuning.budget import Budget
from optcli.tuning.display import Display
from optcli.tuning.space import Space
from optcli.tuning.strategy import Strategy
from optcli.tuning.study import Study
from optcli.tuning.trial_facts import best_of, surest_of
from optcli.tuning.trials import WITHOUT_METRIC, Trials
from optcli.tuning.validation import Validation, validation_of
from optcli.tuning.workshop import Workshop

# Where so many seconds are left for the finalists, why INT8 does not pay is looked into before.
_FOR_A_CAUSE_S = 60.0
# An excess by less than this share of the budget is not worth a warning: it is an estimate.
_WARNED_SHARE = 0.05
_INTERRUPTED = "it was interrupted"
_RUNTIMES = ("openvino", "onnxruntime", "torch", "nncf")


@dataclass(frozen=True)
class _Start:
    """What a search begins with: the recipe, the variant to compare with, the samples."""

    recipe: Recipe
    overrides: tuple[str, ...]
    baseline: tuple[str, Mapping[str, Any]]
    validation: Validation


def tune(
    recipe: str | Path,
    *,
    minutes: float | None = None,
    objective: Objective | None = None,
    batch_size: int | None = None,
    seed: int | None = None,
    out: Path | None = None,
    restart: bool = False,
    store: Path | Store | None = None,
    artifacts: Path | None = None,
    overrides: Sequence[str] = (),
    jobs: int = 1,
    timeout_s: float = 3600.0,
    trust: bool = False,
    ray: str | None = None,
    observer: Observer | None = None,
) -> Tuning:
    """Search for the fastest artifact that keeps the recipe's accuracy bar, within so many minutes.

    `minutes`, `objective` and `batch_size` replace what the recipe's `tune` says; its variants are not
    needed, but for the baseline. The finalists are written as variants of `out`, by default
    NAME.tuned.yaml beside the recipe, and built into `artifacts`. A search that was killed goes on with
    the trials that it finished, unless `restart`. An interrupt (`KeyboardInterrupt`) ends the search,
    and what was found so far is judged. With `ray`, as in a build, nodes of a cluster run the
    passes and evaluate; this machine times.

    Raises `RecipeError` and `UsageError` for what is wrong with the recipe, and what keeps the network
    from being built as it is.
    """
    began = time.monotonic()
    observer = observer or Silent()
    told = _told(minutes=minutes, objective=objective, batch_size=batch_size, seed=seed)
    start = _started(Path(recipe), (*overrides, *told))
    path = (out or start.recipe.path.with_name(f"{start.recipe.path.stem}.tuned.yaml")).absolute()
    tuned_recipe.require_place(path, start.recipe)
    kept = Store.of(store)
    settings = Settings(jobs, True, timeout_s, trust, ray)
    require_ray(ray, kept)
    with kept.connected(observer.warned), evaluating_nodes(ray, kept, observer) as nodes:
        return _tuned(start, path, kept, artifacts, settings, nodes, observer, began, restart=restart)


def _tuned(
    start: _Start,
    path: Path,
    kept: Store,
    artifacts: Path | None,
    settings: Settings,
    nodes: Nodes | None,
    observer: Observer,
    began: float,
    *,
    restart: bool,
) -> Tuning:
    read = start.recipe
    budget_s = 60 * read.tune.minutes
    folder = (artifacts or Path("artifacts")).absolute() / f"{read.name}-tuned"
    _require_known(read)
    space = Space.of(read)
    _require_something(space)
    display = Display(observer, began + budget_s)
    workshop = Workshop(kept, folder, display, settings, nodes)
    reference = space.candidate(rules.reference(space).parameters)
    trials = Trials(
        workshop,
        read,
        start.overrides,
        start.baseline,
        start.validation,
        _batch_sizes(read),
        reference,
    )
    # What is wrong with the model or the data, or shared by two roles, is found before the search.
    bare = workshop.make(_bare(start))
    budget = Budget(budget_s, bare.sample_counts.get("evaluation", 0))
    key = _key(start, kept)
    place = kept.cache_folder() / "tuning" / key / "trials.jsonl"
    if restart:
        place.unlink(missing_ok=True)
    bar = _bar(read)
    waiting = "another search of this recipe runs; waiting for it"
    with kept.lock("tuning", key, waiting=lambda: observer.warned("tune", waiting)):
        study = Study(place, space, read.seed, bar)
        before_s = sum(trial.seconds for trial in study.trials)
        if study.trials:
            observer.warned("tune", f"going on with {len(study.trials)} trials of an earlier run")
        until = began + budget_s - before_s
        why = _divided(budget, space, bar, study, trials, display, until)
    bar = next((trial.bar for trial in study.trials if trial.bar is not None), bar)
    left_s = budget_s - before_s - (time.monotonic() - began)
    has_time = left_s > _FOR_A_CAUSE_S and why != _INTERRUPTED
    cause = causes.of_int8(study.trials, trials, workshop, _batch_sizes(read)) if has_time else None
    left_s = budget_s - before_s - (time.monotonic() - began)
    first = next(iter(study.trials), None)
    most = budget.finalists(left_s, first, read.tune.finalists)
    chosen = finalists.choose(study.trials, bar, most, certain=read.wants_certainty)
    choices = tuned_recipe.variant_names(chosen)
    tuning = Tuning(
        recipe=read.name,
        path=str(path) if choices else "",
        objective=read.tune.objective,
        batch_sizes=_batch_sizes(read),
        reference=reference.label,
        bar=bar,
        validation=start.validation.taken_from,
        minutes=read.tune.minutes,
        seconds=0.0,
        trials=tuple(study.trials),
        left_out=space.left_out,
        stopped_because=why,
        isa=environment.isa(),
        int8_cause=cause,
        next_idea=_next_idea(space, bar, budget_s, study.trials),
    )
    if choices:
        report = judgement.build(
            read,
            start.overrides,
            start.baseline,
            path,
            choices,
            tuning.batch_sizes,
            budget.measuring_s(left_s, first, len(choices)),
            kept,
            artifacts,
            workshop.settings,
            observer,
        )
        tuning = judgement.with_finalists(tuning, report, choices, read)
    seconds = round(before_s + time.monotonic() - began, 1)
    tuning = tuning.model_copy(update={"seconds": seconds})
    tuning = tuning.model_copy(update={"findings": tuple(tuning_words.findings(tuning))})
    tuning = tuning.model_copy(
        update={"answer": tuning_words.answer(tuning, certain=read.wants_certainty)}
    )
    if choices:
        report = report.model_copy(update={"tuning": tuning})
        report_files.write(folder, report, report_files.curves_of(folder, report))
    return tuning


def _told(**options: Any) -> tuple[str, ...]:
    """Options as overrides of the recipe."""
    return tuple(
        f"{name if name == 'seed' else f'tune.{name}'}={json.dumps(value)}"
        for name, value in options.items()
        if value is not None
    )


def _started(path: Path, overrides: tuple[str, ...]) -> _Start:
    recipe, baseline = _read(path, overrides)
    if "evaluation" not in recipe.data:
        raise UsageError(
            "the recipe has no samples to judge the finalists by",
            place=shown(recipe.path),
            hint="give the recipe data.evaluation, and accuracy: {metric: ..., max_drop: ...}",
        )
    if recipe.accuracy is not None:
        require_metric(recipe.accuracy)
    _require_batch_size(recipe)
    tuned_recipe.settings_of(overrides)  # what cannot be written at the end is said now
    validation = validation_of(recipe)
    more = tuned_recipe.changes(validation.data, recipe)
    extra = tuple(f"data.{role}={json.dumps(each)}" for role, each in more.get("data", {}).items())
    bare = ("matrix=null",) if recipe.matrix else ()  # it would add its variants to every trial
    return _Start(recipe, (*overrides, *bare, *extra), baseline, validation)


def _read(path: Path, overrides: tuple[str, ...]) -> tuple[Recipe, tuple[str, Mapping[str, Any]]]:
    """The recipe, and its baseline as a recipe writes it; a recipe may have no variants."""
    try:
        recipe = load(path, overrides)
    except RecipeError as error:
        if not any(problem.message == "missing key 'variants'" for problem in error.problems):
            raise
        recipe = load(path, (*overrides, "variants={source: []}"))
        name = "eager" if source_of(recipe).format == Format.TORCH else "source"
        bare = recipe.model_copy(update={"variants": {}, "baseline": name})
        return bare, (name, {"passes": []})
    variant = recipe.variants[recipe.baseline]
    passes = [{use.name: use.options} if use.options else use.name for use in variant.passes]
    written: dict[str, Any] = {"passes": passes}
    if variant.runner is not None:
        options = variant.runner.configured.model_dump(mode="json", exclude_unset=True)
        written["runner"] = {"name": variant.runner.name, **options}
    return recipe, (recipe.baseline, written)


def _require_known(recipe: Recipe) -> None:
    """Raise `UsageError` for a pass or an option that `tune.passes` misspells."""
    for name, options in recipe.tune.passes.items():
        if name in recipe.plugins:  # a worker reads what they take
            continue
        known = [*passes.names(), *recipe.plugins]
        if name not in known:
            raise UsageError(
                f"tune.passes: there is no pass {name!r}",
                place=shown(recipe.path),
                hint=did_you_mean(name, known) or "optcli passes lists them; plugins names your own",
            )
        fields = list(passes.find(name).model_fields)
        for option in options:
            if option not in fields:
                raise UsageError(
                    f"tune.passes: {name} has no option {option!r}",
                    place=shown(recipe.path),
                    hint=did_you_mean(option, fields) or f"it has {', '.join(fields)}",
                )


def _require_batch_size(recipe: Recipe) -> None:
    """Raise `UsageError` for a batch size that the inputs do not take."""
    size, span = recipe.tune.batch_size, batch_range(recipe.inputs)
    if size is not None and not span.min <= size <= span.max:
        raise UsageError(
            f"the inputs take batch sizes {span.min} to {span.max}, found {size}",
            place="tune.batch_size",
            hint="name one of these, or widen the range of the inputs",
        )


def _require_something(space: Space) -> None:
    if not space.runtimes:
        raise UsageError(
            "there is nothing to try: " + (" ".join(space.left_out) or "no runtime is left"),
            place=shown(space.recipe.path),
            hint="widen tune.runtimes and tune.precisions, or install a runtime",
        )


def _batch_sizes(recipe: Recipe) -> tuple[int, ...]:
    size = recipe.tune.batch_size
    return (size,) if size is not None else recipe.latency.batch_sizes


def _bar(recipe: Recipe) -> float:
    """The bar before anything is judged: where it is a ratio, that of a perfect baseline."""
    return recipe.accuracy.bar(1.0) if recipe.accuracy is not None else WITHOUT_METRIC


def _bare(start: _Start) -> Recipe:
    """The recipe with the network as it is for its only variant."""
    return load(start.recipe.path, [*start.overrides, "variants={source: []}", "baseline=source"])


def _key(start: _Start, store: Store) -> str:
    """What decides the trials: recipe, model, data and the user's code by content, the machine."""
    recipe = start.recipe
    wanted = recipe.tune.model_dump(mode="json", exclude={"minutes", "finalists"})
    planned = plan(_bare(start), {}, store.digests)
    code = (*recipe.plugins.values(), *judging_code(recipe).values())
    sections = {"inputs", "latency", "accuracy", "slo", "seed", "postprocess"}
    return of_value(
        {
            "model": planned.variants[0].steps[0].key,
            "data": planned.role_keys,
            "baseline": start.baseline,
            "recipe": recipe.model_dump(mode="json", include=sections),
            "tune": wanted,
            "users": [user_code.digest(each, recipe.folder, store.digests) for each in code],
            "code": store.digests.of_folder(Path(__file__).parent),
            "environment": environment.describe(_RUNTIMES),
        }
    )


def _divided(
    budget: Budget,
    space: Space,
    bar: float,
    study: Study,
    trials: Trials,
    display: Display,
    until: float,
) -> str:
    """Carry out trials until the time is over that the finalists leave; gives why it ended.

    `until` is when all of the budget is used up. How much the finalists need is known after the first
    trial, which is judged beside the baseline.
    """
    if not study.trials:
        first = Strategy(space, bar, budget.seconds)
        why = _searched(first, study, trials, display, until, most=1)
        if why == _INTERRUPTED:
            return why
    reference = next(iter(study.trials), None)
    if budget.overrun_s(reference) > _WARNED_SHARE * budget.seconds:
        minutes = (budget.seconds + 2 * budget.overrun_s(reference)) / 60
        display.says(
            f"judging one finalist and the baseline on {budget.evaluation} evaluation samples takes"
            f" longer than half of the time: use --minutes {minutes:.0f}, or fewer samples"
            " (data.evaluation.samples)"
        )
    final_s = budget.final_s(reference)
    strategy = Strategy(space, bar, budget.seconds - final_s)
    return _searched(strategy, study, trials, display, until - final_s, budget.grace_s)


def _searched(
    strategy: Strategy,
    study: Study,
    trials: Trials,
    display: Display,
    until: float,
    grace_s: float = 0.0,
    most: int | None = None,
) -> str:
    """Carry out trials until nothing is left to try, or no time; gives why it ended.

    None begins after `until`, or where there are `most` already; the one that runs then may take
    `grace_s` more.
    """
    try:
        while time.monotonic() < until and (most is None or len(study.trials) < most):
            proposal = strategy.next(study.trials)
            if proposal is None:
                break
            parameters = proposal.parameters or study.sample(proposal.fixed, proposal.carried)
            if parameters is None:
                return "the sampler found nothing that was not tried"
            candidate = strategy.space.candidate(parameters)
            best = best_of(study.trials)
            number = len(study.trials)
            display.begins(number, candidate.label, proposal.why, best)
            # Without the reference there is nothing to compare with: it takes the time that it takes.
            left_s = until + grace_s - time.monotonic()
            left_s = left_s if number else trials.workshop.settings.timeout_s
            trial = trials.attempt(
                number,
                candidate,
                proposal.why,
                best,
                surest_of(study.trials),
                left_s,
                only_speed=proposal.only_speed,
                hopeless_db=strategy.hopeless_db(study.trials),
            )
            if number == 0:
                _require_sound(trial)
            display.ends(trial)
            if trial.stage == "failed" and time.monotonic() >= until:
                break  # it was the time that ended it: with more of it, it is tried again
            study.keep(trial)
    except KeyboardInterrupt:
        return _INTERRUPTED
    spent_s = sum(trial.seconds for trial in study.trials)
    used_up = time.monotonic() >= until or spent_s >= 0.9 * strategy.budget_s
    return "the time is used up" if used_up else "there was nothing else to try"


def _require_sound(reference: TuningTrial) -> None:
    """Raise `UsageError` where the network as it is cannot be built or judged: nothing else can be."""
    if reference.stage == "failed":
        raise UsageError(
            f"the network cannot be tried as it is: {reference.reason}",
            place=reference.label,
            hint="the search judges by data.validation in place of data.evaluation;"
            " tune.runtimes names the runtimes to try",
        )


def _next_idea(space: Space, bar: float, budget_s: float, trials: Sequence[TuningTrial]) -> str | None:
    """What would be tried with twice the time."""
    proposal = Strategy(space, bar, 2 * budget_s).next(trials)
    if proposal is None:
        return None
    if proposal.parameters is None:
        return "more options of the quantizer and the runner"
    return f"{space.candidate(proposal.parameters).label} ({proposal.why})"
