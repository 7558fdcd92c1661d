"""Static or dynamic shapes: where a recipe does not say, what is faster here.

Measured once for an artifact in its runner at the recipe's batch sizes, and kept in the store. From
then on it is part of the runner's settings: what measures, judges and serves it opens it alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from statistics import geometric_mean
from typing import Any

from optcli.artifact import Artifact
from optcli.errors import OptcliError
from optcli.measure.latency.feeds import choose_batch_sizes
from optcli.measure.latency.messages import MeasureRequest
from optcli.pipeline import keys
from optcli.pipeline.places import MeasuringContext
from optcli.pipeline.plan import BuildPlan, PlannedVariant
from optcli.settings import TensorSpec
from optcli.store import key_of

_KIND = "shapes"
_CODE = ("measure/latency/shapes.py", "pipeline/shapes.py")
# More forms of one model would take more memory than they are worth.
_MOST_FORMS = 16
# Compiling for each size takes memory and time to load: it must be so many times as fast, over the
# batch sizes that gain by it, to be worth it.
_WORTH = 1.02


def settled(plan: BuildPlan, context: MeasuringContext) -> BuildPlan:
    """The plan with `shapes` and `batch_sizes` of every runner that has them, of variants built.

    They are what is faster at the place. One that cannot be compared keeps the form for all sizes, and
    says so.
    """
    sizes, _ = choose_batch_sizes(plan.recipe.inputs, plan.recipe.latency.batch_sizes)
    compares = len(sizes) <= _MOST_FORMS and not plan.recipe.latency.is_off
    variants = []
    for each in plan.variants:
        artifact = context.artifacts.get(each.name)
        if compares and artifact is not None and _is_open(each, plan.recipe.inputs, artifact):
            named = getattr(each.runner, "batch_sizes", None)
            own = named or sizes
            ratios = _ratios(plan, each, artifact, own, context)
            each = _chosen(each, own, ratios, all_or_none=named is not None)
        elif _wanted(each) == "static" and getattr(each.runner, "batch_sizes", None) is None:
            each = _set(each, batch_sizes=sizes)
        variants.append(each)
    return replace(plan, variants=tuple(variants))


def _wanted(variant: PlannedVariant) -> str | None:
    return getattr(variant.runner, "shapes", None)


def _is_open(variant: PlannedVariant, inputs: tuple[TensorSpec, ...], artifact: Artifact) -> bool:
    """Whether shapes are still to be chosen: the recipe does not say, and the batch size varies."""
    varies = any(spec.batch_symbol is not None for spec in inputs)
    chosen = _wanted(variant) is not None or variant.unmeasurable
    return varies and not chosen and variant.runner.gains_by_static_shapes(artifact)


def _ratios(
    plan: BuildPlan,
    variant: PlannedVariant,
    artifact: Artifact,
    sizes: tuple[int, ...],
    context: MeasuringContext,
) -> dict[str, float]:
    """How many times as fast the static form is, by batch size; empty where there is none."""
    store, observer, place = context.store, context.observer, context.place
    options = variant.runner_options(plan.threads)
    ingredients = {
        "step": _KIND,
        "artifact": variant.identity(artifact, plan.threads),
        "batch_sizes": list(sizes),
        "inputs": [spec.model_dump(mode="json") for spec in plan.recipe.inputs],
        "environment": place.environment(variant.runner.needs.packages),
        "machine": place.machine(),
        "code": keys.of_measurement(variant.runner_name, _CODE, store.digests),
    }
    key = key_of(ingredients)
    entry = store.get(_KIND, key, anew=context.remeasure)
    if entry is not None:
        return dict(entry.record["ratios"])
    step = plan.on_device(f"{variant.name} › {_KIND}")
    inputs, runner, seed = plan.recipe.inputs, variant.runner_name, plan.recipe.seed
    request = MeasureRequest(artifact, inputs, runner, options, context.feeds, tuple(sizes), seed)
    try:
        comparison = place.compare(step, request, observer)
    except OptcliError as error:
        observer.warned(
            step, f"compiled once for all batch sizes: static shapes failed: {error.message}"
        )
        return {}
    if not comparison.steady:
        observer.warned(
            step,
            "compiled once for all batch sizes: the machine was not quiet enough to compare that with"
            " static shapes; the next build compares again",
        )
        return {}
    if comparison.refused is not None:
        observer.warned(step, f"compiled once for all batch sizes: {comparison.refused}")
    with store.work(_KIND, key) as work:
        store.put(_KIND, key, work, asdict(comparison), ingredients)
    return comparison.ratios


def _chosen(
    variant: PlannedVariant,
    sizes: tuple[int, ...],
    ratios: Mapping[str, float],
    *,
    all_or_none: bool,
) -> PlannedVariant:
    """The variant, compiled for the sizes that are faster by it: the others go to the form for all."""
    gains = {size: round(ratio, 3) for size, ratio in ratios.items()}
    variant = replace(variant, static_gains=gains)
    gaining = sizes if all_or_none else tuple(s for s in sizes if ratios.get(str(s), 0.0) >= 1.0)
    known = [ratios[str(size)] for size in gaining if str(size) in ratios]
    if known and geometric_mean(known) >= _WORTH:
        return _set(variant, shapes="static", batch_sizes=gaining)
    return _set(variant, shapes="dynamic")


def _set(variant: PlannedVariant, **settings: Any) -> PlannedVariant:
    return replace(variant, runner=variant.runner.model_copy(update=settings))
