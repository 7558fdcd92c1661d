"""How fast a training is, how much of it fits into a time, and when it may end early."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from optcli.observer import left, rate
from optcli.passes._torch.learning import Judge

if TYPE_CHECKING:
    import torch

    from optcli.passes._torch.checkpoint import TrainingProgress
    from optcli.passes._torch.learning import Call
    from optcli.passes._torch.training import Training

# Forward and backward take about three times as long as forward alone.
_TRAINED, _JUDGED = 3, 1
# A training that gets less than this share of its threads' time is warned of, once it ran so long.
_BUSY_SHARE, _BUSY_AFTER_S = 0.7, 20.0
# The time that is left is shown from here on: before, the first samples are still being prepared.
_TIME_LEFT_AFTER_S = 3.0

# Of all training samples at most so many are held out.
MOST_HELD_OUT = 0.1
# So often in the course of the learning rate it is looked, and from where on it may be hopeless.
_LOOKS, _HALF = 16, 0.5
# The steps in which the rate then falls to zero: a share of those before, and at least so many.
_ENDING_SHARE, _LEAST_ENDING = 0.15, 16


@dataclass
class Pace:
    """Counts the images of a training of `epochs`, from epoch `first` on.

    `trained` are those of one epoch, `judged` those that are judged after each and before the first.
    """

    epochs: int
    first: int
    trained: int
    judged: int
    clock: Callable[[], float] = time.monotonic
    processor: Callable[[], float] = time.process_time
    _began: float = field(init=False)
    _processor_began: float = field(init=False)
    _done: int = field(init=False, default=0)
    _epoch_began: float = field(init=False)
    _in_epoch: int = field(init=False, default=0)
    _rate: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._began = self._epoch_began = self.clock()
        self._processor_began = self.processor()

    def begin_epoch(self) -> None:
        """Before the first step of an epoch."""
        self._epoch_began, self._in_epoch = self.clock(), 0

    def train(self, images: int) -> None:
        """So many images more were trained on."""
        self._done += _TRAINED * images
        self._in_epoch += images
        spent_s = self.clock() - self._epoch_began
        self._rate = self._in_epoch / spent_s if spent_s > 0 else None

    def judge(self, images: int) -> None:
        """So many images more were judged."""
        self._done += _JUDGED * images

    @property
    def images_per_s(self) -> float | None:
        """Of the epoch that runs or ran last, without judging; None before its first step."""
        return self._rate

    def idle(self, threads: int) -> str | None:
        """Why so many threads do not pay, once that is known; None where they do.

        A network is computed in hundreds of steps, at the end of each of which threads wait for the
        last: where another process has a core, most of the time is waiting.
        """
        spent_s = self.clock() - self._began
        if threads < 2 or spent_s < _BUSY_AFTER_S:
            return None
        used = (self.processor() - self._processor_began) / spent_s
        if used >= _BUSY_SHARE * threads:
            return None
        return (
            f"{threads} threads get {used:.1f} s of processor time a second: other work keeps the cores"
            " busy, or the network is small; fewer `threads` may be faster"
        )

    def summary(self) -> str:
        """Images a second and the time that is left, as far as they are known; begins with a comma."""
        parts = []
        if self._rate is not None:
            parts.append(rate(self._rate, 1.0))
        spent_s, to_do = self.clock() - self._began, self._whole() - self._done
        if self._done and to_do > 0 and spent_s >= _TIME_LEFT_AFTER_S:
            parts.append(left(spent_s / self._done * to_do))
        return "".join(f", {part}" for part in parts)

    def _whole(self) -> int:
        epochs = self.epochs - self.first
        before = self.judged * _JUDGED if self.first == 0 else 0
        return before + epochs * (self.trained * _TRAINED + self.judged * _JUDGED)


@dataclass
class TrainingBudget:
    """The time that a training may take, of which `spent_s` went before a killed build was resumed."""

    seconds: float
    spent_s: float = 0.0
    clock: Callable[[], float] = time.monotonic
    _began: float = field(init=False)

    def __post_init__(self) -> None:
        self._began = self.clock() - self.spent_s

    @property
    def used_s(self) -> float:
        """All that was spent."""
        return self.clock() - self._began

    def steps_left(self, step_s: float) -> int:
        """How many steps of so many seconds still fit."""
        return max(0, int((self.seconds - self.used_s) / step_s)) if step_s > 0 else 2**31

    def fit(
        self, epochs: int, steps: int, step_s: float, judge_s: float, once_s: float = 0.0
    ) -> tuple[int, int]:
        """How many of the epochs fit into what is left, and the steps of each of them.

        `judge_s` is spent after every epoch, `once_s` before the second. Where not one epoch fits, it
        is one of fewer steps, or none: (0, 0).
        """
        left_s = self.seconds - self.used_s
        whole = int((left_s - once_s) // max(steps * step_s + judge_s, 1e-9))
        if min(whole, epochs) >= 1:
            return min(whole, epochs), steps
        some = int((left_s - judge_s) // (step_s + once_s / steps)) if step_s + once_s > 0 else steps
        return (1, min(some, steps)) if min(some, epochs) >= 1 else (0, 0)


@dataclass(frozen=True)
class EarlyStopping:
    """Ends a training that has reached its aim, or that will not reach it.

    `judge` has the samples that are held out, and `teacher` is the share of them that the teacher has
    right; without labels that is 1. A network that loses at most `enough` of them against the teacher
    has reached its aim. One that loses more than `hopeless` when half of the training is over will not.
    """

    judge: Judge
    teacher: float
    enough: float | None
    hopeless: float | None

    def is_due(self, share: float, looks: int) -> bool:
        """Whether a training is to be looked at, of which a share is done, and that was so often."""
        return looks + 1 < _LOOKS and share >= (looks + 1) / _LOOKS

    def lost(self, model: torch.nn.Module, call: Call) -> float | None:
        """The share of the held-out samples that the network loses against the teacher.

        The network is left in evaluation mode. None where neither labels nor classes say what is right.
        """
        right = self.judge(model, call).share
        return None if right is None else self.teacher - right

    def why(self, lost: float, share: float) -> str | None:
        """Why a training may end of which a share is done; None where it goes on."""
        changed = f"{100 * lost:.1f} points lost" if lost >= 0 else f"{-100 * lost:.1f} points gained"
        at = f"{changed} on {len(self.judge.examples)} samples held out of the training"
        if self.enough is not None and lost <= self.enough:
            return f"it has reached its aim: {at}, {_limit(self.enough)}"
        if self.hopeless is not None and share >= _HALF and lost > self.hopeless:
            return f"it will not reach its aim: {at} after half of it, {_limit(self.hopeless)}"
        return None


def _limit(share: float) -> str:
    return f"{100 * share:g} may be lost" if share >= 0 else f"{-100 * share:g} must be gained"


def facts_of_stopping(
    stopping: EarlyStopping, looks: list[dict[str, float]], why: str | None
) -> dict[str, Any]:
    """What is to be known of it: samples, every look, why the training ended, and after what share."""
    share = 1.0 if why is None else min(1.0, looks[-1]["share"] * (1 + _ENDING_SHARE))
    return {
        "held_out": len(stopping.judge.examples),
        "teacher": stopping.teacher,
        "looks": looks,
        "why": why,
        "share": round(share, 3),
    }


def ending_steps(done: float) -> int:
    """The steps in which the learning rate falls to zero, after so many."""
    return max(_LEAST_ENDING, round(_ENDING_SHARE * done))


def training_facts(progress: TrainingProgress, training: Training) -> dict[str, Any]:
    """What is to be known of a training that is over, as plain data."""
    loss = training.loss
    facts: dict[str, Any] = {
        "epochs": progress.epoch,
        "best_epoch": progress.best_epoch,
        "stopped_early": progress.stopped is not None
        or progress.epoch < (progress.planned or training.epochs),
        "training_samples": len(training.examples),
        "learning_rate": training.learning_rate,
        "batch_size": training.batch_size,
        "distillation_weight": loss.weight,
        "curve": progress.curve,
    }
    if loss.part_losses is not None:
        facts["compared"] = loss.part_losses.names
    if training.features is not None:
        facts["feature_weight"] = training.features.weight
        facts["features"] = list(training.features.names)
    if training.views is not None and training.shows_views(progress):
        facts["augmentation"] = {"mirrored": training.views.mirrors, "shift": training.views.shift}
    if training.stopping is not None:
        facts["early_stopping"] = facts_of_stopping(training.stopping, progress.looks, progress.stopped)
    if training.max_seconds is not None:
        facts |= {"max_minutes": training.max_seconds / 60, "epochs_that_fit": progress.planned}
    if training.judge is not None and progress.before is not None and progress.best is not None:
        facts["validation_samples"] = len(training.judge.examples)
        facts["validation_judged_by"] = "labels" if training.judge.examples.labelled else "teacher"
        facts["validation_accuracy_before"] = progress.before.share
        facts["validation_accuracy"] = progress.best.share
    return facts
