"""How fast a training is and how long it will still take, by one clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from optcli.observer import left, rate

# Forward and backward take about three times as long as forward alone.
_TRAINED, _JUDGED = 3, 1
# Before so much of a training no time that is left is said: the first samples are prepared as well.
_TOLD_AFTER_S = 3.0


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
    _began: float = field(init=False)
    _done: int = field(init=False, default=0)
    _epoch_began: float = field(init=False)
    _in_epoch: int = field(init=False, default=0)
    _rate: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._began = self._epoch_began = self.clock()

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

    def said(self) -> str:
        """Images a second and the time that is left, as far as they are known; begins with a comma."""
        parts = []
        if self._rate is not None:
            parts.append(rate(self._rate, 1.0))
        spent_s, to_do = self.clock() - self._began, self._whole() - self._done
        if self._done and to_do > 0 and spent_s >= _TOLD_AFTER_S:
            parts.append(left(spent_s / self._done * to_do))
        return "".join(f", {part}" for part in parts)

    def _whole(self) -> int:
        epochs = self.epochs - self.first
        before = self.judged * _JUDGED if self.first == 0 else 0
        return before + epochs * (self.trained * _TRAINED + self.judged * _JUDGED)
