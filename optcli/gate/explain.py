"""Why a variant fails: what was changed, what it did to the graph, which operators take longer."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from optcli import environment
from optcli.errors import OptcliError
from optcli.gate.baselines import Baseline, BaselineVariant
from optcli.gate.side import Side
from optcli.measure import profiling
from optcli.pipeline import reporting
from optcli.report import wording
from optcli.results import Flag, flags
from optcli.results.gate import OperatorGrowth
from optcli.scaffold import inspection
from optcli.scaffold.inspection import Target
from optcli.settings import TensorSpec, batch_range
from optcli.store.why import ABSENT, differing, shown

# Follows from other ingredients, or says nothing about the artifact.
_CONSEQUENCES = ("key", "step", "parent", "kind", "model.kind", "model.versions")


_MOST_OPERATORS = 5


# Less than this is noise of two profiles that were not taken side by side.
_LEAST_MS, _LEAST_SHARE = 0.005, 0.05


def explain(
    baseline: Baseline,
    side: Side,
    inputs: Sequence[TensorSpec],
    samples: Mapping[str, Sequence[str]],
    logs: Path,
) -> tuple[list[str], list[OperatorGrowth], list[Flag]]:
    """Causes, the root first; operators whose time grew, worst first; and what is not known."""
    assert side.baseline is not None
    old, new = side.baseline, side.candidate
    here = environment.describe(side.packages)["versions"]
    running = of_running(baseline.environment.get("versions", {}), here, side.packages)
    reasons = merged(of_making(old.made_by, new.made_by, samples), running)
    if old.runner != new.runner:
        reasons.append(f"runner {old.runner}, now {new.runner}")
    else:
        reasons += of_options(old.options, new.options)
    if old.artifact.digest != new.artifact.digest:
        reasons += _graph(old, new)
    elif not reasons:
        reasons.append("the artifact is the same: the machine may behave otherwise")
    try:
        return reasons, _operators(old, new, inputs, logs, baseline.interpreter), []
    except OptcliError as error:  # an explanation that cannot be had is no failure of the gate
        return reasons, [], [flags.operators_not_compared(error.message)]


def _graph(baseline: BaselineVariant, candidate: BaselineVariant) -> list[str]:
    """How the two networks differ: operators by type, where both can be looked into."""
    try:
        before, after = _counts(baseline), _counts(candidate)
    except OptcliError:
        return []
    words = [
        f"{name} {before[name]}, now {after[name]}"
        for name in sorted({*before, *after})
        if before[name] != after[name]
    ]
    if baseline.artifact.precision != candidate.artifact.precision:
        words.insert(0, f"precision {baseline.artifact.precision}, now {candidate.artifact.precision}")
    return [f"in the graph: {', '.join(words)}"] if words else []


def _counts(variant: BaselineVariant) -> Counter[str]:
    artifact = variant.artifact
    about = {"precision": artifact.precision, "made_by": list(variant.made_by), "facts": artifact.facts}
    findings = inspection.look_into(
        Target("gate", "artifact", artifact.format.value, artifact.path, about, artifact.trusted)
    )
    counts: Counter[str] = Counter()
    for operator in findings.operators or ():
        counts[operator.type] += operator.count
    return counts


def _operators(
    baseline: BaselineVariant,
    candidate: BaselineVariant,
    inputs: Sequence[TensorSpec],
    logs: Path,
    interpreter: str | None,
) -> list[OperatorGrowth]:
    before = _times(baseline, inputs, logs, "baseline", interpreter)
    after = _times(candidate, inputs, logs, "candidate")
    grown = [
        OperatorGrowth(operator=name, baseline_ms=before.get(name, 0.0), candidate_ms=after[name])
        for name in after
        if after[name] - before.get(name, 0.0) > max(_LEAST_MS, _LEAST_SHARE * before.get(name, 0.0))
    ]
    grown.sort(key=lambda each: each.baseline_ms - each.candidate_ms)
    return grown[:_MOST_OPERATORS]


def _times(
    variant: BaselineVariant,
    inputs: Sequence[TensorSpec],
    logs: Path,
    name: str,
    interpreter: str | None = None,
) -> dict[str, float]:
    """Milliseconds a call by type of operator; the Chrome trace is left beside the logs."""
    artifact = variant.artifact
    request = profiling.ProfileRequest(
        variant=name,
        recipe="gate",
        summary=reporting.artifact_summary(artifact, str(artifact.path)),
        artifact=artifact,
        runner=variant.runner,
        options={name: value for name, value in variant.options.items() if value is not None},
        inputs=tuple(inputs),
        batch_size=batch_range(inputs).min,
        trace=logs / f"{name}.trace.json",
    )
    profile = profiling.measure(request, logs / f"{name}.profile.log", interpreter)
    times: dict[str, float] = defaultdict(float)
    for each in profile.operators:
        times[each.type] += each.time_ms
    return times


def of_making(
    before: Sequence[Mapping[str, Any]],
    after: Sequence[Mapping[str, Any]],
    samples: Mapping[str, Sequence[str]] | None = None,
) -> list[str]:
    """What differs between the steps that made the baseline's artifact and the candidate's.

    Each is a record with `step` and the ingredients of its key. Empty where nothing differs. `samples`
    says by role how the settings of the samples differ, as `of_samples` does.
    """
    names = [step["step"] for step in before], [step["step"] for step in after]
    differences = (
        [] if names[0] == names[1] else [f"passes: {_chain(names[0])}, now {_chain(names[1])}"]
    )
    own: list[str] = []
    by_name = {step["step"]: step for step in before}
    for step in after:
        old = by_name.get(step["step"])
        if old is not None:
            for name, was, now in differing(dict(old), dict(step)):
                # A pass from the user's own file is called after it: `./passes.py:Clip`.
                ours = name.startswith("code") and not (name == "code.pass" and ":" in step["step"])
                target = own if ours else differences
                role = name.removeprefix("data.")
                known = (samples or {}).get(role) if role != name else None
                target.extend(known or _words(step["step"], name, was, now))
    # A new version of optcli changes the code of many passes: one cause, and the weakest.
    if own:
        differences.append(f"optcli's own code: {', '.join(dict.fromkeys(own))}")
    return list(dict.fromkeys(differences))


def of_samples(
    before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]]
) -> dict[str, list[str]]:
    """How the settings of the samples differ, by role, where both sides have the role."""
    return {
        role: [
            f"data.{role}.{name} {_value(was)}, now {_value(now)}"
            for name, was, now in differing(dict(before[role]), dict(after[role]))
        ]
        for role in after
        if role in before
    }


def of_running(
    before: Mapping[str, Any], after: Mapping[str, Any], packages: Sequence[str]
) -> list[str]:
    """What differs between the interpreters that ran the two: versions of the runner's packages."""
    return [
        f"{name} {was}, now {now}"
        for name in packages
        if (was := before.get(name)) != (now := after.get(name))
    ]


