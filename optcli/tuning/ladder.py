"""Pruned networks by their speed, which was measured before any of them was trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optcli.results.tuning import TuningTrial
from optcli.tuning.trial_facts import cut_of, is_part, score_of, trained_of

# A cut network that gains less is not worth its training.
LEAST_GAIN = 1.1


@dataclass(frozen=True)
class Ladder:
    """The cuts of the network `base` among the trials `done` that gain enough to be trained."""

    done: Sequence[TuningTrial]
    base: TuningTrial | None

    def rungs(self) -> list[TuningTrial]:
        """The cut networks by their gain, the smallest first."""
        looks = [trial for trial in self.done if trial.stage == "timed" and trial.score is not None]
        least = LEAST_GAIN * score_of(self.base) if self.base else float("inf")
        return sorted((trial for trial in looks if score_of(trial) >= least), key=score_of)

    def has(self, trial: TuningTrial) -> bool:
        """Whether the cut of a trial is one of these."""
        return cut_of(trial) in map(cut_of, self.rungs())

    def milder(self, last: TuningTrial, least: float = 0.0) -> list[TuningTrial]:
        """Cuts that were not trained, slower than a trained one and faster than `least`, in order.

        Those that remove a part of what it removes, where there are any.
        """
        slower = [
            each for each in self._untrained(self.rungs()) if least < score_of(each) < score_of(last)
        ]
        return [each for each in slower if is_part(each, last)] or slower

    def harder(self, last: TuningTrial, hopeless: Sequence[TuningTrial] = ()) -> list[TuningTrial]:
        """Cuts that were not trained, faster than a trained one, in order.

        Those that remove all that it removes, where there are any; none that removes all that a
        `hopeless` one does.
        """
        rungs = self.rungs()
        cuts = [cut_of(each) for each in rungs]
        beyond = rungs[cuts.index(cut_of(last)) + 1 :] if cut_of(last) in cuts else []
        faster = self._untrained(beyond)
        faster = [each for each in faster if is_part(last, each)] or faster
        return [each for each in faster if not any(is_part(trial, each) for trial in hopeless)]

    def below(self, last: TuningTrial) -> TuningTrial | None:
        """The fastest cut that removes a part of what a trained one removes; None: there is none."""
        slower = [each for each in self.rungs() if score_of(each) < score_of(last)]
        parts = [each for each in slower if is_part(each, last)]
        return parts[-1] if parts else None

    def _untrained(self, rungs: Sequence[TuningTrial]) -> list[TuningTrial]:
        trained = {cut_of(trial) for trial in trained_of(self.done)}
        return [each for each in rungs if cut_of(each) not in trained]
