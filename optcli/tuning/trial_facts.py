"""What the trials so far say, as pure functions: scores and losses, cuts by their speed, safety."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from optcli.results.tuning import TuningTrial, score_of

# A loss is taken to fall with this power of the time of training. In a search of 2026-11-23 a ViT
# without half of its layers lost 2.07 points after 144 s and 1.50 after 237 s: a power of 0.65.
FALL = 0.5
# A cut network that gains less is not worth its training.
LEAST_GAIN = 1.1
# A cut whose gain is so near to the wanted one needs no other between its neighbours. At 5 % beyond it
# ResNet-20 lacked 4 of 7 blocks and gained 0.6 points by training; with 3 gone it gained 3 to 4.
CLOSE = 0.03
# Where no bound can lie inside the bar, a loss of this share of it is safe.
CAREFUL = 0.25
# A cut that surely loses less than this share of the bar is followed by one two steps harder.
_EASY = 1 / 3
# Losses up to so many bars may come back by quantization-aware training.
_NEAR = 2.5
# A cut network answers about so many samples otherwise than the whole one. By these and the number of
# samples the bound of its loss lies above the loss, at about so many standard errors.
_DISAGREEING, _ERRORS = 0.1, 2.0


def best_of(done: Sequence[TuningTrial]) -> TuningTrial | None:
    """The fastest trial inside the bar."""
    inside = [trial for trial in done if trial.stage == "inside" and trial.score is not None]
    return max(inside, key=score_of, default=None)


def surest_of(done: Sequence[TuningTrial]) -> TuningTrial | None:
    """The fastest trial that is surely inside the bar."""
    return best_of([trial for trial in done if trial.certain])


def is_cut(trial: TuningTrial) -> bool:
    """Whether a part of the network was removed."""
    return any(cut_of(trial))


def cut_of(trial: TuningTrial) -> tuple[float, float]:
    """The shares of blocks and of channels that were removed."""
    blocks = trial.parameters.get("blocks", 0.0)
    if trial.blocks_removed is not None and trial.blocks_found:
        blocks = _share(trial.blocks_removed, trial.blocks_found)
    return blocks, trial.parameters.get("width", 0.0)


def whole_blocks(share: float, done: Sequence[TuningTrial]) -> float:
    """The share of the blocks that pruning removes where it is asked for a share: at least one block.

    It is the share itself as long as no trial has said how many blocks there are. Later cuts reckon
    with it: after 2 of 7 blocks, "half" would be one more, and half of the whole network is 4.
    """
    blocks = next((trial.blocks_found for trial in done if trial.blocks_found), None)
    return _share(max(1, round(share * blocks)), blocks) if share and blocks else share


def _share(removed: int, blocks: int) -> float:
    return round(removed / blocks, 3)  # as precise as labels and recipes are


def trained_of(done: Sequence[TuningTrial]) -> list[TuningTrial]:
    """Networks that were cut and trained, and then quantized."""
    return [t for t in done if t.parameters.get("train_s") and not t.parameters.get("aware_s")]


def highest_loss(trial: TuningTrial) -> float:
    """The upper bound of the loss, and where there is none the loss itself."""
    if trial.loss is None:
        return 1.0
    return trial.loss.value if trial.loss.high is None else trial.loss.high


def trained_s(trial: TuningTrial) -> float:
    """How long the network of a trial was trained, since its last cut."""
    spent_s = trial.trained_share * trial.parameters.get("train_s", 0.0)
    spent_s += trial.parameters.get("more_s", 0.0)
    return max(1.0, float(spent_s))


def fallen(loss: float, trial: TuningTrial, more_s: float) -> float:
    """What a loss should be after so many seconds more of training; a gain is not taken to grow."""
    if loss <= 0.0:
        return loss
    already_s = trained_s(trial)
    return float(loss * (already_s / (already_s + max(0.0, more_s))) ** FALL)


def is_part(trial: TuningTrial, other: TuningTrial) -> bool:
    """Whether the first one's cut is a part of the other's."""
    return all(share <= its for share, its in zip(cut_of(trial), cut_of(other), strict=True))


def cannot_be_cut(shape: Mapping[str, Any], done: Sequence[TuningTrial]) -> bool:
    """Whether cuts like this one, of blocks, channels or both, have failed on this network.

    Where blocks cannot be removed, or channels, no cut with both can be made either. One failure says
    it of blocks and of both; channels may fail at one share and not at another, so two say it of them.
    """
    failures = Counter(_cut_kinds(t.parameters) for t in done if t.stage == "failed" and not t.trains)
    wanted = _cut_kinds(shape)
    return any(
        kinds and kinds <= wanted and count >= (2 if kinds == {"width"} else 1)
        for kinds, count in failures.items()
    )


def _cut_kinds(parameters: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(kind for kind in ("blocks", "width") if parameters.get(kind))


@dataclass(frozen=True)
class PruningCandidates:
    """The cuts of the network `base` among the trials `done` that gain enough to be trained.

    Their speed was measured before any of them was trained.
    """

    done: Sequence[TuningTrial]
    base: TuningTrial | None

    def by_gain(self) -> list[TuningTrial]:
        """The cut networks by their gain, the smallest first."""
        looks = [trial for trial in self.done if trial.stage == "timed" and trial.score is not None]
        return sorted((trial for trial in looks if score_of(trial) >= self._least), key=score_of)

    def knows(self, shape: Mapping[str, float]) -> bool:
        """Whether the speed without these shares of blocks and channels is known.

        Of few blocks two shares are the same.
        """
        cut = shape["blocks"], shape["width"]
        return bool(shape["blocks"]) and cut in map(cut_of, self.done)

    def is_worth_a_look(self, shape: Mapping[str, float], wanted: float) -> bool:
        """Whether the speed without these shares of blocks and channels is to be known before training.

        A cut smaller than one that hardly gains is not worth it: it gains even less. Where a cut
        gains what is wanted, a larger one is measured only if training allows for more.
        """
        blocks, width = shape["blocks"], shape["width"]
        for look in self.done:
            its_blocks, its_width = cut_of(look)
            beyond = is_cut(look) and its_blocks <= blocks and its_width <= width
            if beyond and score_of(look) >= wanted:
                return False
            within = blocks <= its_blocks and width <= its_width
            if within and 0.0 < score_of(look) < self._least:
                return False
        return not self.knows(shape)

    def first(self, wanted: float) -> TuningTrial:
        """What to train first: the fastest that gains no more than wanted, else the slowest.

        A harder cut goes on from the weights of this one; a milder one would begin anew. Cuts of blocks
        alone come first: with a third of its blocks gone MobileNetV3-small was faster than with a third
        of its channels gone, and was safe after half of the training.
        """
        candidates = self.deep() or self.by_gain()
        below = [each for each in candidates if score_of(each) <= (1.0 + CLOSE) * wanted]
        return below[-1] if below else candidates[0]

    def deep(self) -> list[TuningTrial]:
        """Those that remove blocks and no channels."""
        return [each for each in self.by_gain() if _is_deep(each)]

    def has(self, trial: TuningTrial) -> bool:
        """Whether the cut of a trial is one of these."""
        return cut_of(trial) in map(cut_of, self.by_gain())

    def milder(self, last: TuningTrial, least: float = 0.0) -> list[TuningTrial]:
        """Cuts that were not trained, slower than a trained one and faster than `least`, in order.

        Those that remove a part of what it removes, or no channels, where there are any.
        """
        slower = [
            each for each in self._untrained(self.by_gain()) if least < score_of(each) < score_of(last)
        ]
        return [each for each in slower if is_part(each, last) or _is_deep(each)] or slower

    def harder(self, last: TuningTrial, hopeless: Sequence[TuningTrial] = ()) -> list[TuningTrial]:
        """Cuts that were not trained, faster than a trained one, in order.

        Those that remove all that it removes, where there are any; none that removes all that a
        `hopeless` one does.
        """
        candidates = self.by_gain()
        cuts = [cut_of(each) for each in candidates]
        beyond = candidates[cuts.index(cut_of(last)) + 1 :] if cut_of(last) in cuts else []
        faster = self._untrained(beyond)
        faster = [each for each in faster if is_part(last, each)] or faster
        return [each for each in faster if not any(is_part(trial, each) for trial in hopeless)]

    @property
    def _least(self) -> float:
        return LEAST_GAIN * score_of(self.base) if self.base else float("inf")

    def _untrained(self, candidates: Sequence[TuningTrial]) -> list[TuningTrial]:
        trained = {cut_of(trial) for trial in trained_of(self.done)}
        return [each for each in candidates if cut_of(each) not in trained]


def _is_deep(trial: TuningTrial) -> bool:
    blocks, width = cut_of(trial)
    return bool(blocks) and not width


@dataclass(frozen=True)
class Safety:
    """The trials `done` under a `bar`; `wants_certainty`: the recipe accepts only sure ones."""

    done: Sequence[TuningTrial]
    bar: float
    wants_certainty: bool

    def is_safe(self, trial: TuningTrial) -> bool:
        """Whether a trial is inside the bar by so much that it should be on the evaluation samples too.

        Of the finalists those win whose bound lies inside the bar: where the samples are enough to know
        that of a whole network, a cut one that is not as sure loses to it, however fast it is.
        """
        if trial.stage != "inside" or trial.loss is None:
            return False
        if self.wants_certainty:
            return trial in self.keeping()
        if self.knows_whole():
            return highest_loss(trial) <= self.bar
        return trial.loss.value <= CAREFUL * self.bar or trial.loss.high is None

    def is_easy(self, trial: TuningTrial) -> bool:
        """Whether a safe trial loses so little that much more of the network may go."""
        if trial.loss is None:
            return False
        loss = highest_loss(trial) if self.knows_whole() else trial.loss.value
        return loss < _EASY * self.bar

    def knows_whole(self) -> bool:
        """Whether the samples are enough to know of a whole network that it is inside the bar."""
        return any(highest_loss(each) <= self.bar for each in self._whole())

    def aim(self, trial: TuningTrial) -> float:
        """The loss that a network like a trial's must have to be safe."""
        assert trial.loss is not None
        sure = self.bar - (highest_loss(trial) - trial.loss.value)
        known = self.knows_whole() and not self.wants_certainty
        return sure if known else max(sure, CAREFUL * self.bar)

    def gains_by_training(self, trial: TuningTrial) -> bool:
        """Whether a safe network may lose to a whole one that is as sure on the evaluation samples."""
        return self.knows_whole() and highest_loss(trial) > CAREFUL * self.bar

    def keeping(self) -> list[TuningTrial]:
        """The trials inside the bar; surely inside where the recipe wants to be certain.

        Where the validation samples are too few to be certain of any network, those that lose little.
        """
        inside = [trial for trial in self.done if trial.stage == "inside"]
        if not self.wants_certainty:
            return inside
        sure = [trial for trial in inside if trial.certain]
        most = CAREFUL * self.bar
        return sure or [t for t in inside if t.loss is not None and t.loss.value <= most]

    def is_short(self, trial: TuningTrial) -> bool:
        """Whether a little more accuracy is all that it lacks."""
        unsure = trial.stage == "inside" and self.wants_certainty and not trial.certain
        return unsure or self.is_near(trial)

    def is_near(self, trial: TuningTrial) -> bool:
        """Whether it is outside the bar by so little that training may bring it inside."""
        return (
            trial.stage == "outside"
            and trial.score is not None
            and trial.loss is not None
            and trial.loss.value <= _NEAR * max(self.bar, 1e-6)
        )

    def stop_at(self) -> float:
        """The loss on held-out samples at which a training may end: one that should be safe.

        Where whole networks are surely inside the bar, a cut one must be too: it must gain, if the
        samples are few.
        """
        samples = max((each.samples or 0 for each in self._whole()), default=0)
        if not samples or not self.knows_whole():
            return 0.0
        return round(min(0.0, self.bar - _ERRORS * math.sqrt(_DISAGREEING / samples)), 4)

    def _whole(self) -> list[TuningTrial]:
        return [each for each in self.done if each.stage == "inside" and not each.trains]
