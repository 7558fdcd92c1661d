"""From what was built and measured to the report of one variant: its status and its verdicts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optcli import accuracy, environment
from optcli.artifact import Artifact, costly_packing, has_own_model
from optcli.errors import OptcliError
from optcli.measure import latency
from optcli.pipeline import reporting
from optcli.pipeline.execute import StepResult
from optcli.pipeline.latency import LatencyResults
from optcli.pipeline.local_maker import log_of, repeat_command
from optcli.pipeline.plan import BuildPlan, PlannedVariant, Step
from optcli.results import (
    Accuracy,
    Flag,
    Latency,
    StepSummary,
    VariantReport,
    Verdict,
    flags,
)
from optcli.store import Store

_NOT_JUDGED = "it does not run on the machine that judges accuracy, the one where optcli was called"


def parent_of(variant: PlannedVariant, plan: BuildPlan) -> str | None:
    """The variant with the same passes in the same order, but for the fewest left out.

    None where there is none. `export, quantize` goes on from `export`, and so does `prune, export`:
    what pruning gains is separate from what exporting gains. Of several that leave out as many, the one
    in the same runner, then the one that leaves out the last ones.
    """
    own_passes = _passes(variant)
    candidates: list[tuple[int, bool, bool, int, str]] = []
    for place, other in enumerate(plan.variants):
        other_passes = _passes(other)
        if len(other_passes) < len(own_passes) and _is_within(other_passes, own_passes):
            elsewhere = other.runner_name != variant.runner_name
            cut_short = other_passes == own_passes[: len(other_passes)]
            left_out = len(own_passes) - len(other_passes)
            candidates.append((left_out, elsewhere, not cut_short, place, other.name))
    return min(candidates)[-1] if candidates else None


def changes_network(variant: PlannedVariant) -> bool:
    """Whether a pass of it may change what the network computes, as quantizing and pruning do."""
    return any(step.traits is not None and step.traits.tolerance is None for step in variant.steps)


def _passes(variant: PlannedVariant) -> list[tuple[str, str]]:
    """The variant's steps by name and options; the source comes first."""
    options = (step.ingredients.get("options") for step in variant.steps)
    texts = (json.dumps(each, sort_keys=True, default=str) for each in options)
    return [(step.name, text) for step, text in zip(variant.steps, texts, strict=True)]


def _is_within(some: Sequence[tuple[str, str]], all_: Sequence[tuple[str, str]]) -> bool:
    """Whether `some` are among `all_`, in their order."""
    rest = iter(all_)
    return all(each in rest for each in some)


def variant_report(
    variant: PlannedVariant,
    plan: BuildPlan,
    done: Mapping[str, StepResult],
    measured: LatencyResults,
    judged: Mapping[str, Accuracy],
    failures: Mapping[str, OptcliError],
    store: Store,
    logs: Path,
) -> VariantReport:
    """All about one variant. `failures` holds what went wrong after its artifact was made.

    `logs` is the folder of the logs of measuring and judging.
    """
    steps = [step for step in variant.possible if step.key in done]
    summaries = tuple(_step_summary(step.name, step.key, done[step.key], store) for step in steps)
    about: dict[str, Any] = {"required": variant.required, "steps": summaries}
    failed = next((step for step in steps if done[step.key].status == "failed"), None)
    if failed is not None:
        error, log = done[failed.key].error, _log(store, failed.key)
        return VariantReport(status="failed", reason=str(error), log=log, **about)
    if variant.missing:
        why, checked = _why_not_built(variant), _checked(steps, done)
        return VariantReport(status="skipped", reason=why, checked=checked, **about)
    if len(steps) < len(variant.steps):
        return VariantReport(
            status="skipped", reason="the build stopped at the first failure", steps=summaries
        )
    artifact = done[variant.last.key].artifact()
    effective = measured.effective.get(variant.name, {})
    options = variant.runner_options(plan.threads)
    problem = failures.get(variant.name)
    cached = all(done[step.key].status == "cached" for step in steps)
    rows = measured.rows.get(variant.name, ())
    judgement: tuple[Verdict, ...] = ()
    if variant.unmeasurable:
        judgement = _latency_verdicts(variant, plan, measured, artifact.size_bytes)
    elif not problem:
        judgement = verdicts(variant, plan, measured, judged, failures, artifact.size_bytes)
    static = {"static_gains": variant.static_gains} if variant.static_gains else {}
    return reporting.ran(
        artifact,
        variant.name,  # the artifact's folder is beside the report
        {"name": variant.runner_name, "requested": options, **effective, **static},
        problem,
        status="cached" if cached else "built",
        reason=_why_not_run(variant, plan.device),
        latency=rows,
        accuracy=judged.get(variant.name),
        verdicts=_explained(judgement, artifact, rows),
    ).model_copy(
        update={
            "flags": _flags(variant),
            "log": _last_words(logs, variant.name) if problem else None,
            **about,
            "build_s": _build_s([done[step.key] for step in steps]),
        }
    )


