"""What disturbs a measuring process, as the system counts it."""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from optcli.environment import steal_s, throttled_s

_TASKS = Path("/proc/self/task")


@dataclass(frozen=True)
class Disturbance:
    """Involuntary context switches, seconds stolen by the hypervisor, nanoseconds of waiting.

    `throttled_ns` is what a CPU quota kept from all processes that share it. Some kernels count it as
    waiting too.
    """

    switches: int
    steal_s: float
    waited_ns: int
    throttled_ns: int


class Noise:
    """What disturbed this process or this machine since the object was made."""

    def __init__(self) -> None:
        self._switches, self._steal_s = _involuntary_switches(), steal_s() or 0.0
        self._waited_ns, self._throttled_s = waited_ns(), throttled_s()

    def since(self) -> Disturbance:
        """What it was until now."""
        return Disturbance(
            switches=_involuntary_switches() - self._switches,
            steal_s=(steal_s() or 0.0) - self._steal_s,
            waited_ns=max(0, waited_ns() - self._waited_ns),
            throttled_ns=round(1e9 * (throttled_s() - self._throttled_s)),
        )


def waited_ns() -> int:
    """How long threads of this process were ready to run while others had the processors.

    The sum over its threads, from the scheduler's own clock; 0 where the system does not tell.
    """
    if not sys.platform.startswith("linux"):
        return 0
    total = 0
    for task in _TASKS.iterdir():
        with suppress(OSError, ValueError, IndexError):  # a thread may end, a kernel may not say
            total += int((task / "schedstat").read_text().split()[1])
    return total


def _involuntary_switches() -> int:
    """How often another task took the processor from one of this process's threads."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
