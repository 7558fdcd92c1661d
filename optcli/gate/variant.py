"""One variant before the gate: latency, size, memory and accuracy against the baseline's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from optcli import environment
from optcli.artifact import NATIVE
from optcli.errors import StepError
from optcli.gate import accuracy, comparisons
from optcli.gate.accuracy import Incomparable
from optcli.gate.explain import explain
from optcli.gate.latency import STEP, Timed, alone, candidate, compare, service_level
from optcli.gate.side import Gating, Side, cannot_run, of_another_cpu, other_versions
from optcli.measure import latency
from optcli.measure.latency.feeds import choose_batch_sizes
from optcli.pipeline.places import Place
from optcli.results import Flag, flags
from optcli.results.gate import Choice, Comparison, GatedVariant
from optcli.settings import TensorSpec


def judge(gating: Gating, side: Side, variants: int, chosen: Sequence[Choice]) -> GatedVariant:
    """Judge one variant; `variants` is how many the gate judges.

    Raises what goes wrong while it is measured.
    """
    runner = side.candidate.runner
    if side.absent is not None:
        absent = comparisons.not_compared("p50", side.absent)
        return GatedVariant(runner=runner, chosen=tuple(chosen), comparisons=(absent,))
    if side.baseline is None:
        why = "new: the baseline has no variant of this name"
        new = comparisons.not_compared("p50", why, blocks=False)
        right, doubts = accuracy.compare(gating, side, None)
        return GatedVariant(
            runner=runner,
            is_new=True,
            chosen=tuple(chosen),
            comparisons=(new, *right),
            flags=tuple(doubts),
        )
    apart = _incomparable(gating, side)
    compared: list[Comparison] = []
    timing: list[Flag] = []
    samples: list[str] = []
    for place in gating.places:
        compared_here, doubts, files = _latency_at(
            gating, side, variants * len(gating.places), apart, place
        )
        compared += [_named(each, place.name) for each in compared_here]
        timing += [each for each in doubts if each not in timing]
        samples += files
    limit = gating.settings.max_size_growth
    if limit is not None:
        sizes = side.baseline.artifact.size_bytes, side.candidate.artifact.size_bytes
        compared.append(comparisons.plain("size", "size", "bytes", *sizes, limit))
    # Latency under another runtime cannot be compared, but accuracy can.
    right, doubts = accuracy.compare(gating, side, None if apart is None or apart.evaluates else apart)
    judged = GatedVariant(
        runner=runner,
        chosen=tuple(chosen),
        samples=tuple(samples),
        comparisons=(*compared, *right),
        flags=(*timing, *doubts),
    )
    if judged.outcome == "accept":
        return judged
    recipe = gating.made.plan.recipe
    causes, operators, unknown = explain(
        gating.baseline, side, recipe.inputs, gating.samples, gating.logs
    )
    return judged.model_copy(
        update={
            "causes": tuple(causes),
            "operators": tuple(operators),
            "flags": (*judged.flags, *unknown),
        }
    )


def _named(comparison: Comparison, device: str | None) -> Comparison:
    """The comparison with the device that it was found on, where the recipe names one."""
    if device is None:
        return comparison
    name = f"{comparison.name} on {device}"
    return comparison.model_copy(update={"name": name, "device": device})


def _latency_at(
    gating: Gating, side: Side, figures: int, apart: Incomparable | None, place: Place
) -> tuple[list[Comparison], list[Flag], list[str]]:
    """As `_latency`, on one device. One that cannot run the two, or is lost, tells nothing."""
    if place.is_here:
        return _latency(gating, side, figures, apart, place)
    lacking = place.lacking(side.name)
    if lacking:
        why = f"it does not run on {place.name}: {lacking[0].what}"
        return [comparisons.not_compared("p50", why)], [], []
    try:
        return _latency(gating, side, figures, _apart_on(gating, side, place), place)
    except StepError as error:
        return [comparisons.not_compared("p50", error.message)], [], []


def _latency(
    gating: Gating, side: Side, variants: int, why: Incomparable | None, place: Place
) -> tuple[list[Comparison], list[Flag], list[str]]:
    """What is said of latency, doubts about it, and the files of raw samples."""
    assert side.baseline is not None
    if why is not None:
        promised = []
        if why.declared and gating.slo is not None:
            rows = alone(gating, side, place)
            promised = service_level(rows, gating.slo, side.candidate.artifact.size_bytes)
        return [why.comparison("p50"), *promised], [], []
    name = f"{side.name} (baseline)"
    file = side.name if place.name is None else f"{side.name}.{place.name}"
    with place.alone(STEP, gating.observer):
        timed = _timed(gating, side, name, variants, gating.made.plan.recipe.seed, place)
        doubts, samples = list(timed.flags), [_save(gating, timed, f"{file}.samples.npz")]
        failed = [each for each in timed.comparisons if each.blocking and each.outcome == "reject"]
        if failed and gating.settings.confirm:
            gating.observer.warned(STEP, f"{side.name} fails; measuring it again to be sure")
            again = _timed(gating, side, name, variants, gating.made.plan.recipe.seed + 1, place)
            samples.append(_save(gating, again, f"{file}.again.samples.npz"))
            timed = replace(timed, comparisons=_confirmed(timed, again))
            doubts.append(flags.confirmed())
    gating.seconds[file] = {key: round(s, 2) for key, s in timed.measured.seconds.items()}
    return list(timed.comparisons), doubts, samples


def _save(gating: Gating, timed: Timed, name: str) -> str:
    gating.folder.mkdir(parents=True, exist_ok=True)
    latency.save(timed.measured, gating.folder / name)
    return name


def _incomparable(gating: Gating, side: Side) -> Incomparable | None:
    """Why the two cannot be measured beside each other; None where they can."""
    baseline, here = gating.baseline, environment.describe(side.packages)
    apart = _other_inputs(gating)
    if apart is not None:
        return apart
    cannot = cannot_run(side, baseline, here)
    if cannot is not None:
        return Incomparable(cannot)
    if baseline.interpreter is None:
        changed = other_versions(side, baseline, here)
        if changed:
            return Incomparable(
                f"the runtime changed ({', '.join(changed)}): give the baseline its own interpreter "
                "with --baseline-python VENV",
                evaluates=True,
            )
    return None


def _apart_on(gating: Gating, side: Side, place: Place) -> Incomparable | None:
    """As `_incomparable`, on another machine: both sides run there with the libraries that it has."""
    apart = _other_inputs(gating)
    if apart is not None:
        return apart
    if gating.baseline.interpreter is not None:
        return Incomparable(f"the baseline's own interpreter is not on {place.name}")
    assert side.baseline is not None
    environment = place.environment(side.packages)
    if side.baseline.artifact.format in NATIVE and (
        why := of_another_cpu(side, gating.baseline, environment)
    ):
        return Incomparable(why)
    return None


def _other_inputs(gating: Gating) -> Incomparable | None:
    """Why the two cannot be fed alike; None where they can."""
    baseline, inputs = gating.baseline, gating.made.plan.recipe.inputs
    if list(baseline.inputs) == list(inputs):
        return None
    declared = "inputs" in gating.declared
    if declared and _same_calls(baseline.inputs, inputs, gating.settings.batch_sizes):
        return None
    return Incomparable("the model's inputs are not those of the baseline", declared)


def _same_calls(
    baseline: Sequence[TensorSpec], candidate: Sequence[TensorSpec], batch_sizes: Sequence[int]
) -> bool:
    """Whether a call of the gate feeds both sides alike, though they take other ranges."""
    sizes = choose_batch_sizes(candidate, batch_sizes)[0]
    if sizes != choose_batch_sizes(baseline, batch_sizes)[0]:
        return False
    calls = [
        [(each.name, each.dtype, [each.concrete(size) for size in sizes]) for each in specs]
        for specs in (baseline, candidate)
    ]
    return calls[0] == calls[1]


def _timed(gating: Gating, side: Side, name: str, variants: int, seed: int, place: Place) -> Timed:
    assert side.baseline is not None
    baseline = candidate(name, side.baseline, gating.settings, place)
    baseline = replace(baseline, interpreter=gating.baseline.interpreter)
    measured = candidate(side.name, side.candidate, gating.settings, place)
    return compare(gating, baseline, measured, variants, seed, place)


def _confirmed(first: Timed, again: Timed) -> tuple[Comparison, ...]:
    """A figure fails only where it failed twice; otherwise the second answer stands."""

    def figure(comparison: Comparison) -> tuple[str, str, int | None]:
        return comparison.metric, comparison.name, comparison.batch_size

    second = {figure(each): each for each in again.comparisons}
    return tuple(
        second.get(figure(each), each) if each.outcome == "reject" else each
        for each in first.comparisons
    )
