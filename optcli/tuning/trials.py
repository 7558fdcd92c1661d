"""One trial of a search or of a repair: built, timed and judged.

What takes little time comes first, and a trial ends as soon as it cannot win. In a search it is
timed beside the best so far, and ends where it is slower beyond doubt, or outside the bar beyond doubt
on a part of the samples. Where the recipe accepts only what is surely inside the bar, and the best so
far is not, a slower one goes on. In a repair it is judged first, and timed where it is right.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from optcli import accuracy
from optcli.accuracy import policies
from optcli.artifact import Artifact
from optcli.errors import OptcliError, StepError
from optcli.measure import latency
from optcli.pipeline.making import BuiltPlan
from optcli.recipe import Recipe, Variant, load
from optcli.results import Accuracy, Estimate
from optcli.results.tuning import Trial, TuningTrial, score_of
from optcli.tuning.candidates import TrialCandidate, candidate_of, written
from optcli.tuning.layers import QUANTIZING, by_own_error, groups, layers_of, worst
from optcli.tuning.timing import BEST, REFERENCE, Timing, quick
from optcli.tuning.trial_runner import TrialRunner, artifact, blocks_gone, early_end, family_of, planned
from optcli.tuning.validation import Validation

# What the baseline is called among a trial's variants: its own name could be one of the others.
_BASELINE = "baseline"
# The largest share of samples whose largest output may be another one, where there is no metric.
WITHOUT_METRIC = 0.01
# How long ranking layers by the error that each adds may take, and how many of the worst are tried.
_RANKING_S = 60.0
_WORST = (2, 4, 8)
# Samples that take longer are judged in two parts.
_LONG_S = 5.0
# Launches of a repair's trial: whether it looks faster, and once more where it does.
_LOOKING, _CONFIRMING = 3, 5
_Trial = TypeVar("_Trial", TuningTrial, Trial)


@dataclass
class Engine:
    """Carries out trials of a recipe; what is made goes into the store."""

    trial_runner: TrialRunner
    recipe: Recipe

    def ended(self, trial: _Trial, carry_out: Callable[[_Trial], _Trial]) -> _Trial:
        """The trial as it was carried out, with its seconds. Its errors are its `reason`."""
        began = time.monotonic()
        try:
            done = carry_out(trial)
        except OptcliError as error:
            done = trial.model_copy(update={"reason": error.message})
        return done.model_copy(update={"seconds": round(time.monotonic() - began, 2)})

    def with_artifact(self, trial: _Trial, built: Artifact) -> _Trial:
        """The trial with what its artifact says of itself."""
        counts = built.facts.get("quantized_operators")
        operators = sum(counts.values()) if isinstance(counts, dict) else None
        about = {"size_bytes": built.size_bytes, "key": built.key, "operators": operators}
        return trial.model_copy(update=about)


@dataclass
class Trials(Engine):
    """Carries out trials of a search. `overrides` are what the tuned recipe changes of the recipe.

    `baseline` is the variant that accuracy is compared with, as a recipe writes it. `recipe` is the one
    that was read, its evaluation samples those of `validation`.
    """

    overrides: Sequence[str]
    baseline: tuple[str, Mapping[str, Any]]
    validation: Validation
    batch_sizes: tuple[int, ...]
    reference: TrialCandidate
    _samples: int | None = field(default=None, init=False)

    @property
    def timing(self) -> Timing:
        """What times the trials."""
        return Timing(self.recipe, self.batch_sizes)

    def attempt(
        self,
        number: int,
        candidate: TrialCandidate,
        why: str,
        best: TuningTrial | None,
        surest: TuningTrial | None,
        seconds: float,
        *,
        only_speed: bool = False,
    ) -> TuningTrial:
        """Carry out a trial within so many seconds. Its errors are its `reason`.

        `best` is the fastest trial inside the bar so far, which it is timed beside, and `surest` the
        fastest of those surely inside.
        """
        trial = TuningTrial(
            number=number,
            label=candidate.label,
            why=why,
            parameters=dict(candidate.parameters),
            passes=tuple((name, options) for name, options in candidate.passes),
            runner=dict(candidate.runner) if candidate.runner else None,
            trains=candidate.trains,
        )
        trial_runner = self.trial_runner.within(seconds)
        return self.ended(
            trial,
            lambda started: self._carried_out(
                trial_runner, started, candidate, best, surest, only_speed=only_speed
            ),
        )

    def _carried_out(
        self,
        trial_runner: TrialRunner,
        trial: TuningTrial,
        candidate: TrialCandidate,
        best: TuningTrial | None,
        surest: TuningTrial | None,
        *,
        only_speed: bool,
    ) -> TuningTrial:
        name = f"trial-{trial.number}"
        other = None if best is None or self._is_reference(candidate_of(best)) else best
        known = {REFERENCE: self.reference.written()}
        if other is not None:
            known[BEST] = written(other.passes, other.runner)
        companions = () if self._is_reference(candidate) else self.timing.companions(other)
        variants = {each: known[each] for each in companions}
        made = trial_runner.make(self.variants_of({**variants, name: candidate.written()}))
        built = artifact(made, name)
        trial = self.with_artifact(trial, built)
        if candidate.trains:
            trial = trial.model_copy(update=early_end(made, name, trial.parameters))
        elif candidate.parameters.get("blocks"):
            trial = trial.model_copy(update=blocks_gone(made, name))
        if self._is_reference(candidate):
            trial = trial.model_copy(update={"family": family_of(built)})
        may_end = best is not None and not self._is_surer_wanted(trial, best, surest)
        names = [*variants, name]
        trial = self.timing.timed(trial_runner, made, names, trial, best, may_end=may_end)
        if only_speed:
            return trial.model_copy(update={"stage": "timed"})
        behind = trial.ahead is not None and (trial.ahead.high or 1.0) < 1.0
        if trial.ahead is not None and behind and not self._may_win(trial, best, surest):
            reason = f"{trial.ahead.value:.2f} times as fast as the best so far"
            return trial.model_copy(update={"stage": "slower", "reason": reason})
        trial = self._judged(trial_runner, made, name, trial)
        falls_short = trial.stage == "outside" or self._is_unsure(trial, best)
        return self._with_groups(trial_runner, made, name, trial) if falls_short else trial

    def _may_win(
        self, trial: TuningTrial, best: TuningTrial | None, surest: TuningTrial | None
    ) -> bool:
        """Whether a trial may win that is slower than the best one: by being surely inside the bar."""
        wanted = best is not None and self._is_surer_wanted(trial, best, surest)
        return wanted and (surest is None or score_of(trial) > score_of(surest))

    def _is_surer_wanted(
        self, trial: TuningTrial, best: TuningTrial, surest: TuningTrial | None
    ) -> bool:
        """Whether a network that is surely inside the bar may win over the best one, which is not.

        Where the recipe accepts no other; and where the samples are enough to be sure of any: among
        finalists the sure ones win.
        """
        if best.certain:
            return False
        return self.recipe.wants_certainty or (trial.trains and surest is not None)

    def _is_unsure(self, trial: TuningTrial, best: TuningTrial | None) -> bool:
        """Whether a trial is the fastest inside the bar, and the recipe wants more than that.

        The layers of one such network are ranked: it takes up to a minute.
        """
        if not self.recipe.wants_certainty or trial.stage != "inside" or trial.certain:
            return False
        return best is None or (not best.float_groups and score_of(trial) > score_of(best))

    def _is_reference(self, candidate: TrialCandidate) -> bool:
        return candidate.identity == self.reference.identity

    def variants_of(self, variants: Mapping[str, Any]) -> Recipe:
        """The recipe with these variants beside the baseline; its evaluation samples are validation's.

        Raises `RecipeError` where passes and formats do not fit.
        """
        _, variant = self.baseline
        every = json.dumps({_BASELINE: variant, **variants})
        overrides = [f"variants={every}", f"baseline={_BASELINE}"]
        recipe = load(self.recipe.path, [*self.overrides, *overrides])
        # Validation samples stand in for evaluation's, which must differ from those of all other roles.
        others = {role: each for role, each in recipe.data.items() if role != "validation"}
        data = {**others, "evaluation": self.validation.samples}
        return recipe.model_copy(update={"data": data})

    def _judged(
        self, trial_runner: TrialRunner, made: BuiltPlan, name: str, trial: TuningTrial
    ) -> TuningTrial:
        """The trial with its loss: on a part of the samples first, on all where that leaves hope."""
        part = self.validation.part(self._samples) if self._samples else None
        if part is not None and self._takes_long(trial):
            judged = trial_runner.judge(made, name, part)
            trial = self._with_loss(trial, judged)
            if trial.loss is not None and (trial.loss.low or 0.0) > self.bar(judged):
                return trial
        began = time.monotonic()
        judged = trial_runner.judge(made, name)
        trial = trial.model_copy(update={"judging_s": round(time.monotonic() - began, 2)})
        self._samples = judged.samples
        return self._with_loss(trial, judged)

    def _takes_long(self, trial: TuningTrial) -> bool:
        """Whether all samples take so long that a part of them, judged before, saves time."""
        an_image_ms = min((ms / size for size, ms in trial.p50_ms.items()), default=math.inf)
        return (self._samples or 0) * an_image_ms / 1000 > _LONG_S

    def _with_groups(
        self, trial_runner: TrialRunner, made: BuiltPlan, name: str, trial: TuningTrial
    ) -> TuningTrial:
        """The trial with the layers that may be left in float, where quantizing has cost too much."""
        is_plain = trial.parameters.get("quantizer") in QUANTIZING and "floats" not in trial.parameters
        if not is_plain or trial.trains:
            return trial
        parent = made.done[planned(made, name).steps[-2].key].artifact()
        built = artifact(made, name)
        components = groups(layers_of(built, parent))
        ranking = by_own_error(
            made.plan.recipe, parent, built, trial_runner.observer, timeout_s=_RANKING_S
        )
        components += [worst(ranking, count) for count in _WORST if count < len(ranking)]
        names = {each.label: tuple(sorted(each.floats)) for each in components}
        return trial.model_copy(update={"float_groups": names})

    def bar(self, judged: Accuracy) -> float:
        """The largest loss allowed: of the metric, or the share of samples with another output."""
        settings = self.recipe.accuracy
        if settings is None or judged.baseline is None:
            return WITHOUT_METRIC
        return settings.bar(judged.baseline, lower_is_better=judged.better == "lower")

    def _with_loss(self, trial: TuningTrial, judged: Accuracy) -> TuningTrial:
        loss = judged.drop
        if loss is None and judged.agreement is not None:
            loss = Estimate(value=1.0 - judged.agreement)
        error = judged.output_error
        settings = self.recipe.accuracy
        verdicts = accuracy.verdicts(judged, settings)
        blocking = [
            each
            for each in verdicts
            if each.blocking and each.outcome != "accept" and each.name != "accuracy"
        ]
        policy = settings.policy if settings is not None else None
        trial = trial.model_copy(
            update={
                "value": judged.value,
                "baseline": judged.baseline,
                "bar": self.bar(judged),
                "loss": loss,
                "certain": policies.is_certain(verdicts, policy),
                "sqnr_db": error.sqnr_db if error is not None else None,
                "samples": judged.samples,
            }
        )
        if blocking:
            return trial.model_copy(update={"stage": "outside", "reason": blocking[0].reason})
        if loss is None:
            reason = "neither the metric nor the largest output can be compared with the baseline's"
            return trial.model_copy(update={"stage": "outside", "reason": reason})
        bar = self.bar(judged)
        if loss.value > bar:
            reason = f"{100 * loss.value:.2f} points lost, {100 * bar:.2f} allowed"
            return trial.model_copy(update={"stage": "outside", "reason": reason})
        if not trial.promises_kept:
            reason = "it does not keep the recipe's service level or largest size"
            return trial.model_copy(update={"stage": "outside", "reason": reason})
        return trial.model_copy(update={"stage": "inside", "reason": None})


@dataclass
class Repairs(Engine):
    """Carries out trials of a repair: a variant with other options of its pass at `index`."""

    variant: str
    index: int
    runner_name: str = field(default="", init=False)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the pass as it is, defaults included."""
        configured = self.recipe.variants[self.variant].passes[self.index].configured
        assert configured is not None
        return configured.model_dump(mode="json")

    def first(self) -> tuple[Trial, Artifact, Artifact, Accuracy]:
        """Trial 0: the variant as it is, its artifact, the one in float, and what it lost.

        Raises what keeps the variant, its float parent or the baseline from being built or judged.
        """
        began = time.monotonic()
        started = Trial(number=0, label="as it is", options={}, seconds=0.0)
        trial, made, judged = self._carried_out(started, None)
        self.runner_name = planned(made, self._name(0)).runner_name
        trial = trial.model_copy(update={"seconds": round(time.monotonic() - began, 2)})
        return trial, artifact(made, self._name(0)), artifact(made, self._parent), judged

    def attempt(self, number: int, label: str, changed: dict[str, Any], start: Trial) -> Trial:
        """Carry out a trial. Its errors are not raised: the message becomes the trial's `reason`."""
        trial = Trial(number=number, label=label, options=changed, seconds=0.0)
        return self.ended(trial, lambda started: self._carried_out(started, start)[0])

    def _carried_out(self, trial: Trial, start: Trial | None) -> tuple[Trial, BuiltPlan, Accuracy]:
        name = self._name(trial.number)
        made = self._make(name, trial.options)
        judged = self.trial_runner.judge(made, name)
        trial = self._judged(trial, artifact(made, name), judged)
        return self._timed(trial, made, name, start), made, judged

    @property
    def _parent(self) -> str:
        return f"{self.variant}.float"

    def _name(self, number: int) -> str:
        return f"{self.variant}.trial-{number}"

    def _make(self, name: str, changed: dict[str, Any]) -> BuiltPlan:
        """The trial, its float parent and the baseline; the last two come from the store."""
        recipe = self.recipe
        variant, baseline = recipe.variants[self.variant], str(recipe.baseline)
        floats = (*variant.passes[: self.index], *variant.passes[self.index + 1 :])
        variants = {
            baseline: recipe.variants[baseline],
            self._parent: variant.model_copy(update={"passes": floats}),
            name: with_options(variant, self.index, changed),
        }
        return self.trial_runner.make(recipe.model_copy(update={"variants": variants}))

    def _judged(self, trial: Trial, built: Artifact, judged: Accuracy) -> Trial:
        verdicts = accuracy.verdicts(judged, self.recipe.accuracy)
        inside = all(each.outcome == "accept" for each in verdicts if each.blocking)
        about = {"inside": inside, "value": judged.value, "drop": judged.drop}
        return self.with_artifact(trial, built).model_copy(update=about)

    def _timed(self, trial: Trial, made: BuiltPlan, name: str, start: Trial | None) -> Trial:
        """The trial with its speed-up over the float parent, if it is trial 0 or inside the bar."""
        if start is not None and start.operators is not None and trial.operators is not None:
            fewer = max(0, start.operators - trial.operators)
            trial = trial.model_copy(update={"float_operators": fewer})
        if not trial.inside and start is not None:
            return trial
        looked = self._measured(trial, made, name, _LOOKING)
        if start is None or not looked.pays:
            return looked
        # Of many trials one looks faster by chance: it must be so again, over fresh processes.
        return self._measured(trial, made, name, _CONFIRMING)

    def _measured(self, trial: Trial, made: BuiltPlan, name: str, launches: int) -> Trial:
        size = self.recipe.latency.batch_sizes[0]
        settings = quick(made, (size,), launches, 5.0 * launches)
        names, seed = (self._parent, name), self.recipe.seed + launches
        measured = self.trial_runner.measure(made, names, settings, seed)
        for reason in measured.failures.values():
            return trial.model_copy(update={"reason": f"its latency is not known: {reason}"})
        rows = latency.to_results(measured)
        ratio: Estimate | None = latency.speedup(measured, name, self._parent, size)
        return trial.model_copy(
            update={
                "p50_ms": rows[name][0].p50_ms.value,
                "float_p50_ms": rows[self._parent][0].p50_ms.value,
                "speedup": ratio,
            }
        )


def with_options(variant: Variant, index: int, changed: dict[str, Any]) -> Variant:
    """The variant with other options of one pass; None in `changed` removes one.

    Raises `StepError` where the pass refuses them.
    """
    use = variant.passes[index]
    assert use.configured is not None
    removed = {name for name, value in changed.items() if value is None}
    options = {k: v for k, v in {**use.options, **changed}.items() if k not in removed}
    try:
        configured = type(use.configured).model_validate(options)
    except ValidationError as error:
        raise StepError(error.errors()[0]["msg"], place=use.name) from error
    passes = list(variant.passes)
    passes[index] = use.model_copy(update={"options": options, "configured": configured})
    return variant.model_copy(update={"passes": tuple(passes)})
