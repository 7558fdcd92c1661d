"""The finalists of a search: built as variants, measured together, judged on samples it never saw."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from optcli.accuracy import policies
from optcli.errors import ExitCode, shown_path
from optcli.observer import Observer
from optcli.pipeline import building, reporting
from optcli.pipeline.execute import BuildSettings
from optcli.recipe import Recipe
from optcli.report.recommendation import Advice
from optcli.results import Estimate, Latency, Report, VariantReport
from optcli.results.outcomes import Outcome
from optcli.results.tuning import COUNTED_IN_BYTES, Finalist, Tuning, scaled
from optcli.store import Store
from optcli.tuning import finalists
from optcli.tuning.finalists import FinalistChoice
from optcli.tuning.starting import LIBRARIES
from optcli.tuning.trial_facts import CAREFUL
from optcli.tuning.trials import WITHOUT_METRIC

_MS_PER_HOUR = 3.6e6
_MOST_MEASURING_S, _LEAST_MEASURING_S = 30.0, 2.0


def confidence_of(recipe: Recipe, finalists: int) -> float | None:
    """The confidence of each finalist's verdict, so that all of them together have the recipe's."""
    if recipe.accuracy is None:
        return None
    return 1.0 - (1.0 - recipe.accuracy.confidence) / finalists


def build(
    recipe: Recipe,
    overrides: Sequence[str],
    baseline: tuple[str, Mapping[str, Any]],
    path: Path,
    choices: Mapping[str, FinalistChoice],
    batch_sizes: Sequence[int],
    spare_s: float,
    store: Store,
    artifacts: Path | None,
    settings: BuildSettings,
    observer: Observer,
) -> Report:
    """Write the tuned recipe at `path` and build it; the timed calls take about `spare_s`.

    Raises what a build raises, and `StoreError` where the recipe cannot be written.
    """
    changed = finalists.settings_of(overrides)
    sizes = sorted({*recipe.latency.batch_sizes, *batch_sizes})
    changed["latency"] = {**changed.get("latency", {}), "batch_sizes": sizes}
    rows = (len(choices) + 1) * len(sizes)
    measuring_s = min(_MOST_MEASURING_S, max(_LEAST_MEASURING_S, spare_s / rows))
    content = finalists.text(
        recipe,
        path,
        choices,
        baseline,
        changed,
        confidence=confidence_of(recipe, len(choices)),
        measuring_s=round(measuring_s, 1),
        command=f"optcli tune {shown_path(recipe.path)}",
    )
    finalists.write(path, content)
    return building.build(
        path,
        store=store,
        artifacts=artifacts,
        settings=replace(settings, at_home=True),
        observer=observer,
    )


def without_finalists(tuning: Tuning, recipe: Recipe, started: str) -> Report:
    """The report of a search that found nothing to judge: its trials, and nothing that was built."""
    nothing = VariantReport(
        status="skipped", reason="the search found no finalist to build and measure beside it"
    )
    report = reporting.report(
        reporting.recipe_summary(recipe).model_copy(update={"name": f"{recipe.name}-tuned"}),
        recipe.baseline,
        {recipe.baseline: nothing},
        packages=LIBRARIES,
        started=started,
        code=ExitCode.REJECTED,
        reason="no trial was inside the bar on validation samples",
        advice=Advice(recommended=None, sentence=tuning.answer, by_batch={}),
    )
    return report.model_copy(update={"tuning": tuning})


def with_finalists(
    tuning: Tuning, report: Report, choices: Mapping[str, FinalistChoice], recipe: Recipe
) -> Tuning:
    """The search with its finalists as the report judges them, and the winner."""
    judged = tuple(
        _with_objective(_finalist(name, choice, report, tuning, recipe), report, tuning, recipe)
        for name, choice in choices.items()
    )
    won = winner(judged, tuning.bar)
    counts = tuning.objective in COUNTED_IN_BYTES
    bytes_before = _bytes_of(report.variants[report.baseline], tuning) if counts else None
    return tuning.model_copy(
        update={
            "finalists": judged,
            "confidence": confidence_of(recipe, len(choices)),
            "winner": won.variant if won is not None else None,
            "outcome": _outcome(won, tuning, bytes_before),
            "baseline": report.baseline,
            "baseline_bytes": bytes_before,
        }
    )


def _outcome(won: Finalist | None, tuning: Tuning, bytes_before: int | None) -> str:
    """Whether the winner is known to be better than the baseline, by what the objective is about."""
    if won is None:
        return "none"
    if tuning.objective in COUNTED_IN_BYTES:
        needed = won.needed_bytes
        smaller = needed is not None and bytes_before is not None and needed < bytes_before
        return "faster" if smaller else "accurate"
    gains = {"cost": won.cheaper, "p99": won.p99_speedup}.get(tuning.objective, won.speedup)
    known = [gains.get(size) for size in tuning.batch_sizes]
    surely = all(each is not None and (each.low or 0.0) > 1.0 for each in known)
    return "faster" if surely else "accurate"


def winner(judged: Sequence[Finalist], bar: float | None = None) -> Finalist | None:
    """The best finalist that is accepted; of those surely inside the bar, where there are any.

    Where the samples are too few for that, it is the best of those that lose at most a quarter of the
    bar, else of those that lose least: other samples would put the others outside more often. A row
    that the machine was not quiet for decides nothing: where that is so of all, the one that the search
    found the best is named, which stands first.
    """
    accepted = [each for each in judged if each.outcome == "accept"]
    pool = [each for each in accepted if each.certain] or _careful(accepted, bar)
    measured = [each for each in pool if each.score is not None]
    if measured:
        return max(measured, key=lambda each: each.score or 0.0)
    return pool[0] if pool else None


def _careful(accepted: Sequence[Finalist], bar: float | None) -> Sequence[Finalist]:
    """Those of whom it is least likely that they are outside the bar on other samples."""
    known = [each.loss for each in accepted if each.loss is not None]
    if bar is None or not known:
        return accepted
    most = max(min(known), CAREFUL * bar)
    return [each for each in accepted if each.loss is not None and each.loss <= most]


def _finalist(
    name: str, choice: FinalistChoice, report: Report, tuning: Tuning, recipe: Recipe
) -> Finalist:
    variant, trial = report.variants[name], choice.trial
    policy = recipe.accuracy.policy if recipe.accuracy is not None else None
    accuracy = variant.accuracy
    loss = None
    if accuracy is not None:
        loss = accuracy.drop.value if accuracy.drop is not None else None
        if loss is None and accuracy.agreement is not None:
            loss = 1.0 - accuracy.agreement
    outcome = _blocked(variant)
    if recipe.accuracy is None and loss is not None and loss > WITHOUT_METRIC:
        outcome = "reject"  # no verdict of a build says so: a recipe without a metric has no bar
    rows = {row.batch_size: row for row in variant.on_host if row.batch_size in tuning.batch_sizes}
    before = trial.loss.value if trial.loss is not None else None
    return Finalist(
        variant=name,
        trial=trial.number,
        why=choice.why,
        outcome=outcome,
        certain=policies.is_certain(variant.verdicts, policy),
        validation_loss=before,
        loss=loss,
        optimism=loss - before if loss is not None and before is not None else None,
        speedup={size: row.speedup for size, row in rows.items() if row.speedup is not None},
        p50_ms={size: row.p50_ms.value for size, row in rows.items()},
        score=_score(tuning, variant, rows),
    )


def _with_objective(finalist: Finalist, report: Report, tuning: Tuning, recipe: Recipe) -> Finalist:
    """The finalist with what the objective is about, where that is not the usual call."""
    if tuning.objective in COUNTED_IN_BYTES:
        needed = _bytes_of(report.variants[finalist.variant], tuning)
        return finalist.model_copy(update={"needed_bytes": needed})
    before = {row.batch_size: row for row in report.variants[report.baseline].on_host}
    rows = {row.batch_size: row for row in report.variants[finalist.variant].on_host}
    if tuning.objective == "p99":
        ratios = {
            size: _ratio(before[size].p99_ms, rows[size].p99_ms)
            for size in finalist.speedup  # rows that are fit, beside a baseline that is
            if size in before
        }
        known = {size: ratio for size, ratio in ratios.items() if ratio is not None}
        return finalist.model_copy(update={"p99_speedup": known})
    if tuning.objective == "cost":
        return finalist.model_copy(update=_costs(finalist, before, rows, recipe.tune.core_hour))
    return finalist


def _ratio(over: Estimate | None, of: Estimate | None) -> Estimate | None:
    """How many times as large the first is; its bounds are those of both at their worst."""
    if over is None or of is None:
        return None
    low = over.low / of.high if over.low is not None and of.high else None
    high = over.high / of.low if over.high is not None and of.low else None
    return Estimate(value=over.value / of.value, low=low, high=high)


def _costs(
    finalist: Finalist,
    before: Mapping[int, Latency],
    rows: Mapping[int, Latency],
    core_hour: float | None,
) -> dict[str, Any]:
    """What images cost: time on all threads."""
    cheaper = {
        size: scaled(ratio, before[size].threads / rows[size].threads)
        for size, ratio in finalist.speedup.items()
        if size in before
    }
    costs = {
        size: core_hour * rows[size].threads * ms / size / _MS_PER_HOUR * 1000
        for size, ms in finalist.p50_ms.items()
        if core_hour is not None
    }
    return {"cheaper": cheaper, "cost_per_1000": costs}


def _blocked(variant: VariantReport) -> Outcome:
    """The worst outcome of the blocking verdicts; inconclusive for what was not built."""
    outcomes = {each.outcome for each in variant.verdicts if each.blocking}
    if "reject" in outcomes:
        return "reject"
    is_there = variant.status in ("built", "cached")
    return "accept" if is_there and "inconclusive" not in outcomes else "inconclusive"


def _bytes_of(variant: VariantReport, tuning: Tuning) -> int | None:
    """What the objective makes small: the files, or the memory at its batch sizes."""
    if tuning.objective == "size":
        return variant.artifact.size_bytes if variant.artifact else None
    rows = [row for row in variant.on_host if row.batch_size in tuning.batch_sizes]
    return max((row.peak_memory_bytes for row in rows if row.peak_memory_bytes), default=None)


def _score(tuning: Tuning, variant: VariantReport, rows: Mapping[int, Latency]) -> float | None:
    """The objective as the finalists were measured; larger is better.

    None where a row is not fit, or has too few calls for its p99: another percentile in its place would
    be less than the p99 of a faster one.
    """
    if tuning.objective in COUNTED_IN_BYTES:
        known = _bytes_of(variant, tuning)
        return 1.0 / max(1, known) if known is not None else None
    if not rows or not all(row.fit for row in rows.values()):
        return None
    figures = [_figure(row, tuning.objective) for row in rows.values()]
    logs = [math.log(figure) for figure in figures if figure is not None]
    return math.exp(-sum(logs) / len(logs)) if len(logs) == len(figures) else None


def _figure(row: Latency, objective: str) -> float | None:
    """What the objective makes small, at one batch size."""
    if objective == "p99":
        return row.p99_ms.value if row.p99_ms is not None else None
    return row.p50_ms.value * (row.threads if objective == "cost" else 1)
