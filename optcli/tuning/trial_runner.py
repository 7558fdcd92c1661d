"""Trials are carried out here: recipes built, artifacts judged and timed, as a build does it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optcli import data
from optcli.artifact import Artifact
from optcli.data import DataSettings
from optcli.errors import StepError
from optcli.measure import latency
from optcli.measure.latency import Candidate, LatencyOrder, Measured
from optcli.observer import Observer
from optcli.pipeline import places, plugins
from optcli.pipeline.accuracy import EvaluationContext, Subject, compare_all
from optcli.pipeline.execute import BuildSettings
from optcli.pipeline.labels import with_labels
from optcli.pipeline.making import BuiltPlan, Phases, make
from optcli.pipeline.places import Nodes
from optcli.pipeline.plan import PlannedVariant, Step, plan_of
from optcli.recipe import Recipe
from optcli.results import Accuracy
from optcli.settings.latency import LatencySettings
from optcli.store import Store, key_of
from optcli.tuning.layers import layers_of
from optcli.tuning.rules import CONVOLUTIONAL, TRANSFORMER

_ATTENTION = {"ScaledDotProductAttention", "Softmax", "SoftMax", "Attention"}


@dataclass(frozen=True)
class TrialRunner:
    """Builds, judges and times the variants of recipes; what is made goes into the store.

    `folder` is where logs go. With `nodes` other machines evaluate. Nothing begins after `until`, by
    `time.monotonic`, and every step is ended then.
    """

    store: Store
    folder: Path
    observer: Observer
    settings: BuildSettings
    nodes: Nodes | None = None
    until: float | None = None

    def within(self, seconds: float) -> TrialRunner:
        """The same, with all that it does ended after so many seconds."""
        return replace(self, until=time.monotonic() + max(1.0, seconds))

    def _in_time(self) -> BuildSettings:
        """The settings, with as long a timeout as there is time. Raises `StepError` where none is."""
        if self.until is None:
            return self.settings
        left_s = self.until - time.monotonic()
        if left_s <= 0:
            raise StepError("the time is used up", place="tune", hint="give it more --minutes")
        return replace(
            self.settings, timeout_s=max(1.0, min(self.settings.timeout_s, round(left_s, 1)))
        )

    def make(self, recipe: Recipe) -> BuiltPlan:
        """Build all variants of a recipe. Raises what keeps all of them from being built."""
        traits = plugins.traits(recipe, self.store, self.store.digests)
        to_do = plan_of(with_labels(recipe, self.store), traits, self.store.digests)
        return make(to_do, self.store, self.observer, self._in_time(), Phases())

    def judge(self, made: BuiltPlan, name: str, samples: DataSettings | None = None) -> Accuracy:
        """Accuracy of a variant beside the baseline on evaluation samples, or on these `samples`.

        Raises what keeps either from being judged.
        """
        settings = self._in_time()
        recipe, baseline = made.plan.recipe, made.plan.baseline
        key = made.plan.role_keys["evaluation"]
        if samples is not None:
            samples = samples.model_copy(update={"labels": recipe.data["evaluation"].labels})
            recipe = recipe.model_copy(update={"data": {**recipe.data, "evaluation": samples}})
            of = data.ingredients(samples, recipe.folder, self.store.digests)
            key = key_of({"step": "samples", **of})
        context = EvaluationContext(
            recipe,
            key,
            self.store,
            self.folder / "logs",
            self.observer,
            settings.timeout_s,
            settings.jobs,
            nodes=self.nodes,
        )
        subjects = [subject(made, each) for each in dict.fromkeys((baseline, name))]
        accuracies, failures = compare_all(subjects, baseline, context)
        for error in failures.values():
            raise error
        return accuracies[name]

    def measure(
        self,
        made: BuiltPlan,
        names: Sequence[str],
        settings: LatencySettings,
        seed: int,
        *,
        wants_p99: bool = False,
        enough: Callable[[Measured], bool] | None = None,
    ) -> Measured:
        """Time variants in turns, the first as the one that the others are compared with.

        `enough` ends it after a launch, as `latency.measure` says.
        """
        self._in_time()
        candidates = []
        for name in names:
            one = subject(made, name)
            candidates.append(Candidate(name, one.artifact, one.runner_name, one.options))
        order = LatencyOrder(
            tuple(candidates),
            names[0],
            made.plan.recipe.inputs,
            made.feeds,
            settings,
            seed,
            wants_p99,
        )
        with places.holding_measurement_lock("latency", self.observer):
            return latency.measure(order, self.folder / "logs", self.observer, enough=enough)


def artifact(made: BuiltPlan, name: str) -> Artifact:
    """What was built of a variant. Raises the error of the step that failed."""
    if name in made.artifacts:
        return made.artifacts[name]
    steps = planned(made, name).steps
    errors = (made.done[step.key].error for step in steps if step.key in made.done)
    missing = planned(made, name).missing
    reason = missing[0].what if missing else "it was not built"
    raise next((e for e in errors if e is not None), StepError(reason, place=name))


def planned(made: BuiltPlan, name: str) -> PlannedVariant:
    """A variant as it was planned."""
    return next(each for each in made.plan.variants if each.name == name)


def subject(made: BuiltPlan, name: str) -> Subject:
    """A variant that was built, as it is judged. Raises the error of the step that failed."""
    variant = planned(made, name)
    options = variant.runner_options(made.plan.threads)
    return Subject(name, artifact(made, name), variant.runner_name, variant.runner, options)


def early_end(made: BuiltPlan, name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Why a training of a trial ended early, and after what share of its `train_s`."""
    facts: dict[str, Any] = {}
    steps = planned(made, name).steps
    trainings = [step for step in steps if step.name == "finetune"]
    if parameters.get("train_s"):
        # Those before are of what was `learned`. `more_s` is the last, where there is one.

        step = trainings[-2 if parameters.get("more_s") else -1]
        stopping = _facts_of(made, step)["finetuning"].get("early_stopping", {})
        if stopping.get("why"):
            facts = {"ended_early": stopping["why"], "trained_share": stopping["share"]}
    for step in steps:
        if step.name == "quantize_aware":
            stopping = _facts_of(made, step)["quantization_aware_training"].get("early_stopping", {})
            facts |= {"ended_early": stopping["why"]} if stopping.get("why") else {}
    return facts


def blocks_gone(made: BuiltPlan, name: str) -> dict[str, Any]:
    """How many blocks of a network were removed, and of how many."""
    step = next(step for step in planned(made, name).steps if step.name == "prune")
    pruning = _facts_of(made, step)["pruning"]
    return {"blocks_removed": len(pruning["blocks_removed"]), "blocks_found": pruning["blocks_found"]}


def _facts_of(made: BuiltPlan, step: Step) -> dict[str, Any]:
    return dict(made.done[step.key].artifact().facts)


def family_of(built: Artifact) -> str | None:
    """Whether a network is a transformer: it has attention, several times over."""
    kinds = [layer.kind for layer in layers_of(built, built)]
    if not kinds:
        return None
    return TRANSFORMER if sum(kind in _ATTENTION for kind in kinds) > 1 else CONVOLUTIONAL
