"""How much memory workers may take, and how the C library deals with large blocks of it."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

from optcli.environment import control_groups

_MEMORY = Path("/proc/meminfo")
# The limit of a control group and what it holds, as versions 2 and 1 call them.
_LIMITS = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)

# Of mallopt(3).
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4


def keep_freed() -> bool:
    """Make the C library keep freed memory for later allocations; false where it cannot.

    PyTorch allocates the same blocks on every call. As it comes, glibc maps a large one anew, or gives
    the end of its heap back, and the system clears all pages at their first touch, which can take as
    long as what is computed on them. Whether it does depends on how blocks happen to lie: of two
    processes of one network one can be twice as slow (`benchmarks/README.md`). For a process that
    computes until its end: it gives nothing back.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(_MMAP_MAX, 0)) and bool(mallopt(_TRIM_THRESHOLD, -1))


def available_bytes() -> int:
    """Memory that processes may still take, bounded by the limits of control groups."""
    free = field_bytes(_MEMORY, "MemAvailable")  # as psutil has it, which takes time to import
    if free is None:
        import psutil

        free = int(psutil.virtual_memory().available)
    for folder in control_groups("memory"):
        for limit, used in _LIMITS:
            with suppress(OSError, ValueError):
                left = int((folder / limit).read_text()) - int((folder / used).read_text())
                free = min(free, left)
    return max(free, 0)


def field_bytes(path: Path, field: str) -> int | None:
    """A field of a file of Linux that counts in KiB; None on other systems, or where there is none."""
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    return None
