"""One trial: the variant with other options of one pass, built, judged, and timed if it is right."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from optcli import accuracy, latency
from optcli.artifact import Artifact
from optcli.errors import OptcliError, StepError
from optcli.observer import Observer
from optcli.pipeline.accuracy_elsewhere import Nodes
from optcli.pipeline.execute import Settings
from optcli.pipeline.making import Made
from optcli.recipe import Recipe, Variant
from optcli.results import Accuracy, Estimate
from optcli.results.repair import Trial
from optcli.settings import LatencySettings
from optcli.store import Store
from optcli.tuning.workshop import Workshop, artifact, planned

_LOOKING = 3
_CONFIRMING = 5


@dataclass
class Trying:
    """Carries out trials of a variant's pass at `index`; artifacts go into the store.

    `folder` is where logs go. With `nodes` other machines evaluate.
    """

    recipe: Recipe
    variant: str
    index: int
    store: Store
    folder: Path
    observer: Observer
    settings: Settings
    nodes: Nodes | None = None
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
        name = self._name(0)
        made = self._make(name, {})
        built = artifact(made, name)
        self.runner_name = planned(made, name).runner_name
        judged = self._workshop.judge(made, name)
        trial = self._timed(self._trial(0, "as it is", {}, built, judged), made, name, built, None)
        trial = trial.model_copy(update={"seconds": round(time.monotonic() - began, 1)})
        return trial, built, artifact(made, self._parent), judged

    def attempt(self, number: int, label: str, changed: dict[str, Any], start: Trial) -> Trial:
        """Carry out a trial. Its errors are not raised: the message becomes the trial's `reason`."""
        began = time.monotonic()
        name = self._name(number)
        try:
            made = self._make(name, changed)
            built = artifact(made, name)
            judged = self._workshop.judge(made, name)
            trial = self._trial(number, label, changed, built, judged)
            trial = self._timed(trial, made, name, built, start)
        except OptcliError as error:
            trial = Trial(
                number=number, label=label, options=changed, seconds=0.0, reason=error.message
            )
        return trial.model_copy(update={"seconds": round(time.monotonic() - began, 1)})

    @property
    def _parent(self) -> str:
        return f"{self.variant}.float"

    def _name(self, number: int) -> str:
        return f"{self.variant}.trial-{number}"

    @property
    def _workshop(self) -> Workshop:
        return Workshop(self.store, self.folder, self.observer, self.settings, self.nodes)

    def _make(self, name: str, changed: dict[str, Any]) -> Made:
        """The trial, its float parent and the baseline; the last two come from the store."""
        recipe = self.recipe
        variant, baseline = recipe.variants[self.variant], str(recipe.baseline)
        floats = (*variant.passes[: self.index], *variant.passes[self.index + 1 :])
        variants = {
            baseline: recipe.variants[baseline],
            self._parent: variant.model_copy(update={"passes": floats}),
            name: with_options(variant, self.index, changed),
        }
        return self._workshop.make(recipe.model_copy(update={"variants": variants}))

    def _trial(
        self, number: int, label: str, changed: dict[str, Any], built: Artifact, judged: Accuracy
    ) -> Trial:
        counts = built.facts.get("quantized_operators")
        verdicts = accuracy.verdicts(judged, self.recipe.accuracy)
        return Trial(
            number=number,
            label=label,
            options=changed,
            inside=all(each.outcome == "accept" for each in verdicts if each.blocking),
            value=judged.value,
            drop=judged.drop,
            operators=sum(counts.values()) if counts is not None else None,
            size_bytes=built.size_bytes,
            key=built.key,
            seconds=0.0,
        )

    def _timed(
        self, trial: Trial, made: Made, name: str, built: Artifact, start: Trial | None
    ) -> Trial:
        """The trial with its speed-up over the float parent, if it is trial 0 or inside the bar."""
        if start is not None and start.operators is not None and trial.operators is not None:
            fewer = max(0, start.operators - trial.operators)
            trial = trial.model_copy(update={"float_operators": fewer})
        if not trial.inside and start is not None:
            return trial
        looked = self._measured(trial, made, name, built, launches=_LOOKING)
        if start is None or not looked.pays:
            return looked
        # Of many trials one looks faster by chance: it must be so again, over fresh processes.
        return self._measured(trial, made, name, built, launches=_CONFIRMING)

    def _measured(
        self, trial: Trial, made: Made, name: str, built: Artifact, *, launches: int
    ) -> Trial:
        size = self.recipe.latency.batch_sizes[0]
        asked = {"mode": "quick", "batch_sizes": (size,), "launches": launches}
        asked |= {"threads": made.plan.threads, "max_seconds": 5.0 * launches}
        settings = LatencySettings.model_validate(asked)
        measured = self._workshop.measure(
            made, (self._parent, name), settings, self.recipe.seed + launches
        )
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
