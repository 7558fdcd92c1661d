"""How many steps a build does side by side."""

from __future__ import annotations

from optcli import environment
from optcli.latency import memory

# Memory for two steps of a large network side by side, and what a model takes by the size of its files.
_ROOM_BYTES, _COPIES = 8 << 30, 6
_JOBS_ON_RAY = 16


def usual_jobs(ray: str | None = None) -> int:
    """How many steps a build does side by side where nobody says: one, or two where there is room.

    Most of a step is Python on one core. With `ray` many: it keeps those waiting that find no room.
    """
    if ray is not None:
        return _JOBS_ON_RAY
    return 2 if is_room_for_two() else 1


def is_room_for_two(size_bytes: int = 0) -> bool:
    """Whether there are a second core and memory for two that work on a model of such a size."""
    room_bytes = max(_ROOM_BYTES, _COPIES * size_bytes)
    return environment.usable_cores() >= 2 and memory.available_bytes() >= room_bytes
