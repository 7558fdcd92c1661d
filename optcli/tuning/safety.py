"""How surely the trials of a search are inside the bar: of the finalists those win that surely are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from optcli.results.tuning import TuningTrial
from optcli.tuning.trial_facts import highest_loss

# Where no bound can lie inside the bar, a loss of this share of it is safe.
CAREFUL = 0.25
# A cut that surely loses less than this share of the bar is followed by one two steps harder.
_EASY = 1 / 3
# Losses up to so many bars may come back by quantization-aware training.
_NEAR = 2.5
# A cut network answers about so many samples otherwise than the whole one. By these and the number of
# samples the bound of its loss lies above the loss, at about so many standard errors.
_DISAGREEING, _ERRORS = 0.1, 2.0


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
