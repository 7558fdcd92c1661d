"""One trial of the search: built, timed beside the best so far, judged on validation samples.

The cheap questions come first, and a trial ends as soon as an answer is against it: slower than the
best so far beyond doubt, or outside the bar beyond doubt on a part of the samples. Where the recipe
accepts only what is surely inside the bar, and the best so far is not, a slower one goes on.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from optcli import accuracy
from optcli.accuracy import policies
from optcli.artifact import Artifact
from optcli.errors import OptcliError
from optcli.pipeline.making import Made
from optcli.pipeline.plan import Step
from optcli.recipe import Recipe, load
from optcli.results import Accuracy, Estimate
from optcli.results.tuning import TuningTrial
from optcli.tuning.candidates import Candidate, candidate_of, written
from optcli.tuning.components import QUANTIZING, groups, worst
from optcli.tuning.layers import layers_of
from optcli.tuning.ranking import by_own_error
from optcli.tuning.rules import CONVOLUTIONAL, TRANSFORMER
from optcli.tuning.timing import BEST, REFERENCE, Timing
from optcli.tuning.trial_facts import score_of
from optcli.tuning.validation import Validation
from optcli.tuning.workshop import Workshop, artifact, planned

# What the baseline is called among a trial's variants: its own name could be one of the others.
_BASELINE = "baseline"
# The largest share of samples whose largest output may be another one, where there is no metric.
WITHOUT_METRIC = 0.01
# How long ranking layers by the error that each adds may take, and how many of the worst are tried.
_RANKING_S = 60.0
_WORST = (2, 4, 8)
_ATTENTION = {"ScaledDotProductAttention", "Softmax", "SoftMax", "Attention"}
# Samples that take longer are judged in two parts.
_LONG_S = 5.0


@dataclass
class Trials:
    """Carries out trials of a recipe. `overrides` are what the tuned recipe changes of it.

    `baseline` is the variant that accuracy is compared with, as a recipe writes it. `recipe` is the one
    that was read, its evaluation samples those of `validation`.
    """

    workshop: Workshop
    recipe: Recipe
    overrides: Sequence[str]
    baseline: tuple[str, Mapping[str, Any]]
    validation: Validation
    batch_sizes: tuple[int, ...]
    reference: Candidate
    _samples: int | None = field(default=None, init=False)

    @property
    def timing(self) -> Timing:
        """What times the trials."""
        return Timing(self.recipe, self.batch_sizes)

    def attempt(
        self,
        number: int,
        candidate: Candidate,
        why: str,
        best: TuningTrial | None,
        surest: TuningTrial | None,
        seconds: float,
        *,
        only_speed: bool = False,
        hopeless_db: float | None = None,
    ) -> TuningTrial:
        """Carry out a trial within so many seconds. Its errors are its `reason`.

        `best` is the fastest trial inside the bar so far, which it is timed beside, and `surest` the
        fastest of those surely inside. Outputs with a ratio of signal to noise below `hopeless_db` are
        outside the bar without more ado.
        """
        began = time.monotonic()
        trial = TuningTrial(
            number=number,
            label=candidate.label,
            why=why,
            parameters=dict(candidate.parameters),
            passes=tuple((name, options) for name, options in candidate.passes),
            runner=dict(candidate.runner) if candidate.runner else None,
            trains=candidate.trains,
        )
        try:
            workshop = self.workshop.within(seconds)
            limit_db = None if candidate.trains else hopeless_db
            trial = self._carried_out(
                workshop, trial, candidate, best, surest, limit_db, only_speed=only_speed
            )
        except OptcliError as error:
            trial = trial.model_copy(update={"stage": "failed", "reason": error.message})
        return trial.model_copy(update={"seconds": round(time.monotonic() - began, 2)})

    def _carried_out(
        self,
        workshop: Workshop,
        trial: TuningTrial,
        candidate: Candidate,
        best: TuningTrial | None,
        surest: TuningTrial | None,
        hopeless_db: float | None,
        *,
        only_speed: bool,
    ) -> TuningTrial:
        name = f"trial-{trial.number}"
        other = None if best is None or self._is_reference(candidate_of(best)) else best
        known = {REFERENCE: self.reference.written()}
        if other is not None:
            known[BEST] = written(other.passes, other.runner)
        beside = () if self._is_reference(candidate) else self.timing.beside(other)
        variants = {each: known[each] for each in beside}
        made = workshop.make(self.variants_of({**variants, name: candidate.written()}))
        built = artifact(made, name)
        counts = built.facts.get("quantized_operators")
        operators = sum(counts.values()) if isinstance(counts, dict) else None
        trial = trial.model_copy(
            update={"size_bytes": built.size_bytes, "key": built.key, "operators": operators}
        )
        if candidate.trains:
            trial = trial.model_copy(update=_early_end(made, name, trial.parameters))
        elif candidate.parameters.get("blocks"):
            trial = trial.model_copy(update=_blocks(made, name))
        if self._is_reference(candidate):
            trial = trial.model_copy(update={"family": _family(built)})
        may_end = best is not None and not self._is_surer_wanted(trial, best, surest)
        names = [*variants, name]
        trial = self.timing.timed(workshop, made, names, trial, best, may_end=may_end)
        if only_speed:
            return trial.model_copy(update={"stage": "timed"})
        behind = trial.ahead is not None and (trial.ahead.high or 1.0) < 1.0
        if trial.ahead is not None and behind and not self._may_win(trial, best, surest):
            reason = f"{trial.ahead.value:.2f} times as fast as the best so far"
            return trial.model_copy(update={"stage": "slower", "reason": reason})
        if hopeless_db is not None and self._takes_long(trial):
            trial = self._looked_at(workshop, made, name, trial, hopeless_db)
            if trial.stage == "outside":
                return trial
        trial = self._judged(workshop, made, name, trial)
        falls_short = trial.stage == "outside" or self._is_unsure(trial, best)
        return self._with_groups(workshop, made, name, trial) if falls_short else trial

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

    def _is_reference(self, candidate: Candidate) -> bool:
        return candidate.identity == self.reference.identity

    def variants_of(self, variants: Mapping[str, Any]) -> Recipe:
        """The recipe with these variants beside the baseline; its evaluation samples are validation's.

        Raises `RecipeError` where passes and formats do not fit.
        """
        _, variant = self.baseline
        every = json.dumps({_BASELINE: variant, **variants})
        told = [f"variants={every}", f"baseline={_BASELINE}"]
        recipe = load(self.recipe.path, [*self.overrides, *told])
        # Validation samples stand in for evaluation's, which must differ from those of all other roles.
        others = {role: each for role, each in recipe.data.items() if role != "validation"}
        data = {**others, "evaluation": self.validation.samples}
        return recipe.model_copy(update={"data": data})

    def _looked_at(
        self, workshop: Workshop, made: Made, name: str, trial: TuningTrial, hopeless_db: float
    ) -> TuningTrial:
        """The trial, outside the bar where a few of its outputs are further off than some that were."""
        judged = workshop.judge(made, name, self.validation.few())
        error = judged.output_error
        if error is None or error.sqnr_db is None or error.sqnr_db >= hopeless_db:
            return trial
        reason = (
            f"SQNR {error.sqnr_db:.1f} dB on {judged.samples} samples; a network with a better SQNR"
            " was already outside the bar"
        )
        about = {"sqnr_db": error.sqnr_db, "samples": judged.samples, "reason": reason}
        return trial.model_copy(update={"stage": "outside", **about})

    def _judged(self, workshop: Workshop, made: Made, name: str, trial: TuningTrial) -> TuningTrial:
        """The trial with its loss: on a part of the samples first, on all where that leaves hope."""
        part = self.validation.part(self._samples) if self._samples else None
        if part is not None and self._takes_long(trial):
            judged = workshop.judge(made, name, part)
            trial = self._with_loss(trial, judged)
            if trial.loss is not None and (trial.loss.low or 0.0) > self.bar(judged):
                return trial
        began = time.monotonic()
        judged = workshop.judge(made, name)
        trial = trial.model_copy(update={"judging_s": round(time.monotonic() - began, 2)})
        self._samples = judged.samples
        return self._with_loss(trial, judged)

    def _takes_long(self, trial: TuningTrial) -> bool:
        """Whether all samples take so long that a part of them, judged before, saves time."""
        an_image_ms = min((ms / size for size, ms in trial.p50_ms.items()), default=math.inf)
        return (self._samples or 0) * an_image_ms / 1000 > _LONG_S

    def _with_groups(
        self, workshop: Workshop, made: Made, name: str, trial: TuningTrial
    ) -> TuningTrial:
        """The trial with the layers that may be left in float, where quantizing has cost too much."""
        is_plain = trial.parameters.get("quantizer") in QUANTIZING and "floats" not in trial.parameters
        if not is_plain or trial.trains:
            return trial
        parent = made.done[planned(made, name).steps[-2].key].artifact()
        built = artifact(made, name)
        components = groups(layers_of(built, parent))
        ranking = by_own_error(made.plan.recipe, parent, built, workshop.observer, timeout_s=_RANKING_S)
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


def _early_end(made: Made, name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Why a training of a trial ended early, and after what share of its `train_s`."""
    found: dict[str, Any] = {}
    steps = planned(made, name).steps
    trainings = [step for step in steps if step.name == "finetune"]
    if parameters.get("train_s"):
        # Those before are of what was `learned`. `more_s` is the last, where there is one.

        step = trainings[-2 if parameters.get("more_s") else -1]
        stopping = _facts_of(made, step)["finetuning"].get("early_stopping", {})
        if stopping.get("why"):
            found = {"ended_early": stopping["why"], "trained_share": stopping["share"]}
    for step in steps:
        if step.name == "quantize_aware":
            stopping = _facts_of(made, step)["quantization_aware_training"].get("early_stopping", {})
            found |= {"ended_early": stopping["why"]} if stopping.get("why") else {}
    return found


def _blocks(made: Made, name: str) -> dict[str, Any]:
    """How many blocks of a network were removed, and of how many."""
    step = next(step for step in planned(made, name).steps if step.name == "prune")
    pruning = _facts_of(made, step)["pruning"]
    return {"blocks_removed": len(pruning["blocks_removed"]), "blocks_found": pruning["blocks_found"]}


def _facts_of(made: Made, step: Step) -> dict[str, Any]:
    return dict(made.done[step.key].artifact().facts)


def _family(built: Artifact) -> str | None:
    """Whether a network is a transformer: it has attention, several times over."""
    kinds = [layer.kind for layer in layers_of(built, built)]
    if not kinds:
        return None
    return TRANSFORMER if sum(kind in _ATTENTION for kind in kinds) > 1 else CONVOLUTIONAL
