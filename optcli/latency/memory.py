"""How much memory there is, and how much this process has held."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from optcli.environment import control_groups

_MEMORY = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")
# The limit of a control group and what it holds, as versions 2 and 1 call them.
_LIMITS = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def available_bytes() -> int:
    """Memory that processes may still take, bounded by the limits of control groups."""
    free = _field_bytes(_MEMORY, "MemAvailable")  # as psutil has it, which takes time to import
    if free is None:
        import psutil

        free = int(psutil.virtual_memory().available)
    for folder in control_groups("memory"):
        for limit, used in _LIMITS:
            with suppress(OSError, ValueError):
                left = int((folder / limit).read_text()) - int((folder / used).read_text())
                free = min(free, left)
    return max(free, 0)


def mark_bytes() -> int:
    """The resident memory now; the high-water mark begins anew where the system lets it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return _field_bytes(_STATUS, "VmRSS") or high_water_bytes()


def high_water_bytes() -> int:
    """The most resident memory this process has held.

    Not `ru_maxrss` on Linux: it survives `exec`, so that a small child of a large parent would be
    charged with its parent's memory.
    """
    held = _field_bytes(_STATUS, "VmHWM")
    if held is not None:
        return held
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _field_bytes(path: Path, field: str) -> int | None:
    """A field of a file of Linux that counts in KiB; None on other systems, or where there is none."""
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return None
