"""Which trials are built as variants and judged on samples that the search never saw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optcli.results.tuning import TuningTrial
from optcli.tuning.trial_facts import cut_of, highest_loss, is_cut, score_of

# Trials are alike whose scores differ by less, and whose losses by less than this share of the bar.
_CLOSE, _CLOSE_LOSS = 0.03, 0.1


@dataclass(frozen=True)
class FinalistChoice:
    """A trial that becomes a finalist, and why in words."""

    trial: TuningTrial
    why: str


def choose(
    trials: Sequence[TuningTrial], bar: float, most: int, *, certain: bool = False
) -> list[FinalistChoice]:
    """At most so many finalists: a pure function of the trials, the fastest first.

    The fastest inside the bar; the fastest whose loss is surely inside, or where none is, that uses
    half of the bar; the fastest without training; the fastest that loses nearly nothing; then others of
    the Pareto front of score and loss.
    Without a trial inside the bar there is none.

    `certain`: only what is surely inside the bar is accepted. The one with the smallest upper bound of
    the loss is then a finalist too: the evaluation samples may be enough for it and for no other.
    """
    inside = [t for t in trials if t.stage == "inside" and t.score is not None and t.loss is not None]
    inside = sorted(inside, key=_rank)
    chosen: dict[int, FinalistChoice] = {}

    def add(candidates: Sequence[TuningTrial], why: str) -> None:
        if candidates and len(chosen) < most:
            trial = candidates[0]
            same = any(_same(trial, each.trial) for each in chosen.values())
            if not same:
                chosen[trial.number] = FinalistChoice(trial, why)

    add(_trained_best(inside), "the fastest inside the bar on validation samples")
    sure = [t for t in inside if t.certain or (_has_bound(t) and highest_loss(t) <= bar)]
    add(_trained_best(sure), "the fastest that is surely inside the bar")
    if certain:
        add(sorted(inside, key=highest_loss), "smallest upper bound of the loss")
    if not sure:
        half = [t for t in inside if _loss(t) <= bar / 2]
        add(half, "the fastest that uses at most half of the bar")
    add([t for t in inside if not t.trains], "the fastest without training")
    add([t for t in inside if _loss(t) <= bar / 10], "the fastest that loses nearly nothing")
    for trial in front(inside):
        # Each finalist widens the bounds of all: one that hardly differs is not worth that.
        if not any(_is_like(trial, each.trial, bar) for each in chosen.values()):
            add([trial], "on the Pareto front of speed and loss")
    return sorted(chosen.values(), key=lambda each: _rank(each.trial))


def _trained_best(trials: Sequence[TuningTrial]) -> Sequence[TuningTrial]:
    """The fastest first; of one pruned network, trained several times, the one that is surest."""
    if not trials or not is_cut(trials[0]):
        return trials
    fastest = trials[0]
    alike = [t for t in trials if cut_of(t) == cut_of(fastest) and _is_as_fast(t, fastest)]
    return sorted(alike, key=highest_loss)


def front(trials: Sequence[TuningTrial]) -> list[TuningTrial]:
    """Trials that no other beats in both score and loss, the largest score first."""
    best: list[TuningTrial] = []
    for trial in sorted(trials, key=_rank):
        if not best or _loss(trial) < _loss(best[-1]):
            best.append(trial)
    return best


def _rank(trial: TuningTrial) -> tuple[float, float, int]:
    return (-score_of(trial), _loss(trial), trial.number)


def _loss(trial: TuningTrial) -> float:
    return trial.loss.value if trial.loss is not None else 1.0


def _has_bound(trial: TuningTrial) -> bool:
    return trial.loss is not None and trial.loss.high is not None


def _is_like(one: TuningTrial, other: TuningTrial, bar: float) -> bool:
    return _is_as_fast(one, other) and abs(_loss(one) - _loss(other)) < _CLOSE_LOSS * bar


def _is_as_fast(one: TuningTrial, other: TuningTrial) -> bool:
    return score_of(other) > 0 and abs(score_of(one) / score_of(other) - 1.0) < _CLOSE


def _same(one: TuningTrial, other: TuningTrial) -> bool:
    return one.number == other.number or (one.passes == other.passes and one.runner == other.runner)