def merged(making: Sequence[str], running: Sequence[str]) -> list[str]:
    """Both together: a library that runs the artifact and had a part in making it is one cause."""
    own = [
        cause for cause in making if not any(cause.startswith(f"{change}, in ") for change in running)
    ]
    return [*own, *running]


def of_options(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What differs between the runners' settings."""
    return [
        f"runner setting {name}: {_value(was)}, now {_value(now)}"
        for name, was, now in differing(dict(before), dict(after))
    ]


def _words(step: str, name: str, was: Any, now: Any) -> Iterator[str]:
    head, _, rest = name.partition(".")
    if name in _CONSEQUENCES or name.startswith("model.versions"):
        return
    if head == "code":
        yield f"the code of {step}" if ":" in step else step
    elif head == "data":
        yield f"{step}: other {rest or 'data'} samples"
    elif head == "options":
        yield f"{step}: {rest} {_value(was)}, now {_value(now)}"
    elif head == "versions":
        yield f"{rest} {_value(was)}, now {_value(now)}, in {step}"
    elif name == "model.code" or head in ("user_code", "files"):
        yield "the network's own code"
    elif name.startswith("model.weights"):
        yield "the weights"
    elif name.startswith(("model.file", "model.data")):
        yield "the model's file"
    elif head == "inputs":
        yield "the inputs' shapes or types"
    elif step == "source":
        yield f"the model: {rest or name} {_value(was)}, now {_value(now)}"
    else:
        yield f"{step}: {name} {_value(was)}, now {_value(now)}"


def _value(value: Any) -> str:
    if isinstance(value, float):
        return wording.setting(value)
    return "not set" if value is None or value is ABSENT else shown(value)


def _chain(names: Sequence[str]) -> str:
    return " → ".join(name for name in names if name != "source") or "none"
