"""The protocol: artifacts open at once in processes of their own, one running at a time.

Machines drift while they are measured. Artifacts that are compared are therefore measured side by side:
each has its turn in every short round, in random order, so that a disturbance that lasts longer than a
round meets all of them. Two processes of one artifact differ too (where their memory lies, how their
threads are placed): several launches show by how much. Fresh launches measure again what was disturbed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import product
from pathlib import Path

from optcli.measure.latency.plan import LatencyOrder, groups
from optcli.measure.latency.samples import Measured
from optcli.measure.latency.session import STEP, Session
from optcli.measure.latency.summary import undecided
from optcli.observer import Observer, timed
from optcli.workers.memory import available_bytes

_MEMORY_SHARE = 0.7
# Before each further launch of what was disturbed: other work may be done by then. Of `max_seconds`,
# and at most so long.
_PAUSES = (0.2, 0.4, 0.8)
_LONGEST_PAUSE_S = 10.0
# All further launches together take so many times the time cap of the timed calls, or one more launch.
_AGAIN = 6


def measure(
    order: LatencyOrder,
    logs: Path,
    observer: Observer,
    *,
    budget_bytes: int | None = None,
    enough: Callable[[Measured], bool] | None = None,
) -> Measured:
    """Measure all candidates at all batch sizes; one that fails costs only itself.

    Each process writes its log to `logs/<name>.log`. A turn that takes 20 times its plan, and two
    minutes, is given up. `budget_bytes` is what all processes of a group may hold; default: 70 % of
    what is free. A candidate that fails raises nothing: `failures` of the result says why.

    Comparisons that the machine was not fit for are measured again: up to three further launches, as
    long as these keep within six times `max_seconds`. In gate mode nothing is: its own rule decides how
    many pairs it takes. `enough` is asked after every launch but the last; where what was measured so
    far is enough, nothing more is.
    """
    settings = order.settings
    budget = budget_bytes if budget_bytes is not None else int(available_bytes() * _MEMORY_SHARE)
    together = groups(order.candidates, order.baseline, budget)
    session = Session(order, logs, observer, together)
    clock = time.monotonic()
    share = 1 / (len(together) * settings.launches)
    ended = False
    launches = list(product(range(len(together)), range(settings.launches)))
    with timed(observer, STEP) as failures:
        for number, (index, launch) in enumerate(launches):
            session.launch(launch, index, together[index], number * share, share)
            is_last = number + 1 == len(launches)
            ended = not is_last and enough is not None and enough(session.measured())
            if ended:
                break
        if settings.mode != "gate" and not ended:
            _measure_again(session, (time.monotonic() - clock) / settings.launches)
        measured = session.measured(environment_after=True)
        failures += nothing_measured(measured, order)
    return measured


def nothing_measured(measured: Measured, order: LatencyOrder) -> list[str]:
    """Why a measurement gave nothing; empty where an artifact was measured."""
    if any(candidate.name not in measured.failures for candidate in order.candidates):
        return []
    return ["nothing could be measured"]


def _measure_again(session: Session, launch_s: float) -> None:
    """Further launches of the comparisons without a ratio, after a pause that grows.

    `launch_s` is what a launch of all has taken so far.
    """
    settings = session.order.settings
    end = time.monotonic() + _AGAIN * settings.max_seconds
    for attempt, pause in enumerate(_PAUSES):
        pause_s = min(pause * settings.max_seconds, _LONGEST_PAUSE_S)
        repeats = undecided(session.measured())
        late = attempt > 0 and time.monotonic() + pause_s + launch_s > end
        if not repeats or late:
            return
        names = list(dict.fromkeys(name for repeat in repeats.values() for name in repeat.names))
        session.observer.progress(
            STEP,
            1.0,
            f"the machine was not quiet: {', '.join(names)} again in {pause_s:g} s "
            f"(attempt {attempt + 1} of {len(_PAUSES)})",
        )
        time.sleep(pause_s)
        for group, repeat in repeats.items():
            candidates = [each for each in session.groups[group] if each.name in repeat.names]
            number = settings.launches + attempt
            session.launch(number, group, candidates, 1.0, 0.0, repeat.batch_sizes)


class LaunchPairs:
    """Launch pairs of a baseline and a candidate, measured until the caller has decided.

    Both sides are opened in fresh processes for each pair, are warmed up by the same number of calls
    (found once, on the baseline) and take turns in rounds in random order. With settings in `gate`
    mode; the order has the two.

    >>> pairs = LaunchPairs(order, logs, observer)
    >>> pair_log_ratios(pairs.measure(8), candidate.name, batch_size=1)  # the first look
    >>> pair_log_ratios(pairs.measure(8), candidate.name, batch_size=1)  # 16 pairs: the second
    """

    def __init__(self, order: LatencyOrder, logs: Path, observer: Observer) -> None:
        if len({each.name for each in order.candidates}) != 2:
            raise ValueError(
                f"a pair needs two names, found {[each.name for each in order.candidates]}"
            )
        self._session = Session(order, logs, observer, (order.candidates,))
        self.count = 0

    def measure(self, count: int) -> Measured:
        """Measure the next `count` pairs; gives all pairs so far.

        Where one side fails, no further pair is measured and `failures` of the result says why.
        """
        for done in range(count):
            if self._session.failures:
                break
            candidates = self._session.order.candidates
            self._session.launch(self.count, 0, candidates, done / count, 1 / count)
            self.count += 1
        return self._session.measured(environment_after=True)
