"""Pruned networks by their speed, which was measured before any of them was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from optcli.results.tuning import TuningTrial
from optcli.tuning.trial_facts import cut_of, is_cut, is_part, score_of, trained_of

# A cut network that gains less is not worth its training.
LEAST_GAIN = 1.1
# A cut whose gain is so near to the wanted one needs no other between its neighbours. At 5 % beyond it
# ResNet-20 lacked 4 of 7 blocks and gained 0.6 points by training; with 3 gone it gained 3 to 4.
CLOSE = 0.03


@dataclass(frozen=True)
class PruningCandidates:
    """The cuts of the network `base` among the trials `done` that gain enough to be trained."""

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

        No look is worth it at a smaller cut than one that hardly gains: it gains even less. Where a cut
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
