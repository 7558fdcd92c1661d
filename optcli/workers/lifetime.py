"""How a worker process lives and dies: with its parent, with all its own children, before the build.

A worker leads its own process group. It asks the kernel to be killed when its parent dies, and a tiny
guard process kills whatever is left of the group once the worker is gone, however it went: a compiler
that a killed pass had started does not stay behind. Linux only; elsewhere a killed build can leave a
worker that ends by itself when its channel closes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_LINUX = sys.platform.startswith("linux")


def bind_to_parent(parent: int) -> None:
    """Make this process lead a group that dies with process `parent`, which must have started it."""
    with suppress(PermissionError):  # already a session leader
        os.setpgid(0, 0)
    if not _LINUX:
        return
    _die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:  # it died before the request was made
        os._exit(1)
    _offer_to_the_memory_killer()
    _start_guard(os.getpid())


def kill_group(pid: int) -> None:
    """Kill a worker and everything it started."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)


def _die_with_parent(number: signal.Signals) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def _offer_to_the_memory_killer() -> None:
    """When memory runs out, the kernel should take the worker and not the build."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("800")


def _start_guard(worker: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if os.fork() == 0:
        os.setpgid(0, 0)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        os.closerange(0, 4096)
        _die_with_parent(signal.SIGTERM)
        if os.getppid() == worker:
            signal.sigwait({signal.SIGTERM})
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker, signal.SIGKILL)
        os._exit(0)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
