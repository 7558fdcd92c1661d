"""What a person sees while the search runs: best so far, time left, what is tried and why."""

from __future__ import annotations

import time

from optcli.observer import Observer, left
from optcli.results.tuning import TuningTrial

STEP = "tune"
_STAGES = {
    "inside": "inside the bar",
    "outside": "outside the bar",
    "timed": "only its speed was measured",
}


class Display(Observer):
    """An observer that shows every step of a trial as progress of the search. `until` is monotonic."""

    def __init__(self, observer: Observer, until: float) -> None:
        self._observer = observer
        self._until = until
        self._trial = ""
        self._best = "none inside the bar yet"

    def begins(self, number: int, label: str, why: str, best: TuningTrial | None) -> None:
        """A trial begins; `best` is the fastest one inside the bar so far."""
        self._trial = f"trial {number}: {label}"
        if best is not None and best.score is not None:
            self._best = f"best: {best.score.value:.2f} times the reference (trial {best.number})"
        # A line of its own: the one that is kept up to date has no room for reasons.
        self._observer.warned(STEP, f"{self._trial}: {why}")
        self._show("")

    def says(self, message: str) -> None:
        """Something that stays on the screen, of the search as a whole."""
        self._observer.warned(STEP, message)

    def ends(self, trial: TuningTrial) -> None:
        """A trial has ended."""
        words = [f"trial {trial.number}: {trial.label}"]
        words += [f"{trial.score.value:.2f} times the reference"] if trial.score is not None else []
        if trial.loss is not None:
            words.append(f"{100 * trial.loss.value:z.2f} points lost")
        words.append(_STAGES.get(trial.stage, trial.stage))
        if trial.ended_early is not None:
            words.append(f"its training ended early: {trial.ended_early}")
        if trial.stage == "failed":
            self._observer.failed(STEP, f"{words[0]}: {trial.reason or 'it could not be tried'}")
            return
        self._observer.finished(": ".join([STEP, ", ".join(words)]), trial.seconds)

    def started(self, step: str) -> None:
        self._show(step)

    def cached(self, step: str) -> None:
        self._show(step)

    def progress(self, step: str, fraction: float | None, message: str) -> None:
        self._show(f"{step} {message}")

    def finished(self, step: str, seconds: float) -> None:
        self._show(step)

    def failed(self, step: str, reason: str) -> None:
        self._show(f"{step}: {reason}")

    def warned(self, step: str, message: str) -> None:
        self._show(f"{step}: {message}")

    def _show(self, step: str) -> None:
        time_left = left(max(0.0, self._until - time.monotonic()))
        text = " · ".join(filter(None, (time_left, self._best, self._trial, step)))
        self._observer.progress(STEP, None, text)
