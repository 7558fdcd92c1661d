"""One variant before the gate: latency, size, memory and accuracy against the baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from optcli import accuracy, environment, latency
from optcli.baselines import Baseline, Kept
from optcli.gate import comparisons
from optcli.gate.latency import STEP, Timed, compare, threads_of
from optcli.latency import Candidate
from optcli.observer import Observer
from optcli.pipeline import quiet
from optcli.pipeline.accuracy import Circumstances, Subject, compare_all
from optcli.pipeline.gating import recorded
from optcli.pipeline.gating.baseline import cannot_run, other_versions
from optcli.pipeline.gating.explain import explain
from optcli.pipeline.gating.options import Options
from optcli.pipeline.gating.side import Side
from optcli.pipeline.making import Made
from optcli.results import Verdict
from optcli.results.gate import Comparison, GatedVariant
from optcli.runners import find as find_runner
from optcli.settings import GateSettings
from optcli.store import Store


@dataclass
class Gating:
    """One run of the gate: both sides, what is demanded, and what was spent."""

    made: Made
    before: Baseline
    settings: GateSettings
    options: Options
    store: Store
    folder: Path
    observer: Observer
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def logs(self) -> Path:
        """Where the measuring processes write."""
        return self.folder / "logs"


def judge(gating: Gating, side: Side, variants: int) -> GatedVariant:
    """Everything about one of so many variants. Raises what goes wrong while it is measured."""
    runner = side.now.runner
    if side.absent is not None:
        return GatedVariant(runner=runner, comparisons=(comparisons.cannot_tell("p50", side.absent),))
    if side.before is None:
        new = comparisons.not_given("p50", None, "new: the baseline has no variant of this name")
        return GatedVariant(runner=runner, comparisons=(new,))
    found, flags, samples = _latency(gating, side, variants)
    limit = gating.settings.max_size_growth
    if limit is not None:
        sizes = side.before.artifact.size_bytes, side.now.artifact.size_bytes
        found.append(comparisons.plain("size", "size", "bytes", *sizes, limit))
    found += _accuracy(gating, side)
    judged = GatedVariant(
        runner=runner, samples=tuple(samples), comparisons=tuple(found), flags=tuple(flags)
    )
    if judged.outcome == "accept":
        return judged
    recipe = gating.made.plan.recipe
    causes, operators, unknown = explain(gating.before, side, recipe.inputs, gating.logs)
    return judged.model_copy(
        update={
            "causes": tuple(causes),
            "operators": tuple(operators),
            "flags": (*judged.flags, *unknown),
        }
    )


def _latency(
    gating: Gating, side: Side, variants: int
) -> tuple[list[Comparison], list[str], list[str]]:
    """What is said of latency, doubts about it, and the files of raw samples."""
    assert side.before is not None
    if gating.options.against_recorded:
        return (*recorded.compare(gating, side), [])
    why = _incomparable(gating, side)
    if why is not None:
        return [comparisons.cannot_tell("p50", why)], [], []
    name = f"{side.name} (baseline)"
    with quiet.alone(STEP, gating.observer):
        timed = _timed(gating, side, name, variants, gating.made.plan.recipe.seed)
        flags, samples = list(timed.flags), [_save(gating, timed, f"{side.name}.samples.npz")]
        failed = [each for each in timed.comparisons if each.blocking and each.outcome == "reject"]
        if failed and gating.settings.confirm:
            gating.observer.warned(STEP, f"{side.name} fails; measuring it again to be sure")
            again = _timed(gating, side, name, variants, gating.made.plan.recipe.seed + 1)
            samples.append(_save(gating, again, f"{side.name}.again.samples.npz"))
            timed = replace(timed, comparisons=_confirmed(timed, again))
            flags.append("a failure was measured again, independently")
    gating.seconds[side.name] = {key: round(s, 2) for key, s in timed.measured.seconds.items()}
    return list(timed.comparisons), flags, samples


def _save(gating: Gating, timed: Timed, name: str) -> str:
    gating.folder.mkdir(parents=True, exist_ok=True)
    latency.save(timed.measured, gating.folder / name)
    return name


def _incomparable(gating: Gating, side: Side) -> str | None:
    """Why the two cannot be measured beside each other; None where they can."""
    before, now = gating.before, environment.describe(side.packages)
    if [spec.model_dump() for spec in before.inputs] != [
        spec.model_dump() for spec in gating.made.plan.recipe.inputs
    ]:
        return "the model's inputs are not those of the baseline"
    cannot = cannot_run(side, before, now)
    if cannot is not None:
        return cannot
    if before.interpreter is None:
        changed = other_versions(side, before, now)
        if changed:
            return (
                f"the runtime changed ({', '.join(changed)}): give the baseline its own interpreter "
                "with --baseline-python VENV"
            )
    return None


def _timed(gating: Gating, side: Side, name: str, variants: int, seed: int) -> Timed:
    assert side.before is not None
    before = _candidate(name, side.before, gating.settings)
    return compare(
        replace(before, interpreter=gating.before.interpreter),
        _candidate(side.name, side.now, gating.settings),
        gating.made.plan.recipe.inputs,
        gating.made.feeds,
        gating.settings,
        gating.made.plan.recipe.slo,
        variants,
        gating.logs,
        seed,
        gating.observer,
    )


def _candidate(name: str, kept: Kept, settings: GateSettings) -> Candidate:
    options = {**kept.options, "threads": threads_of(settings)}
    return Candidate(name, kept.artifact, kept.runner, options)


def _confirmed(first: Timed, again: Timed) -> tuple[Comparison, ...]:
    """A figure fails only where it failed twice; otherwise the second answer stands."""
    second = {(each.metric, each.name, each.batch_size): each for each in again.comparisons}
    return tuple(
        second.get((each.metric, each.name, each.batch_size), each)
        if each.outcome == "reject"
        else each
        for each in first.comparisons
    )


def _accuracy(gating: Gating, side: Side) -> list[Comparison]:
    """Accuracy by its own verdicts, on the candidate's evaluation samples."""
    plan = gating.made.plan
    if "evaluation" not in plan.recipe.data:
        return []
    assert side.before is not None
    base = f"{side.name} (baseline)"
    around = Circumstances(
        plan.recipe,
        plan.role_keys["evaluation"],
        gating.store,
        gating.logs,
        gating.observer,
        False,
        gating.options.timeout_s,
        gating.options.jobs,
    )
    then = _subject(base, side.before)
    if gating.before.interpreter is not None:
        versions = gating.before.environment["versions"]
        then = replace(then, interpreter=gating.before.interpreter, versions=versions)
    subjects = [then, _subject(side.name, side.now)]
    judged, failures = compare_all(subjects, base, around)
    for error in failures.values():
        raise error
    result = judged[side.name]
    return [
        comparisons.judged(
            "outputs" if verdict.name == "outputs" else "accuracy",
            "fraction",
            verdict,
            result.baseline if verdict.name != "outputs" else None,
            result.value if verdict.name != "outputs" else None,
        )
        for verdict in _shown(accuracy.verdicts(result, plan.recipe.accuracy))
    ]


def _shown(verdicts: Sequence[Verdict]) -> list[Verdict]:
    return [each for each in verdicts if each.blocking or each.outcome != "accept"]


def _subject(name: str, kept: Kept) -> Subject:
    runner = find_runner(kept.runner).model_validate(kept.options)
    return Subject(name, kept.artifact, kept.runner, runner, kept.options)
