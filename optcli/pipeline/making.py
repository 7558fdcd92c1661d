"""The first half of a build: the recipe read, planned, and its artifacts made."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optcli.accuracy import require_metric
from optcli.artifact import Artifact
from optcli.errors import MissingError, StepError, UsageError, did_you_mean
from optcli.observer import Observer
from optcli.pipeline import plugins, shapes
from optcli.pipeline.execute import BuildSettings, Execution, StepResult
from optcli.pipeline.labels import with_labels
from optcli.pipeline.local_maker import log_of
from optcli.pipeline.places import MeasuringContext
from optcli.pipeline.plan import BuildPlan, PlannedVariant, plan_of
from optcli.pipeline.terms import judging_files
from optcli.pipeline.trusting import is_fetched, measured_as, require_wall
from optcli.recipe import load
from optcli.results.outcomes import DataRemark
from optcli.store import Store, disk


@dataclass(frozen=True)
class BuiltPlan:
    """What the steps of a plan gave: `done` by key, `artifacts` by the names of variants built.

    `feeds` is an .npz of prepared samples by input name; None where the recipe names no data.
    `sample_counts` says how many samples each role of the data has.
    """

    plan: BuildPlan
    done: dict[str, StepResult]
    artifacts: dict[str, Artifact]
    feeds: Path | None
    sample_counts: Mapping[str, int]


def planned(
    path: Path,
    store: Store,
    overrides: Sequence[str],
    only: Sequence[str],
    *,
    remember: bool = True,
) -> BuildPlan:
    """The plan of a recipe; `remember` is that of `with_labels`.

    Raises `RecipeError`, `InputError` and `UsageError`.
    """
    recipe = load(path, overrides)
    if recipe.accuracy is not None:
        require_metric(recipe.accuracy)
        judging_files(recipe)
    for name in only:
        if name not in recipe.variants:
            hint = did_you_mean(name, list(recipe.variants))
            raise UsageError(f"the recipe has no variant {name!r}", place="--only", hint=hint)
    traits = plugins.traits(recipe, store, store.digests)
    return plan_of(with_labels(recipe, store, remember=remember), traits, store.digests, only)


def make(
    plan: BuildPlan,
    store: Store,
    observer: Observer,
    settings: BuildSettings,
    phases: Phases,
    *,
    remeasure: bool = False,
) -> BuiltPlan:
    """Carry out a plan's steps, as far as the store does not have them, and settle how each is run.

    The plan of the result has the shapes of every runner chosen; `remeasure` compares these anew.

    Raises what fails all variants: `StepError` and `InputError` for the model or the data,
    `MissingError` where not even the model can be read here, `TrustError` for a model that nobody can
    show to be harmless, without `trust` in the settings.
    """
    require_wall(plan, trust=settings.trust)
    # A folder is cleared by who makes the same entry again; of an entry that is there, nobody does.
    with disk.failures(store.root):
        store.clear_stale()
    with Execution(plan, store, observer, settings) as execution:
        try:
            with phases.take("data"):
                data = execution.prepare_data()
            plan = _with_remarks(plan, data.record.get("remarks", ()) if data else (), observer)
        except StepError as error:  # it died: of a sample that crashes a decoder, or for memory
            raise _with_log(error, "data", store, plan.data_key) from error
        with phases.take("steps"):
            done = execution.run()
    _raise_what_fails_all(plan, done, store)
    store.digests.save()
    artifacts = {
        variant.name: measured_as(
            done[variant.last.key].artifact(),
            variant,
            plan,
            trust=settings.trust,
            fetched=is_fetched(done[step.key].entry for step in variant.steps),
        )
        for variant in plan.variants
        if variant.last.key in done and done[variant.last.key].status != "failed"
    }
    feeds = data.path / "probe.npz" if data else None
    with phases.take("shapes"):
        plan = shapes.settled(plan, MeasuringContext(artifacts, store, feeds, observer, remeasure))
    counts = data.record["samples"] if data else {}
    return BuiltPlan(plan, done, artifacts, feeds, counts)


def _with_remarks(plan: BuildPlan, remarks: Sequence[str], observer: Observer) -> BuildPlan:
    """The plan with what its samples show; the observer hears of it."""
    for text in remarks:
        observer.warned("data", text)
    data_remarks = tuple(DataRemark(text=text, about="preparation", doubtful=True) for text in remarks)
    recipe = plan.recipe
    recipe = recipe.model_copy(update={"data_remarks": (*recipe.data_remarks, *data_remarks)})
    return replace(plan, recipe=recipe)


def made_by(variant: PlannedVariant) -> list[dict[str, Any]]:
    """The steps of a variant, each with the ingredients of its key."""
    return [{"key": step.key, **step.ingredients} for step in variant.steps]


def _raise_what_fails_all(plan: BuildPlan, done: dict[str, StepResult], store: Store) -> None:
    """Raise the error of the step that reads the model: without a model no variant can be built."""
    key = plan.variants[0].steps[0].key
    source = done.get(key)
    if source is not None and isinstance(source.error, StepError):
        raise _with_log(source.error, "", store, key)
    if source is not None and source.error is not None:
        raise source.error
    if source is None:
        first = plan.variants[0].missing[0]
        raise MissingError(first.what, place=plan.variants[0].name, hint=first.hint)


def _with_log(error: StepError, place: str, store: Store, key: str | None) -> StepError:
    hint = f"log: {log_of(store, key)}" if key else ""
    hint = "; ".join(filter(None, (error.hint, hint)))
    return StepError(error.message, place=error.place or place, hint=hint)


class Phases:
    """Seconds by phase: `with phases.take("latency"): ...`, several times if need be."""

    def __init__(self) -> None:
        self.took_s: dict[str, float] = {}

    @contextmanager
    def take(self, name: str) -> Iterator[None]:
        """Add the time of the block to a phase, also where it ends in an error."""
        began = time.monotonic()
        try:
            yield
        finally:
            took = self.took_s.get(name, 0.0) + time.monotonic() - began
            self.took_s[name] = round(took, 3)
