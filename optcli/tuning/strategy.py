"""What to try next: a pure function of the trials so far and of the budget.

Rules of thumb first; then, where there is training data, the speed of cut networks before any of them
is trained, and a short training of the one that promises the wanted gain. What it loses says how the
rest of the time is spent: on more training of it, on a milder cut where that would not bring it surely
inside the bar, or on a harder one where it is; at last the options of the quantizer and the runner, one
by one, of the best network. Time left is the budget without the seconds that the
recorded trials took, so that the same records give the same decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from optcli.results.tuning import COUNTED_IN_BYTES, TuningTrial, score_of
from optcli.tuning import rules
from optcli.tuning.space import Parameters, Space
from optcli.tuning.trial_facts import (
    CLOSE,
    LEAST_GAIN,
    PruningCandidates,
    Safety,
    best_of,
    cannot_be_cut,
    cut_of,
    fallen,
    is_cut,
    is_part,
    trained_of,
    whole_blocks,
)

# Shares of the budget: for looking at the speed of cut networks, for the first training, which says how
# much can go, and for each of the others. Where less than the last would be left, one takes it all.
_LOOKING_SHARE = 0.15
_FIRST_SHARE, _TRAINING_SHARE, _REST_SHARE = 0.2, 0.3, 0.15
_LEAST_TRAINING_S = 20.0
# What a trial takes beside its training (exporting, quantizing, timing, judging), before one is known.
_OVERHEAD_S = 20.0
# A trial that has less than this share of what others took would hardly end in time.
_LEAST_LEFT = 0.5
# Where so many cuts of blocks gain enough, the speed of networks with fewer channels is not looked at:
# half of the channels gone gave less than half of the blocks, of ResNet-20, ViT-tiny and MobileNetV3.
_ENOUGH = 2
# So many times that is left after a training: one that the end of the time cuts off is lost.
_SAFETY = 1.5
# Options are tried until so many in a row were no better.
_PATIENCE = 8
_CUTS = ("blocks", "width", "train_s", "more_s")
# How a cut network was made: the cuts and trainings before its own come with it.
_MAKING = (*_CUTS, "rate", "feature_weight", "stop_at")


@dataclass(frozen=True)
class Proposal:
    """The next trial."""

    why: str
    parameters: Parameters
    only_speed: bool = False


@dataclass(frozen=True)
class Strategy:
    """Proposes trials of a space; `bar` is the largest loss, `budget_s` what all trials may take."""

    space: Space
    bar: float
    budget_s: float

    def next(self, done: Sequence[TuningTrial]) -> Proposal | None:
        """The next trial; None where nothing is left to try, or no time to try it."""
        if not self.has_time(done):
            return None
        left_s = self._left_s(done)
        orders = (
            self._starts,
            self._looks,
            self._trainings,
            self._aware,
            self._floats,
            self._options,
        )
        for proposals in orders:
            for proposal in proposals(done, left_s):
                if not self._was_tried(proposal, done):
                    return proposal
        return None

    def has_time(self, done: Sequence[TuningTrial]) -> bool:
        """Whether enough of the budget is left for another trial to end in it."""
        return self._left_s(done) > _LEAST_LEFT * median(_seconds_of(done) or [0.0])

    def _left_s(self, done: Sequence[TuningTrial]) -> float:
        return self.budget_s - sum(trial.seconds for trial in done)

    def _was_tried(self, proposal: Proposal, done: Sequence[TuningTrial]) -> bool:
        identity = self.space.candidate(proposal.parameters).identity
        return any(self.space.candidate(trial.parameters).identity == identity for trial in done)

    def _starts(self, done: Sequence[TuningTrial], left_s: float) -> Iterator[Proposal]:
        if not done:
            rule = rules.reference(self.space)
            yield Proposal(rule.why, rule.parameters)
        # Where there is time to cut and train a network, that gains more than a fifth set of ranges.
        cuts = any(map(is_cut, done)) or self._may_cut(done, left_s)
        share = 0.75 if cuts else 0.1
        for index, rule in enumerate(rules.starts(self.space)):
            if index < 2 or left_s > share * self.budget_s:
                yield Proposal(rule.why, rule.parameters)

    def _looks(self, done: Sequence[TuningTrial], left_s: float) -> Iterator[Proposal]:
        """Cut networks that are not trained: only their speed is wanted."""
        base = self._base(done)
        if not self._may_cut(done, left_s) or base is None:
            return
        if trained := trained_of(done):
            yield from self._harder_looks(base, trained[-1], done)
            return
        looked = [trial for trial in done if trial.stage == "timed" or is_cut(trial)]
        spent_s = sum(trial.seconds for trial in looked)
        for shape in self._shapes(done):
            if not self._pruning_candidates(done).is_worth_a_look(shape, self._wanted * score_of(base)):
                continue
            if not shape["blocks"] and self._cuts_blocks(done):
                continue
            if len(looked) >= 2 and spent_s > _LOOKING_SHARE * self.budget_s:
                break
            yield Proposal(_LOOK, {**base.parameters, **shape}, only_speed=True)
        if not any(trial.why == _LOOK_BETWEEN for trial in done):
            for shape in self._between(base, done):
                yield Proposal(_LOOK_BETWEEN, {**base.parameters, **shape}, only_speed=True)

    def _may_cut(self, done: Sequence[TuningTrial], left_s: float) -> bool:
        """Whether a network may be cut, and the time left is enough to look at one and to train it."""
        train_s = self._training_s(left_s - self._overhead_s(done), done)
        return self.space.prunes and train_s >= _LEAST_TRAINING_S

    def _harder_looks(
        self, base: TuningTrial, last: TuningTrial, done: Sequence[TuningTrial]
    ) -> Iterator[Proposal]:
        """Cuts beyond those that were looked at, where training has brought the last one inside."""
        safety, harder = self._safety(done), self._pruning_candidates(done).harder(last)
        if not safety.is_safe(last) or len(harder) >= (2 if safety.is_easy(last) else 1):
            return
        for shape in self._shapes(done):
            more = shape["blocks"], shape["width"]
            beyond = all(share <= its for share, its in zip(cut_of(last), more, strict=True))
            if beyond and more != cut_of(last) and not self._pruning_candidates(done).knows(shape):
                yield Proposal(_LOOK, {**base.parameters, **shape}, only_speed=True)

    def _cuts_blocks(self, done: Sequence[TuningTrial]) -> bool:
        """Whether enough can be gained by removing blocks: removing channels alone gains less.

        Of the files' size it does not.
        """
        by_time = self.space.recipe.tune.objective not in COUNTED_IN_BYTES
        return by_time and len(self._pruning_candidates(done).deep()) >= _ENOUGH

    def _shapes(self, done: Sequence[TuningTrial]) -> Iterator[Parameters]:
        """The shapes of the rules that this network allows, with shares of whole blocks."""
        for shape in rules.shapes():
            if not cannot_be_cut(shape, done):
                yield {**shape, "blocks": whole_blocks(shape["blocks"], done)}

    def _between(self, base: TuningTrial, done: Sequence[TuningTrial]) -> Iterator[Parameters]:
        """The share of blocks that should give the wanted gain, by the times of its neighbours."""
        wanted = self._wanted * score_of(base)
        looks = [t for t in done if t.stage == "timed" and t.score and not t.parameters["width"]]
        if any(abs(score_of(trial) / wanted - 1.0) <= CLOSE for trial in looks):
            return
        speeds = sorted((cut_of(t)[0], 1.0 / score_of(t)) for t in (base, *looks))
        for (few, slow), (many, fast) in pairwise(speeds):
            if slow > 1.0 / wanted > fast:
                share = few + (many - few) * (slow - 1.0 / wanted) / (slow - fast)
                blocks = whole_blocks(round(share, 2), done)
                if few < blocks < many:
                    yield {"blocks": blocks, "width": 0.0}

    def _trainings(self, done: Sequence[TuningTrial], left_s: float) -> Iterator[Proposal]:
        base, candidates, safety = self._base(done), self._pruning_candidates(done), self._safety(done)
        if base is None or not candidates.by_gain() or not self.space.trains:
            return
        train_s = self._training_s(left_s, done)
        if train_s < _LEAST_TRAINING_S:
            return
        trained = trained_of(done)
        if not trained:
            look = candidates.first(self._wanted * score_of(base))
            first_s = min(train_s, _FIRST_SHARE * self.budget_s)
            why = "the pruned network that gains what is wanted, or a little less"
            yield self._training(done, look, first_s, why)
            return
        last = trained[-1]
        if not candidates.has(last):
            return
        if safety.is_safe(last):
            if harder := candidates.harder(last, self._hopeless(done, train_s)):
                look = harder[1] if safety.is_easy(last) and len(harder) > 1 else harder[0]
                why = "the last one was surely inside: more pruning"
                yield self._training(done, look, train_s, why)
            elif safety.gains_by_training(last) and not last.parameters.get("more_s"):
                most_s = self._most_training_s(left_s, done)
                why = "no harder cut should come inside in the time left: the last one shall be surer"
                yield self._longer(last, most_s, why)
            return
        trains = self._trains_quantized(base)
        if safety.is_short(last) and trains and safety.is_short(base):
            yield self._aware_of(last, train_s)
        elif self._may_come_inside(last, done, left_s):
            most_s = self._most_training_s(left_s, done)
            yield self._longer(last, most_s, "more training should bring the last one surely inside")
            return
        safe = max((score_of(trial) for trial in trained if safety.is_safe(trial)), default=0.0)
        if milder := candidates.milder(last, safe):
            why = "the last one was not surely inside: less pruning"
            yield self._training(done, milder[-1], train_s, why)
        elif not safe and not last.parameters.get("more_s"):
            most_s = self._most_training_s(left_s, done)
            yield self._longer(last, most_s, "no milder cut is left: more training of the last one")

    def _hopeless(self, done: Sequence[TuningTrial], train_s: float) -> list[TuningTrial]:
        """Cut networks that training has not made safe, and would not in so many seconds more."""
        safety, trained = self._safety(done), trained_of(done)
        safe = {cut_of(trial) for trial in trained if safety.is_safe(trial)}
        return [
            trial
            for trial in trained
            if cut_of(trial) not in safe and trial.loss is not None
            if fallen(trial.loss.value, trial, train_s) > safety.aim(trial)
        ]

    def _longer(self, trial: TuningTrial, train_s: float, why: str) -> Proposal:
        """The same network, trained on."""
        return Proposal(why, {**trial.parameters, "more_s": int(train_s)})

    def _may_come_inside(self, trial: TuningTrial, done: Sequence[TuningTrial], left_s: float) -> bool:
        """Whether all the time that is left should bring a trained network surely inside the bar."""
        if trial.loss is None or trial.parameters.get("more_s"):
            return False
        most_s = self._most_training_s(left_s, done)
        return fallen(trial.loss.value, trial, most_s) <= self._safety(done).aim(trial)

    @property
    def _wanted(self) -> float:
        """How many times as fast as the best whole network a cut one shall be."""
        return self.space.recipe.tune.target.speedup

    def _training_s(self, left_s: float, done: Sequence[TuningTrial]) -> float:
        most_s = self._most_training_s(left_s, done)
        is_last = most_s < (_TRAINING_SHARE + _REST_SHARE) * self.budget_s
        return most_s if is_last else _TRAINING_SHARE * self.budget_s

    def _most_training_s(self, left_s: float, done: Sequence[TuningTrial]) -> float:
        """What a training may take at most: what is exported and judged after it needs time too."""
        return left_s - _SAFETY * self._overhead_s(done)

    def _overhead_s(self, done: Sequence[TuningTrial]) -> float:
        """What a trial takes without training, by those that were carried out."""
        return median(_seconds_of(done) or [_OVERHEAD_S])

    def _training(
        self, done: Sequence[TuningTrial], look: TuningTrial, train_s: float, why: str
    ) -> Proposal:
        """A cut network, trained: from the hardest cut inside it that training has brought inside.

        The steps of that one are in the store, so that what it has learned costs nothing again.
        """
        detects = self.space.recipe.postprocess is not None
        learning = rules.training(done[0].family, detects=detects)
        chosen = {**look.parameters, **learning, "train_s": int(train_s)}
        chosen["blocks"], _ = cut_of(look)
        if stop_at := self._safety(done).stop_at():
            chosen["stop_at"] = stop_at
        inside = [
            trial for trial in done if trial.stage == "inside" and trial.parameters.get("train_s")
        ]
        inside = [t for t in inside if is_part(t, look) and not t.parameters.get("aware_s")]
        if inside:
            last = max(inside, key=score_of).parameters
            own = {key: last[key] for key in _MAKING if last.get(key)}
            chosen["learned"] = [*last.get("learned", ()), own]
            why += "; continues from the weights trained before"
        return Proposal(why, chosen)

    def _aware(self, done: Sequence[TuningTrial], left_s: float) -> Iterator[Proposal]:
        """Quantization-aware training of the fastest network that quantizing put outside the bar."""
        train_s = min(self._training_s(left_s, done), 0.5 * left_s)
        if not self.space.aware or train_s < _LEAST_TRAINING_S:
            return
        best_score = max(map(score_of, self._safety(done).keeping()), default=0.0)
        short = [
            trial
            for trial in done
            if self._safety(done).is_short(trial)
            and self._trains_quantized(trial)
            and not trial.parameters.get("aware_s")
            and score_of(trial) > best_score
        ]
        for trial in sorted(short, key=lambda each: -score_of(each))[:1]:
            yield self._aware_of(trial, train_s)

    def _trains_quantized(self, trial: TuningTrial) -> bool:
        """Whether the network can learn with the roundings of its trial's INT8 in it."""
        is_int8 = trial.parameters["precision"] == "int8"
        return is_int8 and self.space.trains_quantized(trial.parameters["runtime"])

    def _aware_of(self, trial: TuningTrial, train_s: float) -> Proposal:
        """The same network, quantized while it trains."""
        names = ("runtime", "precision", "rest", *_MAKING, "learned", "shapes", "threads")
        parameters = {key: trial.parameters[key] for key in names if key in trial.parameters}
        why = "quantizing cost the accuracy: train with quantization in the network"
        return Proposal(why, {**parameters, "aware_s": int(train_s)})

    def _floats(self, done: Sequence[TuningTrial], left_s: float) -> Iterator[Proposal]:
        """Layers left in float, of the fastest INT8 that quantizing has put outside the bar."""
        keeping = self._safety(done).keeping()
        if any(trial.parameters.get("floats") for trial in keeping):
            return
        least = LEAST_GAIN * max(map(score_of, keeping), default=0.0)
        known = [t for t in done if t.float_groups and score_of(t) > least]
        for trial in sorted(known, key=lambda each: -score_of(each))[:2]:
            for label, names in trial.float_groups.items():
                floats = {"label": label, "names": list(names)}
                why = "quantizing cost the accuracy: these layers stay in float"
                yield Proposal(why, {**trial.parameters, "floats": floats})

    def _options(self, done: Sequence[TuningTrial], left_s: float) -> Iterator[Proposal]:
        """The best network with further passes and other options: they cost no training."""
        overhead_s = self._overhead_s(done)
        if left_s < 1.5 * overhead_s:
            return
        if left_s > max(6 * _OVERHEAD_S, 2 * overhead_s) and not self.space.prunes:
            for rule in rules.slow_starts(self.space):
                yield Proposal(rule.why, rule.parameters)
        best = best_of(done)
        known = best.parameters if best else rules.reference(self.space).parameters
        for rule in rules.further(self.space, known):
            yield Proposal(rule.why, rule.parameters)
        since = [trial for trial in done if best is None or trial.number > best.number]
        tried = [t for t in since if t.why in (rules.ANOTHER_OPTION, rules.ANOTHER_RUNTIME)]
        if len(tried) >= _PATIENCE:
            return
        barren = _barren(done)
        for rule in rules.variations(self.space, known, (*_MAKING, "learned")):
            if _kind(rule.parameters) not in barren:
                yield Proposal(rule.why, rule.parameters)

    def _safety(self, done: Sequence[TuningTrial]) -> Safety:
        return Safety(done, self.bar, self.space.recipe.wants_certainty)

    def _pruning_candidates(self, done: Sequence[TuningTrial]) -> PruningCandidates:
        return PruningCandidates(done, self._base(done))

    def _base(self, done: Sequence[TuningTrial]) -> TuningTrial | None:
        """The fastest network that is not cut, inside the bar or near it: what is cut next."""
        whole = [trial for trial in done if not is_cut(trial) and trial.score is not None]
        whole = [trial for trial in whole if not trial.parameters.get("aware_s")]
        usable = [
            trial for trial in whole if trial.stage == "inside" or self._safety(done).is_near(trial)
        ]
        return max(usable or whole, key=score_of, default=None)


def _seconds_of(done: Sequence[TuningTrial]) -> list[float]:
    """What trials took without training, but for the first, with which the baseline is built."""
    return [t.seconds for t in done[1:] if not t.trains and t.stage not in ("failed", "timed")]


def _barren(done: Sequence[TuningTrial]) -> set[tuple[Any, ...]]:
    """What failed each time, such as dynamic INT8 of a network without matrix products."""
    failed = {_kind(trial.parameters) for trial in done if trial.stage == "failed"}
    return failed - {_kind(trial.parameters) for trial in done if trial.stage != "failed"}


def _kind(parameters: Parameters) -> tuple[Any, ...]:
    """What decides whether a candidate can be made at all."""
    return tuple(parameters.get(key) for key in ("runtime", "precision", "quantizer"))


_LOOK = "speed of the pruned network before training"
_LOOK_BETWEEN = "the share of blocks that should give the wanted gain, by the times of the others"
