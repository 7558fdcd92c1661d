"""The loop of a training that can be killed: epochs, the best one kept, a checkpoint after each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcli.errors import StepError
from optcli.models.formats import torch_modules
from optcli.passes import Job
from optcli.passes._torch.checkpoint import TrainingProgress, load_checkpoint, save_checkpoint
from optcli.passes._torch.examples import Examples, ExampleSet, Views
from optcli.passes._torch.learning import (
    Judge,
    Loss,
    Score,
    Teacher,
    reestimate_batchnorm,
    training_mode,
)
from optcli.passes._torch.pace import EarlyStopping, Pace, TrainingBudget, ending_steps
from optcli.workers import memory

if TYPE_CHECKING:
    import torch

    from optcli.passes._torch.learning import Call, Features

# The learning rate climbs over this share of the steps, then falls along a cosine.
_WARMUP = 0.05
# Means and variances of batch norms settle long before this many samples.
_BATCHNORM_SAMPLES = 2048
_SAY_EVERY_S = 0.5
# Steps whose time is taken to plan a training of limited time, without the first; and what is added.
_TRIAL_STEPS = 3
_MARGIN = 1.05
# Every so many steps of a training of limited time it is seen whether the rest still fits.
_LOOK_EVERY = 8
# Views of the images are shown where the network sees every sample at least so often: until then the
# images as they are hold enough that is new.
_SEEN_OFTEN = 5


@dataclass(frozen=True)
class Training:
    """All that decides how a network is trained.

    `zeros` maps a weight to what it is multiplied with after every step, so that its zeros stay.
    `own_layers`: PyTorch's own layers alone are put into training mode. `settle` averages the batch
    norms' statistics anew before every judgement. `features` are those of the teacher to be matched,
    `views` change the images of a long training. With `max_seconds`, so many of the epochs are trained
    as fit, by the pace of a few steps and then of every epoch; where not one fits, or nothing is judged
    between them, they have fewer steps. The learning rate reaches the end of its course all the same,
    also where `stopping` ends the training early.
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
    features: Features | None = None
    views: Views | None = None
    max_seconds: float | None = None
    stopping: EarlyStopping | None = None
    own_layers: bool = False

    def run(self, job: Job) -> TrainingProgress:
        """Train all epochs, or those that a killed build has left over. Raises `StepError`."""
        memory.keep_freed()
        progress = load_checkpoint(job.scratch, self.model, self.optimizer)
        budget = self._budget(progress)
        news = _TrainingMonitor(job, self._pace(progress), self.epochs, self.clock, self._threads())
        if progress is None:
            progress = self._beginning(news)
            self._plan_first(budget, progress, job)
        else:
            job.warn(
                f"resuming after epoch {progress.epoch} of {self._last(progress)}, where it was stopped"
            )
        while progress.epoch < self._last(progress) and not self._is_out_of_patience(progress):
            news.plan(self._last(progress))
            number = progress.epoch + 1
            times_s = [self.clock()]
            loss, waited_s = self._epoch(number, progress, news, budget)
            times_s.append(self.clock())
            self._settle()
            score = self._judged(news)
            times_s.append(self.clock())
            progress.note(self.model, number, loss, score)
            news.ended(number, loss, f", validation {_score_text(score, progress)}" if score else "")
            # Samples are prepared in the first epoch, and kept.
            trained_s = times_s[1] - times_s[0] - (waited_s if number == 1 else 0.0)
            self._plan_rest(budget, progress, trained_s, times_s[2] - times_s[1], job)
            if job.scratch is not None and number < self._last(progress):
                save_checkpoint(job.scratch, progress, self.model, self.optimizer)
        return progress

    def shows_views(self, progress: TrainingProgress) -> bool:
        """Whether images are changed: where the steps that are planned make five whole epochs."""
        if progress.stopped is not None:
            return progress.shows_views
        steps = self._last(progress) * (progress.steps or self._steps())
        return self.views is not None and steps >= _SEEN_OFTEN * self._steps()

    def _last(self, progress: TrainingProgress) -> int:
        """The number of the last epoch."""
        return self.epochs if progress.planned is None else progress.planned

    def _steps(self) -> int:
        """Those of a whole epoch."""
        return -(-min(self._whole(len(self.examples)), len(self.examples)) // self.batch_size)

    def _budget(self, progress: TrainingProgress | None) -> TrainingBudget | None:
        if self.max_seconds is None:
            return None
        spent_s = 0.0 if progress is None else progress.spent_s
        return TrainingBudget(self.max_seconds, spent_s, self.clock)

    def _plan_first(self, budget: TrainingBudget | None, progress: TrainingProgress, job: Job) -> None:
        """Settle how many epochs fit, by the time of a few steps and of the first judgement."""
        if budget is None or self.epochs == 0:
            return
        judged_s = budget.used_s
        step_s, wait_s = self._trial()
        once_s = wait_s * self._steps()
        times_s = (_MARGIN * step_s, judged_s, _MARGIN * once_s)
        epochs, steps = self._fit(budget, self.epochs, self._steps(), *times_s)
        if epochs == 0:
            job.warn("max_minutes is over before the first step: one step is trained")
            epochs = steps = 1
        progress.planned, progress.steps, progress.spent_s = epochs, steps, budget.used_s

    def _plan_rest(
        self,
        budget: TrainingBudget | None,
        progress: TrainingProgress,
        trained_s: float,
        judged_s: float,
        job: Job,
    ) -> None:
        """Train fewer epochs where the last one took longer than was planned."""
        if budget is None or progress.planned is None or progress.steps is None:
            return
        progress.spent_s = budget.used_s
        if progress.stopped is not None:
            return
        left, whole = progress.planned - progress.epoch, progress.steps
        if left == 0:
            return
        if self.judge is None:  # what is left is planned anew, with more steps where they were faster
            left, whole = self.epochs - progress.epoch, self._steps()
        epochs, steps = self._fit(budget, left, whole, trained_s / progress.steps, judged_s)
        if epochs == 0:
            job.warn(
                f"max_minutes is over after epoch {progress.epoch} of {progress.planned}: it took "
                "longer than the first steps had shown"
            )
        progress.planned, progress.steps = progress.epoch + epochs, steps or progress.steps

    def _fit(
        self,
        budget: TrainingBudget,
        epochs: int,
        steps: int,
        step_s: float,
        judge_s: float,
        once_s: float = 0.0,
    ) -> tuple[int, int]:
        """How many epochs fit, and the steps of each of them: see `TrainingBudget.fit`.

        Where nothing is judged between epochs, one more that is not whole takes the rest of the time:
        all of them then have fewer steps.
        """
        whole, some = budget.fit(epochs, steps, step_s, judge_s, once_s)
        if self.judge is not None or not 0 < whole < epochs or step_s <= 0:
            return whole, some
        fewer = int((budget.seconds - budget.used_s - once_s) // ((whole + 1) * step_s))
        more = (whole + 1) * fewer > whole * some
        return (whole + 1, min(fewer, steps)) if more else (whole, some)

    def _trial(self) -> tuple[float, float]:
        """The time of a step, and that of preparing its samples; leaves the network as it is."""
        state = {name: value.clone() for name, value in torch_modules.state(self.model).items()}
        order = self._order(1)
        training_mode(self.model, own_layers=self.own_layers)
        step_s = wait_s = 0.0
        for index in range(_TRIAL_STEPS):
            first = index * self.batch_size % self._whole(len(order))
            times_s = [self.clock()]
            batch = self.examples.batch(order[first : first + self.batch_size])
            times_s.append(self.clock())
            loss = self._loss_of(batch)
            loss.backward()
            float(loss.detach())  # waits for a GPU
            times_s.append(self.clock())
            if index > 0:  # the first sets things up
                step_s += (times_s[2] - times_s[1]) / (_TRIAL_STEPS - 1)
                wait_s += (times_s[1] - times_s[0]) / (_TRIAL_STEPS - 1)
        self.optimizer.zero_grad()
        self.model.load_state_dict(state)
        torch_modules.evaluating(self.model)
        return step_s, wait_s

    def _pace(self, progress: TrainingProgress | None) -> Pace:
        first = 0 if progress is None else progress.epoch
        judged = 0 if self.judge is None else len(self.judge.examples)
        return Pace(self.epochs, first, self._whole(len(self.examples)), judged, self.clock)

    def _threads(self) -> int:
        """Those that compute: one waits for a GPU."""
        import torch

        on_cpu = all(value.device.type == "cpu" for value in torch_modules.parameters(self.model))
        return torch.get_num_threads() if on_cpu else 1

    def _beginning(self, news: _TrainingMonitor) -> TrainingProgress:
        news.begin("judging the network as it is")
        progress = TrainingProgress(before=self._judged(news))
        self._settle()
        progress.note(self.model, 0, None, self._judged(news) if self.settle else progress.before)
        return progress

    def _is_out_of_patience(self, progress: TrainingProgress) -> bool:
        return self.patience is not None and progress.epoch - progress.best_epoch >= self.patience

    def _judged(self, news: _TrainingMonitor) -> Score | None:
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

    def _epoch(
        self,
        number: int,
        progress: TrainingProgress,
        news: _TrainingMonitor,
        budget: TrainingBudget | None,
    ) -> tuple[float, float]:
        """Train epoch `number`, from 1; gives the mean loss, and the time that samples took.

        Only the seed, the number and the plan decide the result; and the clock, where steps take longer
        than was planned: the epoch then has fewer, and the rate runs through its course faster.
        """
        import torch

        order = self._order(number)
        torch.manual_seed(self.seed * 100_003 + number)  # dropout draws from it
        steps = progress.steps or self._steps()
        whole = order[: min(self._whole(len(order)), steps * self.batch_size)]
        # The rest of the learning rate's course is laid over the steps that are left.
        course = round((self._last(progress) - number + 1) * steps / (1 - progress.share), 6)
        begun = progress.share * course
        planned = steps
        training_mode(self.model, own_layers=self.own_layers)
        values = list(torch_modules.parameters(self.model))
        masks = [(self.model.get_parameter(name), mask) for name, mask in self.zeros.items()]
        total = waited_s = 0.0
        views = self.views if self.shows_views(progress) else None
        news.begin_epoch()
        waiting_since = looked = self.clock()
        for step, batch in enumerate(self.examples.batches(whole, self.batch_size)):
            waited_s += self.clock() - waiting_since
            if budget is not None and step and step % _LOOK_EVERY == 0:
                now = self.clock()
                steps = min(steps, step + budget.steps_left((now - looked) / _LOOK_EVERY))
                looked = now
            if step >= steps:
                break
            at = begun + step if steps == planned else begun + planned * step / steps
            rate = self.learning_rate * schedule(at, course)
            for group in self.optimizer.param_groups:
                group["lr"] = rate * group.get("share", 1.0)
            loss = self._step(batch if views is None else views(batch), values, masks)
            if not math.isfinite(loss):
                raise StepError(
                    f"the loss became {loss} in epoch {number}: the training diverges",
                    hint=f"lower learning_rate (it is {self.learning_rate:g}), or set clip_norm",
                )
            total += loss
            news.trained(number, len(batch.positions), (step + 1) / steps, total / (step + 1))
            began = self.clock()
            if self._may_stop(progress, at + 1, course):
                progress.share, progress.shows_views = (at + 1) / course, views is not None
                progress.planned, progress.steps = number + 1, min(ending_steps(at + 1), self._steps())
                return total / (step + 1), waited_s
            waiting_since = self.clock()
            looked += waiting_since - began
        progress.share = min(1.0, (begun + planned) / course)
        return total / steps, waited_s

    def _may_stop(self, progress: TrainingProgress, at: float, course: float) -> bool:
        """Whether the training may end after so many steps of its course: held-out samples say so."""
        stopping, share = self.stopping, at / course
        if stopping is None or progress.stopped or not stopping.is_due(share, len(progress.looks)):
            return False
        lost = stopping.lost(self.model, self.call)
        training_mode(self.model, own_layers=self.own_layers)
        if lost is None:
            return False
        progress.looks.append({"share": round(share, 3), "lost": round(lost, 5)})
        if at + ending_steps(at) < course:
            progress.stopped = stopping.why(lost, share)
        return progress.stopped is not None

    def _step(
        self,
        batch: Examples,
        values: Sequence[torch.nn.Parameter],
        masks: Sequence[tuple[torch.nn.Parameter, torch.Tensor]],
    ) -> float:
        import torch

        loss = self._loss_of(batch)
        self.optimizer.zero_grad()
        loss.backward()
        if self.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(values, self.clip_norm)
        self.optimizer.step()
        with torch.no_grad():
            for value, mask in masks:
                value.mul_(mask)
        return float(loss.detach())

    def _loss_of(self, batch: Examples) -> torch.Tensor:
        taught = self.teacher(batch) if self.teacher is not None else None
        loss = self.loss(self.call(batch), batch.labels, taught)
        return loss if self.features is None else loss + self.features.loss()

    def _order(self, number: int) -> list[int]:
        import torch

        generator = torch.Generator().manual_seed(self.seed * 100_003 + number)
        order: list[int] = torch.randperm(len(self.examples), generator=generator).tolist()
        return order

    def _whole(self, count: int) -> int:
        """How many samples make whole batches: a rest of one sample has no variance."""
        return max(1, count // self.batch_size) * self.batch_size


class _TrainingMonitor:
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

    def plan(self, epochs: int) -> None:
        """So many epochs are trained."""
        self._epochs = self._pace.epochs = epochs

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


def schedule(step: float, steps: float) -> float:
    """The learning rate at a step as a share of the largest: a short climb, then half a cosine."""
    climb = max(1, round(steps * _WARMUP))
    if step < climb:
        return (step + 1) / climb
    return 0.5 * (1 + math.cos(math.pi * (step - climb) / max(1, steps - climb)))


def _score_text(score: Score, progress: TrainingProgress) -> str:
    text = f"loss {score.loss:.3f}"
    if score.share is not None:
        text = f"top-1 {100 * score.share:.1f} %"
    best = "the best so far" if progress.best_epoch == progress.epoch else "not the best"
    return f"{text}, {best}"
