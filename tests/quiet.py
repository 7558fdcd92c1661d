"""Tests run beside each other, so the machine is never quiet: what the builds of tests measure counts.

Without this a build of a test would now and then measure again, and keep nothing for the next one.
"""

from __future__ import annotations

import math

from optcli.latency import fitness

BARS = {name: getattr(fitness, name) for name in ("NOT_FIT", "APART", "DISAGREE")}


def lift() -> None:
    """Whatever the machine does, it counts as quiet."""
    for name in BARS:
        setattr(fitness, name, math.inf)


def restore() -> None:
    """Judge the machine as ever."""
    for name, bar in BARS.items():
        setattr(fitness, name, bar)
