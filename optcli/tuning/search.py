"""`optcli tune`: from a promise to the fastest artifact that keeps it, within a time.

The search chooses by validation samples. What it chose is then built as variants of an ordinary recipe,
measured together, and judged on the evaluation samples, which the search never saw.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from optcli import environment
from optcli.errors import UsageError, counted
from optcli.observer import Observer, Silent
from optcli.pipeline import report_files
from optcli.pipeline.execute import BuildSettings, evaluating_nodes, require_ray
from optcli.pipeline.places import Nodes
from optcli.report import tuning as tuning_report
from optcli.report import tuning_findings
from optcli.results.tuning import Tuning, TuningTrial
from optcli.settings.tuning import Objective
from optcli.store import Store
from optcli.tuning import finalists, judgement, rules, starting
from optcli.tuning.budget import OtherWork, SearchBudget
from optcli.tuning.display import Display
from optcli.tuning.space import Space
from optcli.tuning.starting import SearchStart, Study
from optcli.tuning.strategy import Strategy
from optcli.tuning.trial_facts import best_of, surest_of
from optcli.tuning.trial_runner import TrialRunner
from optcli.tuning.trials import Trials

# An excess by less than this share of the budget is not worth a warning: it is an estimate.
_WARNED_SHARE = 0.05
INTERRUPTED = "it was interrupted"


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
    settings: BuildSettings | None = None,
    observer: Observer | None = None,
) -> Tuning:
    """Search for the fastest artifact that keeps the recipe's accuracy bar, within so many minutes.

    `minutes`, `objective` and `batch_size` replace what the recipe's `tune` says; its variants are not
    needed, but for the baseline. The finalists are written as variants of `out`, by default
    NAME.tuned.yaml beside the recipe, and built into `artifacts`. A search that was killed goes on with
    the trials that it finished, unless `restart`. An interrupt (`KeyboardInterrupt`) ends the search,
    and what was found so far is judged. `settings` are those of a build; with `ray` nodes of a cluster
    run the passes and evaluate, and this machine times.

    Raises `RecipeError` and `UsageError` for what is wrong with the recipe, and what keeps the network
    from being built as it is.
    """
    began = time.monotonic()
    observer = observer or Silent()
    options_set = starting.as_overrides(
        minutes=minutes, objective=objective, batch_size=batch_size, seed=seed
    )
    start = starting.started(Path(recipe), (*overrides, *options_set))
    path = (out or start.recipe.path.with_name(f"{start.recipe.path.stem}.tuned.yaml")).absolute()
    finalists.require_place(path, start.recipe)
    store = Store.of(store)
    settings = settings or BuildSettings()
    require_ray(settings.ray, store)
    with store.connected(observer.warned), evaluating_nodes(settings.ray, store, observer) as nodes:
        result = _result(start, store, artifacts, settings, nodes, observer, began, restart=restart)
        return _judged(result, path, artifacts)


@dataclass(frozen=True)
class _Result:
    """What a search has found, before its finalists are judged. `until` is when its time is over.

    `others_share` is that of `Tuning`.
    """

    start: SearchStart
    trials: Trials
    budget: SearchBudget
    bar: float
    done: Sequence[TuningTrial]
    why: str
    space: Space
    display: Display
    observer: Observer
    started: str
    until: float
    others_share: float | None

    @property
    def left_s(self) -> float:
        """What is left of the budget."""
        return self.until - time.monotonic()

    @property
    def seconds(self) -> float:
        """What has been used of it, in earlier runs too."""
        return round(self.budget.seconds - self.left_s, 1)

    @property
    def first(self) -> TuningTrial | None:
        """The reference, which was judged beside the baseline."""
        return next(iter(self.done), None)


def _result(
    start: SearchStart,
    store: Store,
    artifacts: Path | None,
    settings: BuildSettings,
    nodes: Nodes | None,
    observer: Observer,
    began: float,
    *,
    restart: bool,
) -> _Result:
    """Carry out the trials."""
    read, now = start.recipe, environment.now()
    budget_s = 60 * read.tune.minutes
    starting.require_known(read)
    space = Space.of(read, starting.formats_read(start, store))
    starting.require_something(space)
    start = starting.with_own_samples(start)
    display = Display(observer, began + budget_s)
    display.says(f"the search chooses by {start.validation.taken_from}")
    folder = (artifacts or Path("artifacts")).absolute() / f"{read.name}-tuned"
    trial_runner = TrialRunner(store, folder, display, settings, nodes)
    reference = space.candidate(rules.reference(space).parameters)
    trials = Trials(
        trial_runner,
        read,
        start.overrides,
        start.baseline,
        start.validation,
        starting.batch_sizes(read),
        reference,
    )
    # What is wrong with the model or the data, or shared by two roles, is found before the search.
    bare = trial_runner.make(starting.bare(start))
    budget = SearchBudget(budget_s, bare.sample_counts.get("evaluation", 0))
    key = starting.key_of(start, store)
    place = store.cache_folder() / "tuning" / key / "trials.jsonl"
    bar = starting.bar_of(read)
    waiting = "another search of this recipe runs; waiting for it"
    with store.lock("tuning", key, waiting=lambda: observer.warned("tune", waiting)):
        # With a cluster's nodes nobody here can tell whose work is whose.
        share = OtherWork().share if settings.ray is None else lambda: None
        if restart:  # not before: a search that runs would write its trials again
            place.unlink(missing_ok=True)
        study = Study(place)
        until = began + budget_s - sum(trial.seconds for trial in study.trials)
        if study.trials:
            observer.warned("tune", f"going on with {len(study.trials)} trials of an earlier run")
        why = _divided(budget, space, bar, study, trials, display, until, share)
    bar = next((trial.bar for trial in study.trials if trial.bar is not None), bar)
    done = tuple(study.trials)
    budget = budget.slowed_by(share())
    return _Result(start, trials, budget, bar, done, why, space, display, observer, now, until, share())


def _judged(result: _Result, path: Path, artifacts: Path | None) -> Tuning:
    """Build and judge the finalists, and write the report: in words what the search has found."""
    read, trial_runner = result.start.recipe, result.trials.trial_runner
    best = best_of(result.done)
    most = result.budget.finalists(result.left_s, result.first, read.tune.finalists, best)
    chosen = finalists.choose(result.done, result.bar, most, certain=read.wants_certainty)
    choices = finalists.variant_names(chosen, finalists.names_of(read))
    tuning = Tuning(
        recipe=read.name,
        path=str(path) if choices else "",
        objective=read.tune.objective,
        batch_sizes=starting.batch_sizes(read),
        reference=result.trials.reference.label,
        bar=result.bar,
        validation=result.start.validation.taken_from,
        minutes=read.tune.minutes,
        seconds=0.0,
        trials=tuple(result.done),
        left_out=(*result.space.left_out, *_not_reached(result)),
        stopped_because=result.why,
        isa=environment.isa(),
        next_idea=_next_idea(result.space, result.bar, result.budget.seconds, result.done),
        others_share=result.others_share,
    )
    if choices:
        report = judgement.build(
            read,
            result.start.overrides,
            result.start.baseline,
            path,
            choices,
            tuning.batch_sizes,
            _measuring_s(result, [choice.trial for choice in choices.values()]),
            trial_runner.store,
            artifacts,
            trial_runner.settings,
            result.observer,
        )
        tuning = judgement.with_finalists(tuning, report, choices, read)
    tuning = tuning.model_copy(update={"seconds": result.seconds})
    tuning = tuning.model_copy(update={"findings": tuple(tuning_findings.findings(tuning))})
    tuning = tuning.model_copy(
        update={"answer": tuning_report.answer(tuning, certain=read.wants_certainty)}
    )
    if choices:
        report = report.model_copy(update={"tuning": tuning})
        curves = report_files.curves_of(trial_runner.folder, report)
        report_files.write(trial_runner.folder, report, curves)
    elif result.done:
        report = judgement.without_finalists(tuning, read, result.started)
        report_files.write(trial_runner.folder, report, report_files.Curves({}))
    return tuning


def _not_reached(result: _Result) -> Iterator[str]:
    """The passes of `tune.passes` that no trial had: their turn is at the end."""
    tried = {name for trial in result.done for name in trial.parameters.get("passes", {})}
    for name in result.space.further:
        if name not in tried:
            yield f"{name} was not tried: the search ended before its turn came."


def _measuring_s(result: _Result, chosen: Sequence[TuningTrial]) -> float:
    """How long the finalists are timed; little after an interrupt: somebody waits for the answer."""
    hurried = result.why == INTERRUPTED
    measuring_s = result.budget.measuring_s(result.left_s, result.first, chosen, hurried=hurried)
    if hurried:
        count = len(chosen)
        seconds = result.budget.judged_s(result.first, chosen) + measuring_s
        result.display.says(
            f"interrupted: judging {counted(count, 'finalist')} takes about"
            f" {seconds:.0f} s; another Ctrl-C ends the search without an answer"
        )
    return measuring_s


def _divided(
    budget: SearchBudget,
    space: Space,
    bar: float,
    study: Study,
    trials: Trials,
    display: Display,
    until: float,
    share: Callable[[], float | None],
) -> str:
    """Carry out trials until the time is over that the finalists leave; gives why it ended.

    `until` is when all of the budget is used up. How much the finalists need is known after the first
    trial, which is judged beside the baseline. The faster the best trial is, the less they need; the
    larger the `share` of the processors is that others have, the more.
    """
    if not study.trials:
        first = Strategy(space, bar, budget.seconds)
        why = _searched(first, study, trials, display, until, most=1)
        if why == INTERRUPTED:
            return why
    reference = next(iter(study.trials), None)
    if budget.overrun_s(reference) > _WARNED_SHARE * budget.seconds:
        minutes = (budget.seconds + 2 * budget.overrun_s(reference)) / 60
        display.says(
            f"judging one finalist and the baseline on {budget.evaluation} evaluation samples takes"
            f" longer than half of the time: use --minutes {minutes:.0f}, or fewer samples"
            " (data.evaluation.samples)"
        )

    def kept_s(done: Sequence[TuningTrial]) -> float:
        return budget.slowed_by(share()).final_s(reference, best_of(done))

    strategy = Strategy(space, bar, budget.seconds)
    return _searched(strategy, study, trials, display, until, budget.grace_s, kept_s=kept_s)


def _searched(
    strategy: Strategy,
    study: Study,
    trials: Trials,
    display: Display,
    until: float,
    grace_s: float = 0.0,
    most: int | None = None,
    kept_s: Callable[[Sequence[TuningTrial]], float] = lambda _: 0.0,
) -> str:
    """Carry out trials until nothing is left to try, or no time; gives why it ended.

    `until` is when the budget of the strategy is used up. What `kept_s` says after the trials so far is
    for the finalists. No trial begins in that time, or where there are `most` already; the one that
    runs then may take `grace_s` of it.
    """
    whole, end = strategy, until
    try:
        while most is None or len(study.trials) < most:
            final_s = kept_s(study.trials)
            strategy, until = replace(whole, budget_s=whole.budget_s - final_s), end - final_s
            if time.monotonic() >= until:
                break
            proposal = strategy.next(study.trials)
            if proposal is None:
                break
            candidate = strategy.space.candidate(proposal.parameters)
            best = best_of(study.trials)
            number = len(study.trials)
            display.begins(number, candidate.label, proposal.why, best)
            # Without the reference there is nothing to compare with: it takes the time that it takes.
            left_s = until + grace_s - time.monotonic()
            left_s = left_s if number else trials.trial_runner.settings.timeout_s
            trial = trials.attempt(
                number,
                candidate,
                proposal.why,
                best,
                surest_of(study.trials),
                left_s,
                only_speed=proposal.only_speed,
            )
            if number == 0:
                _require_sound(trial)
            display.ends(trial)
            if trial.stage == "failed" and time.monotonic() >= until:
                break  # it was the time that ended it: with more of it, it is tried again
            study.keep(trial)
    except KeyboardInterrupt:
        return INTERRUPTED
    used_up = time.monotonic() >= until or not strategy.has_time(study.trials)
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
    return f"{space.candidate(proposal.parameters).label} ({proposal.why})"
