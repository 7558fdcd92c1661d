"""The loop of a training that can be killed: epochs, the best one kept, a checkpoint after each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcli.errors import StepError
from optcli.formats import torch_modules
from optcli.passes import Job
from optcli.passes._torch.checkpoint import Progress, load_checkpoint, save_checkpoint
from optcli.passes._torch.examples import Examples, ExampleSet
from optcli.passes._torch.learning import Judge, Loss, Score, Teacher, reestimate_batchnorm
from optcli.passes._torch.pace import Pace

if TYPE_CHECKING:
    import torch

    from optcli.passes._torch.learning import Call

# The learning rate climbs over this share of the steps, then falls along a cosine.
_WARMUP = 0.05
# Means and variances of batch norms settle long before this many samples.
_BATCHNORM_SAMPLES = 2048
_SAY_EVERY_S = 0.5


@dataclass(frozen=True)
class Training:
    """All that decides how a network is trained.

    `zeros` maps a weight to what it is multiplied with after every step, so that its zeros stay.
    `settle` averages the batch norms' statistics anew before every judgement.
    """

    model: torch.nn.Module
    call: Call
    examples: ExampleSet
    judge: Judge | None
    loss: Loss
    teacher: Teacher | None
    optimizer: torch.optim.Optimizer
    epochs: int
    batch_size: int
    learning_rate: float
    clip_norm: float | None
    patience: int | None
    settle: bool
    seed: int
    zeros: dict[str, torch.Tensor]
    clock: Callable[[], float] = time.monotonic

    def run(self, job: Job) -> Progress:
        """Train all epochs, or those that a killed build has left over. Raises `StepError`."""
        progress = load_checkpoint(job.scratch, self.model, self.optimizer)
        pace = self._pace(0 if progress is None else progress.epoch)
        news = _News(job, pace, self.epochs, self.clock, self._threads())
        if progress is not None:
            job.warn(f"resuming after epoch {progress.epoch} of {self.epochs}, where it was stopped")
        else:
            progress = self._beginning(news)
        while progress.epoch < self.epochs and not self._is_out_of_patience(progress):
            number = progress.epoch + 1
            loss = self._epoch(number, news)
            self._settle()
            score = self._judged(news)
            progress.note(self.model, number, loss, score)
            news.ended(number, loss, f", validation {_score_text(score, progress)}" if score else "")
            if job.scratch is not None and number < self.epochs:
                save_checkpoint(job.scratch, progress, self.model, self.optimizer)
        return progress

    def _pace(self, first: int) -> Pace:
        judged = 0 if self.judge is None else len(self.judge.examples)
        return Pace(self.epochs, first, self._whole(len(self.examples)), judged, self.clock)

    def _threads(self) -> int:
        """Those that compute: one waits for a GPU."""
        import torch

        on_cpu = all(value.device.type == "cpu" for value in torch_modules.parameters(self.model))
        return torch.get_num_threads() if on_cpu else 1

    def _beginning(self, news: _News) -> Progress:
        news.begin("judging the network as it is")
        progress = Progress(before=self._judged(news))
        self._settle()
        progress.note(self.model, 0, None, self._judged(news) if self.settle else progress.before)
        return progress

    def _is_out_of_patience(self, progress: Progress) -> bool:
        return self.patience is not None and progress.epoch - progress.best_epoch >= self.patience

    def _judged(self, news: _News) -> Score | None:
        return None if self.judge is None else self.judge(self.model, self.call, news.judged)

    def _settle(self) -> None:
        if not self.settle:
            return
        order = self._order(0)[:_BATCHNORM_SAMPLES]
        batches = self.examples.batches(order[: self._whole(len(order))], self.batch_size)
        if not reestimate_batchnorm(self.model, self.call, batches):
            raise StepError(
                "the network has no batch norm whose statistics could be averaged",
                hint="leave out reestimate_batchnorm",
            )

    def _epoch(self, number: int, news: _News) -> float:
        """Train epoch `number`, from 1; gives the mean loss. Only seed and number decide it."""
        import torch

        order = self._order(number)
        torch.manual_seed(self.seed * 100_003 + number)  # dropout draws from it
        whole = order[: self._whole(len(order))]
        steps = -(-len(whole) // self.batch_size)
        self.model.train()
        values = list(torch_modules.parameters(self.model))
        masks = [(self.model.get_parameter(name), mask) for name, mask in self.zeros.items()]
        total = 0.0
        news.begin_epoch()
        for step, batch in enumerate(self.examples.batches(whole, self.batch_size)):
            rate = self.learning_rate * schedule((number - 1) * steps + step, self.epochs * steps)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            loss = self._step(batch, values, masks)
            if not math.isfinite(loss):
                raise StepError(
                    f"the loss became {loss} in epoch {number}: the training diverges",
                    hint=f"lower learning_rate (it is {self.learning_rate:g}), or set clip_norm",
                )
            total += loss
            news.trained(number, len(batch.positions), (step + 1) / steps, total / (step + 1))
        return total / steps

    def _step(
        self,
        batch: Examples,
        values: Sequence[torch.nn.Parameter],
        masks: Sequence[tuple[torch.nn.Parameter, torch.Tensor]],
    ) -> float:
        import torch

        taught = self.teacher(batch) if self.teacher is not None else None
        loss = self.loss(self.call(batch), batch.labels, taught)
        self.optimizer.zero_grad()
        loss.backward()
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(values, self.clip_norm)
        self.optimizer.step()
        with torch.no_grad():
            for value, mask in masks:
                value.mul_(mask)
        return float(loss.detach())

    def _order(self, number: int) -> list[int]:
        import torch

        generator = torch.Generator().manual_seed(self.seed * 100_003 + number)
        order: list[int] = torch.randperm(len(self.examples), generator=generator).tolist()
        return order

    def _whole(self, count: int) -> int:
        """How many samples make whole batches: a rest of one sample has no variance."""
        return max(1, count // self.batch_size) * self.batch_size


class _News:
    """Reports the progress of a training: loss, images a second, the time that is left."""

    def __init__(
        self, job: Job, pace: Pace, epochs: int, clock: Callable[[], float], threads: int
    ) -> None:
        self._job, self._pace, self._epochs, self._clock = job, pace, epochs, clock
        self._last = clock()
        self._share, self._text = 0.0, ""
        self._threads, self._warned = threads, False

    def begin(self, text: str) -> None:
        self._text = text
        self._job.progress(0.0, text)

    def begin_epoch(self) -> None:
        self._pace.begin_epoch()

    def trained(self, number: int, images: int, fraction: float, loss: float) -> None:
        """So many images more of epoch `number`, of which `fraction` is done; the mean loss so far."""
        self._pace.train(images)
        self._share = (number - 1 + fraction) / self._epochs
        self._text = f"epoch {number} of {self._epochs}: loss {loss:.3f}"
        self._say_now_and_then("")

    def judged(self, images: int) -> None:
        """So many images more were judged."""
        self._pace.judge(images)
        self._say_now_and_then(", judging")

    def ended(self, number: int, loss: float, validation: str) -> None:
        """Epoch `number` is over, and judged."""
        text = f"epoch {number} of {self._epochs}: loss {loss:.3f}{validation}"
        self._job.progress(number / self._epochs, f"{text}{self._pace.summary()}")

    def _say_now_and_then(self, doing: str) -> None:
        if self._clock() - self._last >= _SAY_EVERY_S:
            self._last = self._clock()
            self._warn_of_waiting()
            self._job.progress(self._share, f"{self._text}{doing}{self._pace.summary()}")

    def _warn_of_waiting(self) -> None:
        why = None if self._warned else self._pace.idle(self._threads)
        if why is not None:
            self._warned = True
            self._job.warn(why)


def schedule(step: int, steps: int) -> float:
    """The learning rate at a step as a share of the largest: a short climb, then half a cosine."""
    climb = max(1, round(steps * _WARMUP))
    if step < climb:
        return (step + 1) / climb
    return 0.5 * (1 + math.cos(math.pi * (step - climb) / max(1, steps - climb)))


def _score_text(score: Score, progress: Progress) -> str:
    text = f"loss {score.loss:.3f}"
    if score.share is not None:
        text = f"top-1 {100 * score.share:.1f} %"
    best = "the best so far" if progress.best_epoch == progress.epoch else "not the best"
    return f"{text}, {best}"
