"""What to try next: a pure function of the trials so far and of the budget.

Rules of thumb first; then, where there is training data, the speed of cut networks before any of them
is trained, and training of the one that promises the wanted gain, of a milder one where it stays
outside the bar and of a harder one where it is inside; at last Optuna's sampler on the options of the
quantizer and the runner, around the best network. Time left is the budget without the seconds that the
recorded trials took, so that the same records give the same decisions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from optcli.results.tuning import TuningTrial
from optcli.tuning import rules
from optcli.tuning.space import Parameters, Space

# What a cut network should gain over the best one that is not cut, to be trained first. A ViT without
# half of its layers did not come back inside a point in four minutes of two cores: begin with less.
_WANTED_GAIN = 1.4
# A cut network that gains less is not worth its training.
_LEAST_GAIN = 1.1
# Shares of the budget: for looking at the speed of cut networks, and for one training.
_LOOKING_SHARE = 0.15
_TRAINING_SHARE = 0.3
_LEAST_TRAINING_S = 20.0
# What a trial takes beside its training: exporting, quantizing, timing, judging.
_OVERHEAD_S = 20.0
# Losses up to so many bars may come back by more training.
_NEAR = 2.5
# The sampler ends after so many trials without a better one.
_PATIENCE = 8

_CUTS = ("blocks", "width", "train_s", "more_s")
# How a cut network was made: the cuts and trainings before its own come with it.
_MAKING = (*_CUTS, "rate", "feature_weight")


@dataclass(frozen=True)
class Proposal:
    """The next trial: parameters, or None where Optuna's sampler chooses them with some `fixed`.

    `carried` are parameters that the sampler does not know and that belong to what it proposes.
    """

    why: str
    parameters: Parameters | None = None
    fixed: Parameters = field(default_factory=dict)
    carried: Parameters = field(default_factory=dict)
    only_speed: bool = False


@dataclass(frozen=True)
class Strategy:
    """Proposes trials of a space; `bar` is the largest loss, `budget_s` what all trials may take."""

    space: Space
    bar: float
    budget_s: float

    def next(self, done: Sequence[TuningTrial]) -> Proposal | None:
        """The next trial; None where nothing is left to try, or no time to try it."""
        left_s = self.budget_s - sum(trial.seconds for trial in done)
        if left_s <= 0:
            return None
        orders = (
            self._starts,
            self._looks,
            self._trainings,
            self._aware,
            self._floats,
            self._samples,
        )
        for proposals in orders:
            for proposal in proposals(done, left_s):
                if proposal.parameters is None or not self._was_tried(proposal, done):
                    return proposal
        return None

    def _was_tried(self, proposal: Proposal, done: Sequence[TuningTrial]) -> bool:
        assert proposal.parameters is not None
        identity = self.space.candidate(proposal.parameters).identity
        return any(self._identity(trial) == identity for trial in done)

    def _identity(self, trial: TuningTrial) -> str:
        return self.space.candidate(trial.parameters).identity

    def _starts(self, done: Sequence[TuningTrial], left_s: float) -> Iterator[Proposal]:
        if not done:
            rule = rules.reference(self.space)
            yield Proposal(rule.why, rule.parameters)
        # Where a network can be cut and trained, that gains more than a fifth set of ranges.
        share = 0.75 if self.space.prunes else 0.1
        for index, rule in enumerate(rules.starts(self.space)):
            if index < 2 or left_s > share * self.budget_s:
                yield Proposal(rule.why, rule.parameters)

    def _looks(self, done: Sequence[TuningTrial], left_s: float) -> Iterator[Proposal]:
        """Cut networks that are not trained: only their speed is wanted."""
        base = self._base(done)
        if not self.space.prunes or base is None:
            return
        looked = [trial for trial in done if trial.stage == "timed" or _is_cut(trial)]
        spent_s = sum(trial.seconds for trial in looked)
        for blocks, width in rules.shapes():
            if blocks and _blocks_cannot_go(done):
                continue
            if len(looked) >= 2 and spent_s > _LOOKING_SHARE * self.budget_s:
                return
            why = "how fast the smaller network is, before it is trained"
            parameters = {**base.parameters, "blocks": blocks, "width": width}
            yield Proposal(why, parameters, only_speed=True)

    def _trainings(self, done: Sequence[TuningTrial], left_s: float) -> Iterator[Proposal]:
        base, ladder = self._base(done), self._ladder(done)
        if base is None or not ladder or not self.space.trains:
            return
        train_s = self._training_s(left_s)
        if train_s < _LEAST_TRAINING_S:
            return
        trained = _trained(done)
        if not trained:
            wanted = _WANTED_GAIN * _score(base)
            rung = min(range(len(ladder)), key=lambda i: abs(_score(ladder[i]) - wanted))
            yield self._training(
                done, ladder[rung], train_s, "the smaller network that promises the wanted gain"
            )
            return
        last = trained[-1]
        cuts = [_cut(each) for each in ladder]
        if _cut(last) not in cuts:
            return
        rung = cuts.index(_cut(last))
        results = {_cut(trial): trial for trial in trained}
        if last.stage == "inside":
            harder = [each for each in ladder[rung + 1 :] if _cut(each) not in results]
            nested = [each for each in harder if _is_part(last, each)]
            if harder:
                yield self._training(
                    done, (nested or harder)[0], train_s, "the last one was inside the bar: prune more"
                )
            return
        if self._is_near(last):
            if self.space.aware and self._is_near(base) and base.parameters["precision"] == "int8":
                yield self._aware_of(last, train_s)
            elif not last.parameters.get("more_s"):
                more = {**last.parameters, "more_s": int(train_s)}
                yield Proposal("the last one was nearly inside the bar: train longer", more)
                return
        inside = max((_score(trial) for trial in trained if trial.stage == "inside"), default=0.0)
        milder = [e for e in ladder[:rung] if _cut(e) not in results and _score(e) > inside]
        if milder:
            yield self._training(
                done, milder[-1], train_s, "the last one was outside the bar: prune less"
            )

    def _training_s(self, left_s: float) -> float:
        return min(_TRAINING_SHARE * self.budget_s, left_s - _OVERHEAD_S)

    def _training(
        self, done: Sequence[TuningTrial], look: TuningTrial, train_s: float, why: str
    ) -> Proposal:
        """A cut network, trained: from the hardest cut inside it that training has brought inside.

        The steps of that one are in the store, so that what it has learned costs nothing again.
        """
        chosen = {**look.parameters, **rules.training(done[0].family), "train_s": int(train_s)}
        inside = [
            trial for trial in done if trial.stage == "inside" and trial.parameters.get("train_s")
        ]
        inside = [t for t in inside if _is_part(t, look) and not t.parameters.get("aware_s")]
        if inside:
            last = max(inside, key=_score).parameters
            own = {key: last[key] for key in _MAKING if last.get(key)}
            chosen["learned"] = [*last.get("learned", ()), own]
            why += ", of the network that was trained before"
        return Proposal(why, chosen)

    def _aware(self, done: Sequence[TuningTrial], left_s: float) -> Iterator[Proposal]:
        """Quantization-aware training of the fastest network that quantizing put outside the bar."""
        train_s = min(self._training_s(left_s), 0.5 * left_s)
        if not self.space.aware or train_s < _LEAST_TRAINING_S:
            return
        fastest_inside = max((_score(t) for t in done if t.stage == "inside"), default=0.0)
        outside = [
            trial
            for trial in done
            if self._is_near(trial)
            and trial.parameters["precision"] == "int8"
            and not trial.parameters.get("aware_s")
            and _score(trial) > fastest_inside
        ]
        for trial in sorted(outside, key=lambda each: -_score(each))[:1]:
            yield self._aware_of(trial, train_s)

    def _aware_of(self, trial: TuningTrial, train_s: float) -> Proposal:
        """The same network, quantized while it trains."""
        kept = ("runtime", "precision", *_MAKING, "learned", "shapes", "threads")
        parameters = {key: trial.parameters[key] for key in kept if key in trial.parameters}
        why = "quantizing cost the accuracy: train with quantization in the network"
        return Proposal(why, {**parameters, "aware_s": int(train_s)})

    def _is_near(self, trial: TuningTrial) -> bool:
        """Whether it is outside the bar by so little that training may bring it inside."""
        return (
            trial.stage == "outside"
            and trial.score is not None
            and trial.loss is not None
            and trial.loss.value <= _NEAR * max(self.bar, 1e-6)
        )

    def _floats(self, done: Sequence[TuningTrial], left_s: float) -> Iterator[Proposal]:
        """Layers left in float, of the fastest INT8 that quantizing has put outside the bar."""
        fastest_inside = max((_score(t) for t in done if t.stage == "inside"), default=0.0)
        known = [t for t in done if t.float_groups and _score(t) > _LEAST_GAIN * fastest_inside]
        for trial in sorted(known, key=lambda each: -_score(each))[:2]:
            if any(t.parameters.get("floats") and t.stage == "inside" for t in done):
                return
            for label, names in trial.float_groups.items():
                floats = {"label": label, "names": list(names)}
                why = "quantizing cost the accuracy: these layers stay in float"
                yield Proposal(why, {**trial.parameters, "floats": floats})

    def _samples(self, done: Sequence[TuningTrial], left_s: float) -> Iterator[Proposal]:
        """The sampler, around the best network: its options cost no training."""
        if left_s < 1.5 * _OVERHEAD_S:
            return
        if left_s > 6 * _OVERHEAD_S and not self.space.prunes:
            for rule in rules.slow_starts(self.space):
                yield Proposal(rule.why, rule.parameters)
        best = best_of(done)
        since = [trial for trial in done if best is None or trial.number > best.number]
        sampled = [trial for trial in since if trial.why == SAMPLED]
        if len(sampled) >= _PATIENCE:
            return
        if not self.space.prunes:
            yield Proposal(SAMPLED)
            return
        known = best.parameters if best else {}
        fixed = {key: known.get(key, 0) for key in _MAKING}
        if self.space.aware:
            fixed["aware_s"] = known.get("aware_s", 0)
        carried = {key: known[key] for key in ("learned",) if key in known}
        yield Proposal(SAMPLED, fixed=fixed, carried=carried)

    def _base(self, done: Sequence[TuningTrial]) -> TuningTrial | None:
        """The fastest network that is not cut, inside the bar or near it: what is cut next."""
        whole = [trial for trial in done if not _is_cut(trial) and trial.score is not None]
        whole = [trial for trial in whole if not trial.parameters.get("aware_s")]
        usable = [trial for trial in whole if trial.stage == "inside" or self._is_near(trial)]
        return max(usable or whole, key=_score, default=None)

    def _ladder(self, done: Sequence[TuningTrial]) -> list[TuningTrial]:
        """Cut networks by their gain, the smallest first; those that another beats by less are left."""
        base = self._base(done)
        looks = [trial for trial in done if trial.stage == "timed" and trial.score is not None]
        worth = [trial for trial in looks if base and _score(trial) >= _LEAST_GAIN * _score(base)]
        return sorted(worth, key=_score)


SAMPLED = "Optuna's sampler, around the best network"


def best_of(done: Sequence[TuningTrial]) -> TuningTrial | None:
    """The fastest trial inside the bar."""
    inside = [trial for trial in done if trial.stage == "inside" and trial.score is not None]
    return max(inside, key=_score, default=None)


def _score(trial: TuningTrial) -> float:
    return trial.score.value if trial.score is not None else 0.0


def _is_cut(trial: TuningTrial) -> bool:
    return any(_cut(trial))


def _cut(trial: TuningTrial) -> tuple[float, float]:
    return trial.parameters.get("blocks", 0.0), trial.parameters.get("width", 0.0)


def _trained(done: Sequence[TuningTrial]) -> list[TuningTrial]:
    """Networks that were cut and trained, and then quantized."""
    return [t for t in done if t.parameters.get("train_s") and not t.parameters.get("aware_s")]


def _is_part(trial: TuningTrial, other: TuningTrial) -> bool:
    """Whether the first one's cut is a part of the other's."""
    return all(mine <= its for mine, its in zip(_cut(trial), _cut(other), strict=True))


def _blocks_cannot_go(done: Sequence[TuningTrial]) -> bool:
    """Whether removing blocks has failed: this network has none that can go."""
    return any(t.stage == "failed" and t.parameters.get("blocks") and not t.trains for t in done)
