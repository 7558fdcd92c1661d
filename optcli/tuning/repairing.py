"""Find options of a quantizing pass that bring a variant inside its accuracy bar, and still pay.

The loop after a failed accuracy check that NNCF's accuracy control (openvinotoolkit/nncf,
quantize_with_accuracy_control) and Intel Neural Compressor's autotune (`max_trials`) have, for any
metric of a recipe, and with speed as the second aim: a network that is right because most of it
went back to float is no gain.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from optcli.accuracy import require_metric
from optcli.errors import UsageError, did_you_mean
from optcli.observer import Observer, Silent
from optcli.pipeline import report_files
from optcli.pipeline.execute import BuildSettings, evaluating_nodes, require_ray
from optcli.recipe import Recipe, load
from optcli.results import Accuracy
from optcli.results.tuning import Repair, Trial
from optcli.store import Store
from optcli.tuning import patch
from optcli.tuning.layers import (
    QUANTIZING,
    Component,
    NetworkOperator,
    Ranking,
    beginnings,
    by_own_error,
    calibrations,
    groups,
    layers_of,
    worst,
)
from optcli.tuning.trial_runner import TrialRunner
from optcli.tuning.trials import Repairs

Parts = tuple[Component, ...]


@dataclass
class Proposals:
    """Proposes trials of one quantizing pass. `ranking` names layers, the worst first.

    `singly` is how many trials may go to parts by themselves before they are joined.
    """

    quantizer: str
    options: dict[str, Any]
    layers: Sequence[NetworkOperator]
    ranking: Sequence[str] = ()
    singly: int = 9
    higher_is_better: bool = True
    _made: dict[int, Parts] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        names = {layer.name for layer in self.layers}
        self.ranking = [name for name in self.ranking if not names or name in names]

    def next(self, number: int, history: Sequence[Trial]) -> Parts | None:
        """The parts of the trial of this number, which nothing before equals; None at the end.

        `history` begins with trial 0, the variant as it was.
        """
        self._seen.add(self._effect(()))
        for parts in self._ideas(history):
            effect = self._effect(parts)
            if effect not in self._seen and not self._is_all(parts):
                self._seen.add(effect)
                self._made[number] = parts
                return parts
        return None

    def changed(self, parts: Parts) -> dict[str, Any]:
        """The options of the pass that these parts change, as they are written in a recipe."""
        changes: dict[str, Any] = {}
        for part in parts:
            changes.update(part.options)
        floats = frozenset[str]().union(*(part.floats for part in parts))
        others = {layer.name for layer in self.layers if not layer.multiplies}
        if self.quantizer == "quantize_onnxruntime" and floats >= others and others:
            kinds = {layer.kind for layer in self.layers if layer.multiplies}
            named = set(self.options.get("types") or kinds)
            changes["types"] = sorted(kinds & named)
            floats -= others
        if floats:
            already = list(self.options.get("ignored_names") or ())
            fresh = [x.name for x in self.layers if x.name in floats and x.name not in already]
            changes["ignored_names"] = [*already, *fresh]
        return {key: value for key, value in changes.items() if self.options.get(key) != value}

    def _effect(self, parts: Parts) -> str:
        """What tells two trials apart, however they are called."""
        return repr(sorted(self.changed(parts).items()))

    def _is_all(self, parts: Parts) -> bool:
        """Whether nothing that multiplies would be left to quantize."""
        floats = frozenset[str]().union(*(part.floats for part in parts))
        products = [layer.name for layer in self.layers if layer.multiplies]
        return bool(products) and floats.issuperset(products)

    def _ideas(self, history: Sequence[Trial]) -> Iterator[Parts]:
        singles = self._singles()
        inside = [each for each in history if each.inside and each.number in self._made]
        for each in sorted(inside, key=lambda trial: -_ratio(trial))[:1]:
            yield from self._faster(self._made[each.number])
        tried_singly = sum(len(parts) == 1 for parts in self._made.values())
        for part in singles if tried_singly < self.singly else ():
            yield (part,)
        helped = self._helped(history)
        for count in range(2, len(helped) + 1):
            yield _joined(helped[:count])
        best = self._best(history)
        more = [worst(self.ranking, count) for count in self._doubling()]
        for pair in zip_longest(more, beginnings(self.layers)):
            yield from (_joined((*best, part)) for part in pair if part is not None)
        for left, right in ((a, b) for i, a in enumerate(singles) for b in singles[i + 1 :]):
            yield _joined((left, right))
        yield from ((part,) for part in singles)

    def _singles(self) -> list[Component]:
        """Parts to try by themselves, calibrations among the groups so that both have a turn."""
        structural, ranges = groups(self.layers), calibrations(self.quantizer, self.options)
        some = [worst(self.ranking, count) for count in self._doubling()]
        first = [*structural[:3], *some[2:3], *ranges[:1], *structural[3:], *ranges[1:]]
        return [*first, *(part for part in some if part not in first)]

    def _doubling(self) -> list[int]:
        """1, 2, 4, ... as far as half of the ranking."""
        half = (len(self.ranking) + 1) // 2
        return [2**power for power in range(half.bit_length())]

    def _faster(self, parts: Parts) -> Iterator[Parts]:
        """From one that is right but slow: one part less, or further operators that INT8 slows down.

        Which these are depends on the runtime's kernels: depthwise convolutions and what only moves
        values often cost more in integers, with their conversions, than they save.
        """
        if len(parts) > 1:
            for part in parts:
                yield tuple(each for each in parts if each is not part)
        for part in (*beginnings(self.layers), *groups(self.layers)):
            yield _joined((*parts, part))

    def _helped(self, history: Sequence[Trial]) -> Parts:
        """Parts that made it better by themselves, the best first, without contradictions."""
        start = next((each.value for each in history if each.number == 0), None)
        gains = []
        for trial in history:
            parts = self._made.get(trial.number, ())
            if len(parts) == 1 and trial.value is not None and start is not None:
                gain = trial.value - start if self.higher_is_better else start - trial.value
                gains.append((gain, parts[0]))
        gains.sort(key=lambda each: -each[0])
        return _joined([part for gain, part in gains if gain > 0])

    def _best(self, history: Sequence[Trial]) -> Parts:
        sign = 1 if self.higher_is_better else -1
        judged = [x for x in history if x.value is not None and x.number in self._made]
        if not judged:
            return ()
        return self._made[max(judged, key=lambda trial: sign * (trial.value or 0.0)).number]


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
        if write and summary.patch and summary.best is not None:
            text = patch.patched(read, name, index, summary.best.options)
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
    return trial.pays, _ratio(trial)


def _ratio(trial: Trial) -> float:
    return trial.speedup.value if trial.speedup is not None else 0.0


def _joined(parts: Sequence[Component]) -> Parts:
    """Parts together, without those that contradict one before them or add nothing to another."""
    joined: list[Component] = []
    options: dict[str, Any] = {}
    for part in parts:
        if all(options.get(key, value) == value for key, value in part.options.items()):
            options.update(part.options)
            joined.append(part)
    return tuple(part for part in joined if not any(_is_within(part, other) for other in joined))


def _is_within(part: Component, other: Component) -> bool:
    """Whether another part leaves all of it in float anyway, and more."""
    return not part.options and part.floats < other.floats
