"""Accuracy in a build: every artifact on the same samples, kept by what decides it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli import accuracy, environment
from optcli.accuracy import Evaluation
from optcli.artifact import Artifact
from optcli.build.latency import identity, runner_options
from optcli.build.plan import Plan, PlannedVariant, own_code
from optcli.errors import OptcliError
from optcli.observer import Observer
from optcli.results import Accuracy
from optcli.store import Store, key_of

_EVALUATION = "evaluation"
_COMPARISON = "comparison"
_CODE = ("accuracy/process.py", "accuracy/metrics.py", "accuracy/pairs.py")


def judge(
    plan: Plan,
    artifacts: Mapping[str, Artifact],
    store: Store,
    logs: Path,
    observer: Observer,
    remeasure: bool,
    timeout_s: float,
) -> tuple[dict[str, Accuracy], dict[str, OptcliError]]:
    """Accuracy of every variant that was built and can run here, and why others have none.

    The baseline's outputs are computed once and kept by content. Without `data.evaluation` nothing
    is judged; without `accuracy:` only outputs are compared.
    """
    if "evaluation" not in plan.recipe.data:
        return {}, {}
    judging = _Judging(plan, artifacts, store, logs, observer, remeasure, timeout_s)
    variants = [v for v in plan.variants if v.name in artifacts and not v.unmeasurable]
    found: dict[str, Accuracy] = {}
    failures: dict[str, OptcliError] = {}
    # The baseline first: the others are compared with it.
    for variant in sorted(variants, key=lambda v: v.name != plan.baseline):
        try:
            result = judging.accuracy_of(variant)
        except OptcliError as error:
            error.place = error.place or f"{variant.name} › accuracy"
            observer.failed(f"{variant.name} › accuracy", error.message)
            failures[variant.name] = error
            continue
        if result is not None:
            found[variant.name] = result
    return found, failures


@dataclass
class _Judging:
    plan: Plan
    artifacts: Mapping[str, Artifact]
    store: Store
    logs: Path
    observer: Observer
    remeasure: bool
    timeout_s: float

    def __post_init__(self) -> None:
        self._ingredients: dict[str, dict[str, Any]] = {}
        self._failed: set[str] = set()
        self._fresh: set[str] = set()

    def accuracy_of(self, variant: PlannedVariant) -> Accuracy | None:
        """The variant beside the baseline; None where the baseline could not be evaluated."""
        base = next(v for v in self.plan.variants if v.name == self.plan.baseline)
        mine, theirs = self._of(variant), self._of(base)
        if self.plan.baseline in self._failed:
            return None
        ingredients = {"step": _COMPARISON, "variant": key_of(mine), "baseline": key_of(theirs)}
        key = key_of(ingredients)
        if self.remeasure:
            self.store.discard(_COMPARISON, key)
        known = self.store.get(_COMPARISON, key)
        if known is not None:
            self.observer.cached(f"{variant.name} › accuracy")
            return Accuracy.model_validate(known.record)
        try:
            folder = self._evaluation(variant, mine)
        except OptcliError:
            self._failed.add(variant.name)
            raise
        result = accuracy.compare(
            Evaluation.load(folder), Evaluation.load(self._evaluation(base, theirs))
        )
        with self.store.work(_COMPARISON, key) as work:
            self.store.put(_COMPARISON, key, work, result.model_dump(mode="json"), ingredients)
        return result

    def _evaluation(self, variant: PlannedVariant, ingredients: dict[str, Any]) -> Path:
        """The folder with what an artifact made of the evaluation set; computed where not kept."""
        key = key_of(ingredients)
        if self.remeasure and key not in self._fresh:
            self.store.discard(_EVALUATION, key)
        known = self.store.get(_EVALUATION, key)
        if known is not None:
            return known.path
        step = f"{variant.name} › accuracy"
        self.observer.started(step)
        began = time.monotonic()
        with self.store.lock(_EVALUATION, key), self.store.work(_EVALUATION, key) as work:
            scratch = work / "evaluation"
            accuracy.evaluate(
                self.artifacts[variant.name],
                variant.runner_name,
                runner_options(variant, self.plan.threads),
                self.plan.recipe.inputs,
                self.plan.recipe.data["evaluation"].model_dump(
                    mode="json", by_alias=True, exclude_unset=True
                ),
                self.plan.recipe.folder,
                self.plan.recipe.accuracy,
                scratch,
                self.observer,
                step=step,
                log=self.logs / f"{variant.name}.accuracy.log",
                timeout_s=self.timeout_s,
            )
            for path in scratch.iterdir():
                shutil.move(path, work / path.name)
            scratch.rmdir()
            entry = self.store.put(_EVALUATION, key, work, {}, ingredients)
        self._fresh.add(key)
        self.observer.finished(step, time.monotonic() - began)
        return entry.path

    def _of(self, variant: PlannedVariant) -> dict[str, Any]:
        """What decides the outputs and the metric of a variant."""
        if variant.name not in self._ingredients:
            settings = self.plan.recipe.accuracy
            artifact = self.artifacts.get(variant.name)
            self._ingredients[variant.name] = {
                "step": _EVALUATION,
                "artifact": identity(variant, artifact, self.plan.threads) if artifact else None,
                "data": self.plan.role_keys["evaluation"],
                "metric": settings.model_dump(mode="json", exclude={"max_drop"}) if settings else None,
                "inputs": [spec.model_dump(mode="json") for spec in self.plan.recipe.inputs],
                "cpu": environment.cpu(),
                "versions": environment.versions(variant.runner.needs.packages),
                "code": own_code(variant.runner_name, _CODE, self.store.digests),
            }
        return self._ingredients[variant.name]