def _explained(
    all_verdicts: Sequence[Verdict], artifact: Artifact, rows: Sequence[Latency]
) -> tuple[Verdict, ...]:
    """The verdicts; a speed-up that does not pay with its cause, where the artifact knows it."""
    if not rows or rows[0].batch_size not in costly_packing(artifact.facts):
        return tuple(all_verdicts)
    own = has_own_model(artifact.facts, rows[0].batch_size)
    remedy = "try another runtime" if own else "fix the batch"
    cause = f"weights are packed on every call; {remedy}"
    return tuple(
        each.model_copy(update={"reason": f"{each.reason}: {cause}"})
        if each.is_speedup and each.outcome == "reject"
        else each
        for each in all_verdicts
    )


def _why_not_built(variant: PlannedVariant) -> str:
    reasons, hints = _lacking(variant.missing)
    return f"{reasons} ({hints})"


def _lacking(missing: Sequence[environment.Missing]) -> tuple[str, str]:
    """What is missing and what brings it, each in one text."""
    hints = dict.fromkeys(one.hint for one in missing)
    return "; ".join(one.what for one in missing), "; ".join(hints)


def _checked(steps: Sequence[Step], done: Mapping[str, StepResult]) -> tuple[str, ...]:
    """What a pass that cannot run here had to say of the artifact before it."""
    entries = [done[step.key].entry for step in steps if step.only_checks]
    return tuple(text for entry in entries if entry for text in entry.record["findings"])


def _why_not_run(variant: PlannedVariant, device: str | None) -> str | None:
    """Why an artifact that is there has no latency; None where it was run."""
    if not variant.unmeasurable:
        return None
    reasons, hints = _lacking(variant.unmeasurable)
    if device is not None:
        return f"not measured on {device}: {reasons} ({hints})"
    return f"not measured here: {reasons}, so neither latency nor accuracy is known ({hints})"


def _flags(variant: PlannedVariant) -> tuple[Flag, ...]:
    if not variant.unmeasurable:
        return ()
    lacks_gpu = variant.runner.requires().gpu and not environment.has_gpu()
    return (flags.no_gpu() if lacks_gpu else flags.no_runtime(),)


def verdicts(
    variant: PlannedVariant,
    plan: BuildPlan,
    measured: LatencyResults,
    judged: Mapping[str, Accuracy],
    failures: Mapping[str, OptcliError],
    size_bytes: int,
) -> tuple[Verdict, ...]:
    """Every verdict on a variant: accuracy, outputs, speed-up, service level.

    A variant that was to be compared with the baseline, and could not be, has a verdict that blocks.
    """
    is_baseline = variant.name == plan.baseline
    all_verdicts: list[Verdict] = []
    if variant.name not in judged and "evaluation" in plan.recipe.data:
        why = _NOT_JUDGED if plan.baseline in judged else _no_baseline(plan, failures)
        all_verdicts.append(accuracy.unjudged(why, plan.recipe.accuracy))
    if variant.name in judged:
        all_verdicts.extend(
            accuracy.verdicts(judged[variant.name], plan.recipe.accuracy, is_baseline=is_baseline)
        )
    return (*all_verdicts, *_latency_verdicts(variant, plan, measured, size_bytes))


def _latency_verdicts(
    variant: PlannedVariant, plan: BuildPlan, measured: LatencyResults, size_bytes: int
) -> tuple[Verdict, ...]:
    """The verdicts on the speed-up and on the service level; none where nothing is measured."""
    if plan.recipe.latency.is_off:
        return ()
    parent = parent_of(variant, plan)
    return latency.verdicts(
        measured.rows.get(variant.name, ()),
        plan.recipe.latency,
        plan.recipe.slo,
        plan.baseline,
        is_baseline=variant.name == plan.baseline,
        others=measured.rows.get(plan.baseline, ()),
        parent=parent,
        beside_parent=measured.rows.get(parent, ()) if parent else (),
        size_bytes=size_bytes,
    )


def _no_baseline(plan: BuildPlan, failures: Mapping[str, OptcliError]) -> str:
    """Why nothing could be compared with the baseline."""
    name = plan.baseline
    error = failures.get(name)
    if error is not None:
        return f"the baseline {name} could not be evaluated: {error.message}"
    planned = next((each for each in plan.variants if each.name == name), None)
    missing = planned and (planned.missing or planned.unmeasurable)
    why = f": {missing[0].what}" if missing else ": its steps failed"
    return f"the baseline {name} could not be evaluated{why}"


def _step_summary(name: str, key: str, done: StepResult, store: Store) -> StepSummary:
    return StepSummary(
        name=name,
        key=key,
        status=done.status,
        seconds=done.seconds,
        log=_log(store, key),
        repeat=repeat_command(store, key) if log_of(store, key).exists() else None,
        facts=done.entry.record.get("facts", {}) if done.entry is not None else {},
    )


def _build_s(steps: Sequence[StepResult]) -> float | None:
    seconds = [each.made_in_s for each in steps]
    return None if None in seconds else round(sum(each or 0.0 for each in seconds), 3)


def _last_words(logs: Path, name: str) -> str | None:
    """The log that was written last: of measuring a variant, or of judging it."""
    files = [path for path in (logs / f"{name}.log", logs / f"{name}.accuracy.log") if path.is_file()]
    return str(max(files, key=lambda path: path.stat().st_mtime_ns)) if files else None


def _log(store: Store, key: str) -> str | None:
    log: Path = log_of(store, key)
    return str(log) if log.exists() else None
