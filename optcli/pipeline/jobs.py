"""How many steps a build does side by side."""

from __future__ import annotations

from optcli import environment
from optcli.latency import memory

# Memory for two steps of a large network side by side.
_ROOM_BYTES = 8 << 30


def usual_jobs() -> int:
    """How many steps a build does side by side where nobody says: one, or two where there is room.

    Most of a step is Python on one core.
    """
    room = memory.available_bytes() >= _ROOM_BYTES
    return 2 if room and environment.usable_cores() >= 2 else 1
