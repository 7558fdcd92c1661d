"""How fast a training is, how long it will still take, and how much of it fits, by one clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from optcli.observer import left, rate

# Forward and backward take about three times as long as forward alone.
_TRAINED, _JUDGED = 3, 1
# A training that gets less than this share of its threads' time is warned of, once it ran so long.
_BUSY_SHARE, _BUSY_AFTER_S = 0.7, 20.0
# The time that is left is shown from here on: before, the first samples are still being prepared.
_TIME_LEFT_AFTER_S = 3.0


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
