"""Latency in a build: comparisons, each stored and reused as a whole, and batch sweeps."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from optcli.artifact import Artifact
from optcli.errors import OptcliError
from optcli.measure import latency
from optcli.measure.latency import Candidate, LatencyOrder, Measured, SweepOrder
from optcli.measure.latency.summary import quantiles
from optcli.pipeline import keys
from optcli.pipeline.places import MeasuringContext
from optcli.pipeline.plan import BuildPlan, PlannedVariant
from optcli.results import Estimate, Latency, Sweep
from optcli.store import key_of

_KIND = "measurement"
STEP = "latency"
# In the process that times calls, and here; what is kept has figures of flags.
_CODE = ("measure/latency/process.py", "pipeline/latency.py", "results/flags.py")
# Of the settings: what does not change how these artifacts are measured.
_NOT_MEASURED_BY = ("min_speedup", "sweep", "devices")
# A variant, the one that it is compared with, and the batch size.
Pair = tuple[str, str, int]
_SWEEP = "sweep"
_SWEEP_CODE = (
    *("measure/latency/process.py", "measure/latency/sweep.py"),
    *("pipeline/latency.py", "results/flags.py"),
)


@dataclass(frozen=True)
class LatencyResults:
    """What was measured, by variant: rows, settings read back, failures.

    `ratios` holds every two variants that took turns with each other and were both fit, each two once;
    ask `ratio` for one. `quantiles` are for charts: a cached build draws them without reading the raw
    samples.
    """

    rows: dict[str, tuple[Latency, ...]] = field(default_factory=dict)
    effective: dict[str, dict[str, Any]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    protocol: dict[str, Any] = field(default_factory=dict)
    quantiles: dict[str, dict[int, list[float]]] = field(default_factory=dict)
    ratios: dict[Pair, Estimate] = field(default_factory=dict)

    def ratio(self, name: str, over: str, batch_size: int) -> Estimate | None:
        """How many times as fast one variant is as another, from turns taken side by side.

        Of whole calls. None where the two were not measured in one group, or either was not fit.
        """
        estimate = self.ratios.get((name, over, batch_size))
        if estimate is not None:
            return estimate
        other = self.ratios.get((over, name, batch_size))
        return None if other is None else _inverse(other)


def measure(plan: BuildPlan, context: MeasuringContext, samples: Path, logs: Path) -> LatencyResults:
    """Measure the variants that were built and can run at a place, or take it from the store.

    A comparison is reused as a whole or not at all: keyed by the artifacts, their runners, the
    settings, the environment and the machine. One that the machine was not fit for is not kept: the
    next build measures again. The raw samples are left at `samples`; with `latency: off` there are
    none, not even of an earlier build. Raises `OptcliError` where the place cannot be reached.
    """
    artifacts, store, observer = context.artifacts, context.store, context.observer
    variants = [v for v in plan.variants if v.name in artifacts and not v.unmeasurable]
    if not variants or plan.recipe.latency.is_off:
        samples.unlink(missing_ok=True)
        return LatencyResults()
    ids = _ids(plan, variants, artifacts)
    ingredients = _ingredients(plan, variants, ids, context)
    ingredients["code"] = {
        name: keys.of_measurement(name, _CODE, store.digests)
        for name in sorted({variant.runner_name for variant in variants})
    }
    key = key_of(ingredients)
    step = plan.on_device(STEP)
    entry = store.get(_KIND, key, anew=context.remeasure)
    if entry is not None:
        observer.cached(step)
        shutil.copyfile(entry.path / "samples.npz", samples)
        return _of_record(entry.record, ids)
    order = LatencyOrder(
        candidates=tuple(
            Candidate(v.name, artifacts[v.name], v.runner_name, v.runner_options(plan.threads))
            for v in variants
        ),
        baseline=plan.baseline,
        inputs=plan.recipe.inputs,
        feeds=context.feeds,
        settings=plan.recipe.latency.model_copy(update={"threads": plan.threads}),
        seed=plan.recipe.seed,
        wants_p99=_wants_p99(plan),
    )
    measured = context.place.measure(step, order, logs, observer)
    record = _to_record(measured, ids)
    samples.unlink(missing_ok=True)
    latency.save(measured, samples)
    results = _of_record(record, ids)
    if _is_decided(plan, measured):
        with store.work(_KIND, key) as work:
            shutil.copyfile(samples, work / "samples.npz")
            store.put(_KIND, key, work, record, ingredients)
    elif not results.failures:
        observer.warned(step, "the machine was not quiet: the next build measures again")
    return results


def _is_decided(plan: BuildPlan, measured: Measured) -> bool:
    """Whether everything was measured, on a machine that was fit for every figure that is wanted."""
    lost = _wants_p99(plan) and latency.lost_p99(measured)
    is_certain = not latency.undecided(measured) and not lost
    return not measured.failures and is_certain


def _wants_p99(plan: BuildPlan) -> bool:
    return plan.recipe.slo is not None and plan.recipe.slo.p99_ms is not None


def _ids(
    plan: BuildPlan, variants: list[PlannedVariant], artifacts: Mapping[str, Artifact]
) -> dict[str, str]:
    """Identities by variant. Two variants that are the same are measured both: the second is `…#2`."""
    ids: dict[str, str] = {}
    for variant in sorted(variants, key=lambda v: v.name != plan.baseline):
        plain = variant.identity(artifacts[variant.name], plan.threads)
        count = sum(identity.partition("#")[0] == plain for identity in ids.values())
        ids[variant.name] = f"{plain}#{count + 1}" if count else plain
    return ids


def _ingredients(
    plan: BuildPlan,
    variants: list[PlannedVariant],
    ids: dict[str, str],
    context: MeasuringContext,
) -> dict[str, Any]:
    packages = sorted({name for variant in variants for name in variant.runner.needs.packages})
    return {
        "step": STEP,
        "artifacts": sorted(set(ids.values())),
        "baseline": ids.get(plan.baseline),
        "settings": plan.recipe.latency.model_dump(mode="json", exclude={*_NOT_MEASURED_BY}),
        "inputs": [spec.model_dump(mode="json") for spec in plan.recipe.inputs],
        "seed": plan.recipe.seed,
        "wants_p99": _wants_p99(plan),
        "real_inputs": plan.data_key if context.feeds else None,
        "environment": context.place.environment(packages),
        "machine": context.place.machine(),
    }


def _to_record(measured: Measured, ids: dict[str, str]) -> dict[str, Any]:
    """Plain data by identity: what a later build reads without a heavy import."""
    rows_of = latency.to_results(measured)
    return {
        "rows": {ids[name]: [row.model_dump() for row in rows] for name, rows in rows_of.items()},
        "effective": {ids[name]: opened.effective for name, opened in measured.opened.items()},
        "ratios": [
            [ids[name], ids[over], size, estimate.model_dump()]
            for (name, over, size), estimate in _ratios(measured).items()
        ],
        "failures": {ids[name]: reason for name, reason in measured.failures.items()},
        "protocol": latency.protocol(measured),
        "quantiles": {ids[name]: sizes for name, sizes in quantiles(measured).items()},
    }


def _ratios(measured: Measured) -> dict[Pair, Estimate]:
    """Of every two variants that took turns with each other, the later one over the earlier one."""
    ratios: dict[Pair, Estimate] = {}
    for over, name in combinations(measured.names, 2):
        for series in measured.of(name):
            estimate = latency.speedup(measured, name, over, series.batch_size)
            if estimate is not None:
                ratios[name, over, series.batch_size] = estimate
    return ratios


def _inverse(ratio: Estimate) -> Estimate:
    low, high = (None if bound is None else 1 / bound for bound in (ratio.high, ratio.low))
    return Estimate(value=1 / ratio.value, low=low, high=high)


def _of_record(record: dict[str, Any], ids: dict[str, str]) -> LatencyResults:
    names = {identity: name for name, identity in ids.items()}

    def by_name(part: str) -> dict[str, Any]:
        return {
            name: record[part][identity]
            for name, identity in ids.items()
            if identity in record.get(part, {})
        }

    return LatencyResults(
        rows={
            name: tuple(Latency.model_validate(row) for row in rows)
            for name, rows in by_name("rows").items()
        },
        effective=by_name("effective"),
        failures=by_name("failures"),
        protocol=record["protocol"],
        quantiles={
            name: {int(size): values for size, values in sizes.items()}
            for name, sizes in by_name("quantiles").items()
        },
        ratios={
            (names[name], names[over], size): Estimate.model_validate(estimate)
            for name, over, size, estimate in record["ratios"]
            if name in names and over in names
        },
    )


def sweep_all(plan: BuildPlan, context: MeasuringContext, logs: Path) -> dict[str, Sweep]:
    """The sweeps of all variants that were built and can run at a place.

    There are none where the recipe asks for none. One that fails has no points and says why. It does
    not go into the store, nor does one with a point that is not fit.
    """
    settings = plan.recipe.latency.sweeping
    if settings is None:
        return {}
    store, observer, place = context.store, context.observer, context.place
    sweeps: dict[str, Sweep] = {}
    for variant in plan.variants:
        artifact = context.artifacts.get(variant.name)
        if artifact is None or variant.unmeasurable:
            continue
        order = SweepOrder(
            candidate=Candidate(
                variant.name, artifact, variant.runner_name, variant.runner_options(plan.threads)
            ),
            inputs=plan.recipe.inputs,
            feeds=context.feeds,
            settings=settings,
            seed=plan.recipe.seed,
            p99_ms=plan.recipe.slo.p99_ms if plan.recipe.slo else None,
        )
        ingredients = {
            "step": _SWEEP,
            "artifact": variant.identity(artifact, plan.threads),
            "settings": settings.model_dump(mode="json"),
            "p99_ms": order.p99_ms,
            "inputs": [spec.model_dump(mode="json") for spec in order.inputs],
            "seed": order.seed,
            "real_inputs": plan.data_key if order.feeds else None,
            "environment": place.environment(variant.runner.needs.packages),
            "machine": place.machine(),
            "code": keys.of_measurement(variant.runner_name, _SWEEP_CODE, store.digests),
        }
        key = key_of(ingredients)
        entry = store.get(_SWEEP, key, anew=context.remeasure)
        step = plan.on_device(f"{variant.name} › sweep")
        if entry is not None:
            observer.cached(step)
            sweeps[variant.name] = Sweep.model_validate(entry.record)
            continue
        try:
            sweep = place.sweep(step, order, logs / f"{variant.name}.sweep.log", observer)
        except OptcliError as error:
            observer.failed(step, error.message)
            sweep = Sweep(stopped_because=f"it failed: {error.message}")
        else:
            if all(point.fit for point in sweep.points):
                with store.work(_SWEEP, key) as work:
                    store.put(_SWEEP, key, work, sweep.model_dump(mode="json"), ingredients)
        sweeps[variant.name] = sweep
    return sweeps
