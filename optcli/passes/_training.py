"""The loop of a training that can be killed: epochs, the best one kept, a checkpoint after each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcli.errors import StepError
from optcli.formats import torch_modules
from optcli.passes import Job
from optcli.passes._checkpoint import Progress, load_checkpoint, save_checkpoint
from optcli.passes._examples import Examples, ExampleSet
from optcli.passes._learning import Judge, Loss, Score, Teacher, reestimate_batchnorm

if TYPE_CHECKING:
    import torch

    from optcli.passes._learning import Call

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

    def run(self, job: Job) -> Progress:
        """Train all epochs, or those that a killed build has left over. Raises `StepError`."""
        progress = load_checkpoint(job.scratch, self.model, self.optimizer)
        if progress is not None:
            job.warn(f"going on after epoch {progress.epoch} of {self.epochs}, where it was stopped")
        else:
            progress = self._beginning(job)
        while progress.epoch < self.epochs and not self._is_out_of_patience(progress):
            number = progress.epoch + 1
            loss = self._epoch(number, self._saying(job, number))
            self._settle(job)
            score = self._judged()
            progress.note(self.model, number, loss, score)
            found = f", validation {_told(score, progress)}" if score is not None else ""
            message = f"epoch {number} of {self.epochs}: loss {loss:.3f}{found}"
            job.progress(number / self.epochs, message)
            if job.scratch is not None and number < self.epochs:
                save_checkpoint(job.scratch, progress, self.model, self.optimizer)
        return progress

    def _beginning(self, job: Job) -> Progress:
        job.progress(0.0, "judging the network as it is")
        progress = Progress(before=self._judged())
        self._settle(job)
        progress.note(self.model, 0, None, self._judged() if self.settle else progress.before)
        return progress

    def _is_out_of_patience(self, progress: Progress) -> bool:
        return self.patience is not None and progress.epoch - progress.best_epoch >= self.patience

    def _judged(self) -> Score | None:
        return None if self.judge is None else self.judge(self.model, self.call)

    def _settle(self, job: Job) -> None:
        if not self.settle:
            return
        order = self._order(0)[:_BATCHNORM_SAMPLES]
        batches = self.examples.batches(order[: self._whole(len(order))], self.batch_size)
        if not reestimate_batchnorm(self.model, self.call, batches):
            raise StepError(
                "the network has no batch norm whose statistics could be averaged",
                hint="leave out reestimate_batchnorm",
            )

    def _epoch(self, number: int, say: Callable[[float, float], None]) -> float:
        """Train epoch `number`, from 1; gives the mean loss. It hangs on the seed and number alone."""
        import torch

        order = self._order(number)
        torch.manual_seed(self.seed * 100_003 + number)  # dropout draws from it
        whole = order[: self._whole(len(order))]
        steps = -(-len(whole) // self.batch_size)
        self.model.train()
        total = 0.0
        for step, batch in enumerate(self.examples.batches(whole, self.batch_size)):
            rate = self.learning_rate * schedule((number - 1) * steps + step, self.epochs * steps)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            loss = self._step(batch)
            if not math.isfinite(loss):
                raise StepError(
                    f"the loss became {loss} in epoch {number}: the training has come apart",
                    hint=f"lower learning_rate (it is {self.learning_rate:g}), or set clip_norm",
                )
            total += loss
            say((step + 1) / steps, total / (step + 1))
        return total / steps

    def _step(self, batch: Examples) -> float:
        import torch

        taught = self.teacher(batch) if self.teacher is not None else None
        loss = self.loss(self.call(batch), batch.labels, taught)
        self.optimizer.zero_grad()
        loss.backward()
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(torch_modules.parameters(self.model), self.clip_norm)
        self.optimizer.step()
        with torch.no_grad():
            for name, mask in self.zeros.items():
                self.model.get_parameter(name).mul_(mask)
        return float(loss.detach())

    def _order(self, number: int) -> list[int]:
        import torch

        generator = torch.Generator().manual_seed(self.seed * 100_003 + number)
        return [int(i) for i in torch.randperm(len(self.examples), generator=generator)]

    def _whole(self, count: int) -> int:
        """How many samples make whole batches: a rest of one sample has no variance."""
        return max(1, count // self.batch_size) * self.batch_size

    def _saying(self, job: Job, number: int) -> Callable[[float, float], None]:
        last = time.monotonic()

        def say(fraction: float, loss: float) -> None:
            nonlocal last
            if time.monotonic() - last >= _SAY_EVERY_S:
                last = time.monotonic()
                done = (number - 1 + fraction) / self.epochs
                job.progress(done, f"epoch {number} of {self.epochs}: loss {loss:.3f}")

        return say


def schedule(step: int, steps: int) -> float:
    """The learning rate at a step as a share of the largest: a short climb, then half a cosine."""
    climb = max(1, round(steps * _WARMUP))
    if step < climb:
        return (step + 1) / climb
    return 0.5 * (1 + math.cos(math.pi * (step - climb) / max(1, steps - climb)))


def _told(score: Score, progress: Progress) -> str:
    found = f"loss {score.loss:.3f}"
    if score.share is not None:
        found = f"top-1 {100 * score.share:.1f} %"
    best = "the best so far" if progress.best_epoch == progress.epoch else "not the best"
    return f"{found}, {best}"
