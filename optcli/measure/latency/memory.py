"""How much memory this process has held."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

from optcli.workers.memory import field_bytes

_STATUS = Path("/proc/self/status")


def mark_bytes() -> int:
    """The resident memory now; the high-water mark begins anew where the system lets it."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    return field_bytes(_STATUS, "VmRSS") or high_water_bytes()


def high_water_bytes() -> int:
    """The most resident memory this process has held.

    Not `ru_maxrss` on Linux: it survives `exec`, so that a small child of a large parent would be
    charged with its parent's memory.
    """
    held = field_bytes(_STATUS, "VmHWM")
    if held is not None:
        return held
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
