"""How the time of a search is divided: the trials first, then the finalists, which need time as well.

Evaluation samples may be many times the validation samples, and every finalist is judged on all of
them. What judging took on the validation samples says what it will take.
What other programs compute meanwhile costs trials and training.
"""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import psutil

from optcli.environment import usable_cores
from optcli.results.tuning import TuningTrial

# What is kept for building, measuring and judging the finalists where judging takes little.
_FINAL_SHARE, _LEAST_FINAL_S, _MOST_FINAL_S = 0.15, 20.0, 150.0
# Of the usual share, what a trial may take that has begun in time: a training that is cut off is lost.
_GRACE_SHARE = 0.25
# The most that is kept: else there would be nothing to judge. In a minute one finalist needs more.
_MOST_SHARE, _MOST_FOR_ONE = 0.5, 0.6
# Below so many seconds three finalists are judged: five take a minute to measure.
_FOR_ALL_S = 600.0
_ALL, _FEWER = 5, 3
# What starting and warming up one network takes in the five launches of a table, and timing it at two
# batch sizes at least. Three variants of SqueezeNet 1.1 took 54 s, of which the calls were 14.
_LAUNCHING_S, _TIMING_S = 13.0, 4.0
# Of a large network also so many calls at each batch size: those that warm it up in each launch, and
# two before each round. Three variants of ResNet-50 took 125 s, of which 64 s were 130 such calls each.
_CALLS_BESIDE = 130
# Beside other work starting takes longer, at most so many times: then that work may as well end.
_MOST_SLOWDOWN = 4.0
# What timing one network takes where somebody waits for the answer.
_HURRIED_S = 8.0
# Where judging takes little, so many are measured even if the time is over: the baseline, the fastest
# finalist and a careful one. A budget of a minute has time for fewer.
_LEAST_JUDGED = 3
# Of a judgement of two networks, what starting their processes takes and more samples do not repeat:
# 2.3 s in eager PyTorch and 0.9 s in OpenVINO, SqueezeNet 1.1 on 60 and 880 images, two cores.
_STARTING_S = 3.0
_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")


