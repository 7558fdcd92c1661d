"""A worker in a PID namespace of its own: the numbers of other processes mean nothing in it.

It cannot move them to other cores, change their priority or send them signals. Linux gives such a
namespace to administrators, and to other users together with a user namespace, in which they stay who
they are. Containers often allow neither. See pid_namespaces(7) and user_namespaces(7).
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from contextlib import suppress
from pathlib import Path

_NEW_USER, _NEW_PROCESSES = 0x10000000, 0x20000000
_SHELL = "/bin/sh"
_CAPABILITIES_VERSION = 0x20080522


def enter() -> int | None:
    """Have all later children of this process live in a namespace of their own; None: not to be had.

    They end once nobody has the descriptor that it gives: a pipe to the first process of the namespace,
    which only waits. A worker is not the first itself: the system ignores what that one sends to
    itself, such as the signal of an abort. It is a shell, because a copy of a process with libraries
    costs 30 ms. This process must have one thread, and can start no other afterwards.
    """
    if not sys.platform.startswith("linux") or not os.access(_SHELL, os.X_OK) or not _unshared():
        return None
    waits, held = os.pipe()
    quiet = [(os.POSIX_SPAWN_DUP2, waits, 0), *((os.POSIX_SPAWN_CLOSE, number) for number in (1, 2))]
    try:
        os.posix_spawn(_SHELL, [_SHELL, "-c", "read _"], {}, file_actions=quiet, setpgroup=0)
    finally:
        os.close(waits)
    return held


def available() -> bool:
    """Whether workers can have one here; a process that ends at once tries it."""
    if not sys.platform.startswith("linux"):
        return False
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            os._exit(0 if enter() is not None else 1)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _unshared() -> bool:
    libc = ctypes.CDLL(None)
    if libc.unshare(_NEW_PROCESSES) == 0:
        return True
    user, group = os.geteuid(), os.getegid()
    # In a user namespace an administrator would lose the rights over the files of others.
    if user == 0 or libc.unshare(_NEW_USER | _NEW_PROCESSES) != 0:
        return False
    itself = Path("/proc/self")
    with suppress(OSError):  # then the user only reads as nobody there, and owns the same files
        (itself / "uid_map").write_text(f"{user} {user} 1")
        (itself / "setgroups").write_text("deny")  # else the next cannot be written
        (itself / "gid_map").write_text(f"{group} {group} 1")
    # What the first process of a user namespace may do in it, such as making more of them.
    libc.capset(struct.pack("<Ii", _CAPABILITIES_VERSION, 0), bytes(24))
    return True
