"""The batch sweep in a build: one artifact after the other, each kept by what decides it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optcli.artifact import Artifact
from optcli.errors import OptcliError
from optcli.measure.latency import Candidate
from optcli.observer import Observer
from optcli.pipeline import keys, places
from optcli.pipeline.places import Place, SweepOrder
from optcli.pipeline.plan import Plan, PlannedVariant
from optcli.results import Sweep
from optcli.store import Store, key_of

_KIND = "sweep"
_CODE = (
    *("measure/latency/process.py", "measure/latency/sweep.py"),
    *("pipeline/sweep.py", "results/flags.py"),
)


def measure(
    plan: Plan,
    artifacts: Mapping[str, Artifact],
    store: Store,
    feeds: Path | None,
    logs: Path,
    observer: Observer,
    remeasure: bool,
    place: Place = places.HERE,
) -> dict[str, Sweep]:
    """The sweeps of all variants that were built and can run at a place.

    There are none where the recipe asks for none. One that fails has no points and says why. It is not
    kept, nor is one with a point that is not fit.
    """
    if plan.recipe.latency.sweeping is None:
        return {}
    variants = [v for v in plan.variants if v.name in artifacts and not v.unmeasurable]
    sweeps: dict[str, Sweep] = {}
    for variant in variants:
        artifact = artifacts[variant.name]
        ingredients = _ingredients(plan, variant, artifact, feeds, store, place)
        key = key_of(ingredients)
        entry = store.get(_KIND, key, anew=remeasure)
        step = plan.on_device(f"{variant.name} › sweep")
        if entry is not None:
            observer.cached(step)
            sweeps[variant.name] = Sweep.model_validate(entry.record)
            continue
        try:
            sweeps[variant.name] = _measured(
                plan, variant, artifact, feeds, logs, observer, place, step
            )
        except OptcliError as error:
            observer.failed(step, error.message)
            sweeps[variant.name] = Sweep(stopped_because=f"it failed: {error.message}")
            continue
        if all(point.fit for point in sweeps[variant.name].points):
            with store.work(_KIND, key) as work:
                store.put(_KIND, key, work, sweeps[variant.name].model_dump(mode="json"), ingredients)
    return sweeps


def _measured(
    plan: Plan,
    variant: PlannedVariant,
    artifact: Artifact,
    feeds: Path | None,
    logs: Path,
    observer: Observer,
    place: Place,
    step: str,
) -> Sweep:
    settings = plan.recipe.latency.sweeping
    assert settings is not None
    options = variant.runner_options(plan.threads)
    order = SweepOrder(
        candidate=Candidate(variant.name, artifact, variant.runner_name, options),
        inputs=plan.recipe.inputs,
        feeds=feeds,
        settings=settings,
        seed=plan.recipe.seed,
        p99_ms=plan.recipe.slo.p99_ms if plan.recipe.slo else None,
    )
    return place.sweep(step, order, logs / f"{variant.name}.sweep.log", observer)


def _ingredients(
    plan: Plan,
    variant: PlannedVariant,
    artifact: Artifact,
    feeds: Path | None,
    store: Store,
    place: Place,
) -> dict[str, Any]:
    settings = plan.recipe.latency.sweeping
    return {
        "step": _KIND,
        "artifact": variant.identity(artifact, plan.threads),
        "settings": settings.model_dump(mode="json") if settings else None,
        "p99_ms": plan.recipe.slo.p99_ms if plan.recipe.slo else None,
        "inputs": [spec.model_dump(mode="json") for spec in plan.recipe.inputs],
        "seed": plan.recipe.seed,
        "real_inputs": plan.data_key if feeds else None,
        "environment": place.environment(variant.runner.needs.packages),
        "machine": place.machine(),
        "code": keys.of_measurement(variant.runner_name, _CODE, store.digests),
    }
