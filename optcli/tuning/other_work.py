"""How much of the processors others have while a search runs: that costs trials and training."""

from __future__ import annotations

import os
import resource
import time

import psutil

from optcli.environment import usable_cores

_BUSY = ("user", "nice", "system", "irq", "softirq", "steal")


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
