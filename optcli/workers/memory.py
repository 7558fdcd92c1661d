"""How the C library of a worker deals with large blocks of memory."""

from __future__ import annotations

import ctypes
import sys

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