@dataclass(frozen=True)
class SearchBudget:
    """The `seconds` of a search; `evaluation` is how many samples judge the finalists.

    `slowdown` is how many times as long as on an idle machine starting a network takes.
    """

    seconds: float
    evaluation: int = 0
    slowdown: float = 1.0

    def slowed_by(self, share: float | None) -> SearchBudget:
        """The same where others have this share of the processors; None: it is not known."""
        slowdown = 1 / max(1 / _MOST_SLOWDOWN, 1 - (share or 0.0))
        return replace(self, slowdown=slowdown)

    @property
    def grace_s(self) -> float:
        """What the last trial may take of the time that is kept for the finalists."""
        return _GRACE_SHARE * self._usual_s

    def final_s(self, reference: TuningTrial | None, best: TuningTrial | None = None) -> float:
        """What is kept for the finalists, by what judging the reference has taken.

        It is enough for the baseline and three finalists, of which two are as fast as the best trial,
        and at most half of the budget; of a short one a little more, to launch one finalist.
        """
        usual = _usual_finalists(reference, best)
        wanted_s = min(self._launched_s(reference, usual[:_FEWER]), _MOST_SHARE * self.seconds)
        for_one_s = min(2 * self._least_s, _MOST_FOR_ONE * self.seconds)
        return max(self._usual_s, wanted_s, for_one_s)

    def finalists(
        self,
        left_s: float,
        reference: TuningTrial | None,
        most: int,
        best: TuningTrial | None = None,
    ) -> int:
        """How many finalists can be judged in the time that is left, at most `most`; one at least."""
        most = min(most, _ALL if self.seconds >= _FOR_ALL_S else _FEWER)
        least_s = min(_LEAST_JUDGED * self._least_s, self.final_s(reference, best))
        left_s = max(left_s, least_s)
        usual = _usual_finalists(reference, best)
        fitting = (n for n in range(1, most + 1) if self._launched_s(reference, usual[:n]) <= left_s)
        return max(fitting, default=1)

    def judged_s(self, reference: TuningTrial | None, finalists: Sequence[TuningTrial | None]) -> float:
        """What the baseline and these finalists take, without their timed calls."""
        return self._launched_s(reference, finalists) - _TIMING_S * (1 + len(finalists))

    def measuring_s(
        self,
        left_s: float,
        reference: TuningTrial | None,
        finalists: Sequence[TuningTrial | None],
        *,
        hurried: bool = False,
    ) -> float:
        """What is left of `left_s` for the calls of the baseline and these finalists.

        `hurried`: no more than the calls need, whatever is left.
        """
        spare_s = max(0.0, left_s - self.judged_s(reference, finalists))
        return min(spare_s, (1 + len(finalists)) * _HURRIED_S) if hurried else spare_s

    def overrun_s(self, reference: TuningTrial | None) -> float:
        """By how much judging a single finalist is likely to exceed half of the budget; 0 where not."""
        return max(0.0, 2 * self._judging_s(reference) - _MOST_SHARE * self.seconds)

    def _launched_s(
        self, reference: TuningTrial | None, finalists: Sequence[TuningTrial | None]
    ) -> float:
        """What judging and measuring the baseline and these finalists takes.

        The baseline, and a finalist whose time is not known, take as long as the reference.
        """
        timed = [each if each is not None and each.p50_ms else reference for each in finalists]
        judging_s = (1 + len(finalists)) * self._judging_s(reference)
        return judging_s + sum(map(self._measuring_s, (reference, *timed)))

    def _measuring_s(self, reference: TuningTrial | None) -> float:
        """What launching one network takes, and timing it for the least that is worth it."""
        call_s = 0.0 if reference is None else sum(reference.p50_ms.values()) / 1e3
        return self._least_s + _CALLS_BESIDE * call_s

    @property
    def _least_s(self) -> float:
        """The same of a network whose calls take no time."""
        return self.slowdown * _LAUNCHING_S + _TIMING_S

    @property
    def _usual_s(self) -> float:
        """What is kept for the finalists where judging them takes little."""
        return min(_MOST_FINAL_S, max(_LEAST_FINAL_S, _FINAL_SHARE * self.seconds))

    def _judging_s(self, reference: TuningTrial | None) -> float:
        """What one network takes on all evaluation samples, beside starting; 0 where nothing is known.

        Baseline and reference were judged together, so that one takes half.
        """
        if reference is None or not reference.judging_s or not reference.samples:
            return 0.0
        computing_s = max(0.0, reference.judging_s - _STARTING_S)
        return computing_s / 2 * self.evaluation / reference.samples


def _usual_finalists(
    reference: TuningTrial | None, best: TuningTrial | None
) -> list[TuningTrial | None]:
    """What stands for the finalists before they are chosen: two like the best trial, careful ones."""
    return [best, best, *[reference] * (_ALL - 2)]


class OtherWork:
    """What other programs, and other guests of its host, have of this machine's cores from now on."""

    def __init__(self) -> None:
        self._began, self._busy_s, self._own_s = time.monotonic(), _busy_s(), _own_s()

    def share(self) -> float | None:
        """The part of the cores' time until now, 0..1.

        A process of our own that still runs counts as another's. None where the system counts no time,
        and under a quota: what others compute then is on cores that this process could not have.
        """
        cores = len(_cores())
        passed_s = (time.monotonic() - self._began) * cores
        busy_s = _busy_s() - self._busy_s
        if cores > usable_cores() or busy_s <= 0 or passed_s <= 0:
            return None
        others_s = busy_s - (_own_s() - self._own_s)
        return min(1.0, max(0.0, others_s / passed_s))


def _cores() -> set[int]:
    """The numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _busy_s() -> float:
    """Seconds in which these cores computed for anybody, or were stolen."""
    cores = _cores()
    counted = [times for core, times in enumerate(psutil.cpu_times(percpu=True)) if core in cores]
    return sum(float(getattr(times, kind, 0.0)) for times in counted for kind in _BUSY)


def _own_s() -> float:
    """Seconds that this process computed, and those of its descendants that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
