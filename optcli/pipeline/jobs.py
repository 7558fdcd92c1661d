"""How many steps a build does side by side."""

from __future__ import annotations

from optcli import environment
from optcli.workers import memory

# Memory for two steps of a large network side by side.
_ROOM_BYTES = 8 << 30
_JOBS_ON_RAY = 16


def usual_jobs(ray: str | None = None) -> int:
    """How many steps a build does side by side where nobody says: one, or two where there is room.

    Most of a step is Python on one core. With `ray` many: it keeps those waiting that find no room.
    """
    if ray is not None:
        return _JOBS_ON_RAY
    room = memory.available_bytes() >= _ROOM_BYTES
    return 2 if room and environment.usable_cores() >= 2 else 1
