"""Why a variant fails: what was changed, what it did to the graph, which operators take longer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from optcli import environment, inspection, profiling
from optcli.baselines import Baseline, Kept
from optcli.errors import OptcliError
from optcli.gate import causes
from optcli.gate.side import Side
from optcli.inspection import Target
from optcli.pipeline import reporting
from optcli.results import Flag, flags
from optcli.results.gate import OperatorGrowth
from optcli.settings import TensorSpec, batch_range

_MOST_OPERATORS = 5
# Less than this is noise of two profiles that were not taken side by side.
_LEAST_MS, _LEAST_SHARE = 0.005, 0.05


def explain(
    before: Baseline, side: Side, inputs: Sequence[TensorSpec], logs: Path
) -> tuple[list[str], list[OperatorGrowth], list[Flag]]:
    """Causes, the root first; operators whose time grew, worst first; and what is not known."""
    assert side.before is not None
    then, now = side.before, side.now
    here = environment.describe(side.packages)["versions"]
    running = causes.of_running(before.environment.get("versions", {}), here, side.packages)
    reasons = causes.merged(causes.of_making(then.made_by, now.made_by), running)
    if then.runner != now.runner:
        reasons.append(f"runner {then.runner}, now {now.runner}")
    else:
        reasons += causes.of_options(then.options, now.options)
    if then.artifact.digest != now.artifact.digest:
        reasons += _graph(then, now)
    elif not reasons:
        reasons.append("the artifact is the same: the machine may behave otherwise")
    try:
        return reasons, _operators(before, then, now, inputs, logs), []
    except OptcliError as error:  # an explanation that cannot be had is no failure of the gate
        return reasons, [], [flags.operators_not_compared(error.message)]


def _graph(then: Kept, now: Kept) -> list[str]:
    """How the two networks differ: operators by type, where both can be looked into."""
    try:
        before, after = _counts(then), _counts(now)
    except OptcliError:
        return []
    words = [
        f"{name} {before[name]}, now {after[name]}"
        for name in sorted({*before, *after})
        if before[name] != after[name]
    ]
    if then.artifact.precision != now.artifact.precision:
        words.insert(0, f"precision {then.artifact.precision}, now {now.artifact.precision}")
    return [f"in the graph: {', '.join(words)}"] if words else []


def _counts(kept: Kept) -> Counter[str]:
    artifact = kept.artifact
    about = {"precision": artifact.precision, "made_by": list(kept.made_by), "facts": artifact.facts}
    findings = inspection.look_into(
        Target("gate", "artifact", artifact.format.value, artifact.path, about, artifact.trusted)
    )
    counts: Counter[str] = Counter()
    for operator in findings.operators or ():
        counts[operator.type] += operator.count
    return counts


def _operators(
    baseline: Baseline, then: Kept, now: Kept, inputs: Sequence[TensorSpec], logs: Path
) -> list[OperatorGrowth]:
    before = _times(then, inputs, logs, "baseline", baseline.interpreter)
    after = _times(now, inputs, logs, "candidate")
    grown = [
        OperatorGrowth(operator=name, baseline_ms=before.get(name, 0.0), candidate_ms=after[name])
        for name in after
        if after[name] - before.get(name, 0.0) > max(_LEAST_MS, _LEAST_SHARE * before.get(name, 0.0))
    ]
    grown.sort(key=lambda each: each.baseline_ms - each.candidate_ms)
    return grown[:_MOST_OPERATORS]


def _times(
    kept: Kept, inputs: Sequence[TensorSpec], logs: Path, name: str, interpreter: str | None = None
) -> dict[str, float]:
    """Milliseconds a call by type of operator; the Chrome trace is left beside the logs."""
    artifact = kept.artifact
    request = profiling.ProfileRequest(
        variant=name,
        recipe="gate",
        summary=reporting.artifact_summary(artifact, str(artifact.path)),
        artifact=artifact,
        runner=kept.runner,
        options={name: value for name, value in kept.options.items() if value is not None},
        inputs=tuple(inputs),
        batch_size=batch_range(inputs).min,
        trace=logs / f"{name}.trace.json",
    )
    profile = profiling.measure(request, logs / f"{name}.profile.log", interpreter)
    times: dict[str, float] = defaultdict(float)
    for each in profile.operators:
        times[each.type] += each.time_ms
    return times
