"""Find options of a quantizing pass that bring a variant inside its accuracy bar, and still pay.

The loop after a failed accuracy check that NNCF's accuracy control (openvinotoolkit/nncf,
quantize_with_accuracy_control) and Intel Neural Compressor's autotune (`max_trials`) have, for any
metric of a recipe, and with speed as the second aim: a network that is right because most of it
went back to float is no gain.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from optcli.accuracy import require_metric
from optcli.errors import UsageError, did_you_mean
from optcli.observer import Observer, Silent
from optcli.pipeline import report_files
from optcli.pipeline.execute import BuildSettings, evaluating_nodes, require_ray
from optcli.recipe import Recipe, load
from optcli.results import Accuracy
from optcli.results.repair import Repair, Trial
from optcli.store import Store
from optcli.tuning import patch
from optcli.tuning.components import QUANTIZING
from optcli.tuning.layers import layers_of
from optcli.tuning.proposals import Proposals
from optcli.tuning.ranking import Ranking, by_own_error
from optcli.tuning.trial_runner import TrialRunner
from optcli.tuning.trials import Repairs

STEP = "repair"


def repair(
    recipe: str | Path,
    variant: str | None = None,
    *,
    trials: int = 16,
    max_seconds: float = 1800.0,
    write: bool = False,
    store: Path | Store | None = None,
    artifacts: Path | None = None,
    overrides: Sequence[str] = (),
    settings: BuildSettings | None = None,
    observer: Observer | None = None,
    ranking: Ranking = by_own_error,
) -> Repair:
    """Try other options of a variant's quantizing pass until it is inside the bar and faster.

    Ends with the first trial that is inside and faster than its own float parent beyond doubt, after so
    many `trials`, or so many seconds (no trial begins later); the one that runs is finished. `ranking`
    names the operators, the worst first, from the float model and the quantized one. `settings`
    are those of a build. `write` applies the patch to the recipe's file.

    Raises `UsageError` where there is nothing to repair, and what keeps the variant from being built,
    judged or run as it is. A trial that fails costs itself.
    """
    began = time.monotonic()
    observer = observer or Silent()
    read = load(Path(recipe), overrides)
    name, index = quantized_variant(read, variant)
    if read.accuracy is None or "evaluation" not in read.data:
        raise UsageError(
            "the recipe judges no accuracy, so there is no bar to reach",
            place=str(read.path),
            hint="give the recipe data.evaluation and accuracy: {metric: ..., max_drop: ...}",
        )
    require_metric(read.accuracy)
    folder = (artifacts or Path("artifacts")).absolute() / read.name
    store = Store.of(store)
    settings = settings or BuildSettings()
    require_ray(settings.ray, store)
    with store.connected(observer.warned), evaluating_nodes(settings.ray, store, observer) as nodes:
        repairs = Repairs(TrialRunner(store, folder, observer, settings, nodes), read, name, index)
        first, built, parent, judged = repairs.first()
        _require_something_to_do(first, name)
        until = began + max_seconds
        proposals = Proposals(
            read.variants[name].passes[index].name,
            repairs.options,
            layers_of(built, parent),
            ranking(read, parent, built, observer),
            singly=max(3, trials * 6 // 10),
            higher_is_better=judged.better != "lower",
        )
        done, why = search(repairs, proposals, first, trials, until, observer)
        summary = _result(read, name, index, repairs, done, judged, why)
        if write and summary.patch:
            text = patch.patched(read, name, index, _changes(summary))
            patch.write(read.path, text)
            summary = summary.model_copy(update={"written": True})
        summary = summary.model_copy(update={"seconds": round(time.monotonic() - began, 1)})
        report_files.add(folder, {summary.variant: {"repair": summary}}, observer)
        return summary


def search(
    repairs: Repairs, proposals: Proposals, first: Trial, trials: int, until: float, observer: Observer
) -> tuple[list[Trial], str]:
    """Every trial, and why there was no further one. `until` is a monotonic time."""
    done = [first]
    for number in range(1, trials + 1):
        if time.monotonic() >= until:
            return done, f"the time is used up, after {len(done) - 1} trials"
        parts = proposals.next(number, done)
        if parts is None:
            return done, "there is nothing else to try"
        label = ", ".join(part.label for part in parts)
        observer.progress(STEP, (number - 1) / trials, f"trial {number}: {label}")
        trial = repairs.attempt(number, label, proposals.changed(parts), first)
        done.append(trial)
        observer.finished(f"{STEP} › trial {number}: {label}", trial.seconds)
        if trial.inside and trial.pays:
            return done, "it is inside the bar and faster than in float"
    return done, f"all {trials} trials are used up"


def quantized_variant(recipe: Recipe, variant: str | None) -> tuple[str, int]:
    """The variant to repair and where its quantizing pass stands. Raises `UsageError`."""
    places = {
        name: [i for i, use in enumerate(one.passes) if use.name in QUANTIZING and use.configured]
        for name, one in recipe.variants.items()
        if name != recipe.baseline
    }
    quantized = [name for name, indices in places.items() if indices]
    if variant is None:
        hint = f"name one of {', '.join(quantized)}" if quantized else f"add {' or '.join(QUANTIZING)}"
        what = "no variant to start at is named" if quantized else "no variant is quantized"
        raise UsageError(what, place="--from", hint=hint)
    if variant not in recipe.variants:
        hint = did_you_mean(variant, list(recipe.variants)) or f"it has {', '.join(recipe.variants)}"
        raise UsageError(f"the recipe has no variant {variant!r}", place="--from", hint=hint)
    if variant == recipe.baseline:
        raise UsageError(
            f"{variant} is the baseline, which others are compared with",
            place="--from",
            hint=f"name one of {', '.join(quantized)}" if quantized else "name another variant",
        )
    if variant not in quantized:
        raise UsageError(
            f"{variant} has no quantizing pass that can leave operators in floating point",
            place="--from",
            hint=f"name a variant with {' or '.join(QUANTIZING)}",
        )
    return variant, places[variant][-1]


def _require_something_to_do(first: Trial, name: str) -> None:
    if not first.inside:
        return
    raise UsageError(
        f"{name} is inside its accuracy bar already",
        place="--from",
        hint="a stricter bar: --set accuracy.max_drop=...; one that is only slow: optcli profile",
    )


def _result(
    recipe: Recipe,
    name: str,
    index: int,
    repairs: Repairs,
    done: Sequence[Trial],
    judged: Accuracy,
    why: str,
) -> Repair:
    inside = [each for each in done[1:] if each.inside]
    best = max(inside, key=_speed, default=None)
    summary = Repair(
        recipe=recipe.name,
        variant=name,
        quantizing_pass=recipe.variants[name].passes[index].name,
        runner=repairs.runner_name,
        metric=judged.metric or "",
        baseline=judged.baseline,
        batch_size=recipe.latency.batch_sizes[0],
        trials=tuple(done),
        chosen=best.number if best else None,
        outcome="unrepaired" if best is None else "repaired" if best.pays else "accurate",
        stopped_because=why,
        seconds=0.0,
    )
    if best is None:
        return summary
    try:
        text = patch.patched(recipe, name, index, best.options)
    except UsageError as error:
        return summary.model_copy(update={"patch_problem": f"{error.message}; {error.hint}"})
    return summary.model_copy(update={"patch": patch.difference(recipe.path, text)})


def _speed(trial: Trial) -> tuple[bool, float]:
    return trial.pays, trial.speedup.value if trial.speedup is not None else 0.0


def _changes(summary: Repair) -> dict[str, Any]:
    assert summary.best is not None
    return summary.best.options
