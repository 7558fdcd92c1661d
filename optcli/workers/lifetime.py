"""How a worker process lives and dies: with its parent, with all its descendants, before the build.

A worker has a keeper: the process that was started, which forks the worker and does nothing but wait.
The keeper is a subreaper: whatever the worker starts and leaves behind, in a session of its own or
forked twice, becomes the keeper's child. Once the worker is gone, however it went, or the parent is,
or the parent asks for it by SIGTERM, the keeper kills all that is left and ends as the worker did.
A worker that will be confined lives in a namespace of its own where there is one: `enter_namespace`.
Linux only; elsewhere a worker leads a process group, and a killed build can leave a worker that ends
by itself when its channel closes.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from optcli.workers import channel

# What a worker that will be confined is started with.
APART = "apart"
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform.startswith("linux")
_HEARD = {signal.SIGTERM, signal.SIGCHLD}
_UNHEARD = {signal.SIGINT, signal.SIGHUP}
_DESCRIPTORS = 4096
_MOST_S = 10.0
# A keeper also looks by itself whether its worker and its parent are there.
_LOOK_S = 5.0
_NEW_USER, _NEW_PROCESSES = 0x10000000, 0x20000000
_SHELL = "/bin/sh"
_CAPABILITIES_VERSION = 0x20080522


def bind_to_parent(parent: int, *, apart: bool = False) -> None:
    """Make this process the keeper of a new one, in which the call returns.

    Both die with process `parent`, which must have started this one. Call before any thread is started.
    Where it is to be had, a worker that is `apart` sees no process but its own.
    """
    with suppress(PermissionError):  # already a session leader
        os.setpgid(0, 0)
    if not _LINUX:
        return
    # Where it is inherited as ignored, the system buries children and tells nobody that they ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD | _UNHEARD)
    namespace = enter_namespace() if apart else None
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    keeper = os.getpid()
    if os.getppid() != parent:  # it died before the request was made
        os._exit(1)
    worker = os.fork()
    if worker:
        _keep(worker, parent, namespace)
    if namespace is not None:
        os.close(namespace)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD | _UNHEARD)
    os.setpgid(0, 0)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if _parent("self") != keeper:  # as it is numbered outside
        os._exit(1)
    with suppress(OSError):  # when memory runs out, the kernel should take the worker, not the build
        Path("/proc/self/oom_score_adj").write_text("800")


def stop(pid: int, ended: Callable[[float], int | None]) -> None:
    """End a worker and everything it started; `pid` is the process that was started for it.

    `ended` waits so many seconds for its end, as `Child` does.
    """
    if _LINUX:
        if ended(0.0) is not None:  # its number may be another's by now
            return
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGTERM)
        if ended(_MOST_S + 2) is not None:
            return
    for each in (*_descendants(pid), pid):
        _kill(each)
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    ended(5.0)


def _keep(worker: int, parent: int, namespace: int | None = None) -> NoReturn:
    """What the keeper does until the worker has ended, or the parent wants it to or is gone.

    It holds the descriptor of the worker's `namespace`, and no other.
    """
    alone = _DESCRIPTORS if namespace is None else namespace
    os.closerange(0, alone)  # above all the worker's channel: its end must be seen
    os.closerange(alone + 1, _DESCRIPTORS)
    status: int | None = None
    while status is None:
        heard = signal.sigtimedwait(_HEARD, _LOOK_S)
        unwanted = heard is not None and heard.si_signo == signal.SIGTERM
        if not _is_there(worker):
            break
        if unwanted or os.getppid() != parent:
            _kill(worker)
            with suppress(ChildProcessError):
                status = os.waitpid(worker, 0)[1]
            break
        status = _reaped(worker)
    _end_all()
    _end_as(status)


def _is_there(worker: int) -> bool:
    """Whether the worker is still a child of this process, running or not yet buried."""
    try:
        os.waitid(os.P_PID, worker, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _reaped(worker: int) -> int | None:
    """Bury every child that has ended; the status of the worker if it is among them."""
    status = None
    with suppress(ChildProcessError):
        while True:
            pid, ended_with = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == worker:
                status = ended_with
    return status


def _end_all() -> None:
    """Kill every descendant. What a killed one leaves behind becomes a child, and is next."""
    deadline = time.monotonic() + _MOST_S
    while time.monotonic() < deadline:
        try:
            if os.waitpid(-1, os.WNOHANG)[0]:
                continue
        except ChildProcessError:
            return
        for pid in _descendants(os.getpid()):
            _kill(pid)
        time.sleep(0.002)


def _end_as(status: int | None) -> NoReturn:
    """End as the worker ended, so that whoever waits for the keeper learns it."""
    if status is None:
        os._exit(1)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # one dump is enough
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))


def _descendants(pid: int) -> list[int]:
    """Every process below one, as the system lists them now."""
    children: dict[int, list[int]] = {}
    for folder in os.listdir("/proc") if _LINUX else ():
        if not folder.isdigit():
            continue
        try:
            children.setdefault(_parent(folder), []).append(int(folder))
        except (OSError, ValueError, IndexError):
            continue  # it has just ended
    descendants: list[int] = []
    waiting = [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        descendants += below
        waiting += below
    return descendants


def _parent(process: str) -> int:
    """The parent of a process, as the system's own list has it. Raises OSError once it has ended."""
    stat = Path("/proc", process, "stat").read_bytes()
    # The name stands in brackets and may hold any; state and parent follow.
    return int(stat[stat.rindex(b")") + 2 :].split()[1])


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, int(value), 0, 0, 0)


def end_at_once() -> None:
    """End this process, and with it its workers, whatever its threads do."""
    os._exit(0)


def enter_namespace() -> int | None:
    """Have later children of this process live in a PID namespace of their own; None: there is none.

    The numbers of other processes mean nothing there: a worker cannot move them to other cores, change
    their priority or send them signals. Linux gives such a namespace to administrators, and to other
    users together with a user namespace, in which they stay who they are. Containers often allow
    neither. See pid_namespaces(7) and user_namespaces(7).

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


def has_namespaces() -> bool:
    """Whether workers can have one here; a process that ends at once tries it."""
    if not sys.platform.startswith("linux"):
        return False
    pid = os.fork()
    if pid == 0:
        with suppress(BaseException):
            os._exit(0 if enter_namespace() is not None else 1)
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


def can_fork() -> bool:
    """Whether this process can be copied: it has one thread. Of more, their locks would stay locked."""
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:  # no Linux
        return False


class ForkedCopy:
    """A copy of this process, which carries out `serve` with its end of a connection and then ends.

    It may do what this process may, and writes to the same log. The keeper of a worker ends its copies
    with it. Only where this process `can_fork`.
    """

    def __init__(self, serve: Callable[[Connection], None]) -> None:
        self.connection, child = channel.pair()
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # else the copy writes it again
        self._pid = os.fork()
        if self._pid == 0:
            self.connection.close()
            _serve_and_end(serve, child)
        child.close()

    def close(self) -> None:
        """End the copy, whatever it does.

        A confined process may not be allowed to: then the copy ends once it looks at its connection, or
        with this process.
        """
        self.connection.close()
        try:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        except (ProcessLookupError, PermissionError, ChildProcessError):
            return


def _serve_and_end(serve: Callable[[Connection], None], connection: Connection) -> NoReturn:
    status = 1
    try:
        with suppress(OSError):  # it is the first to take where memory runs out: the worker goes on
            Path("/proc/self/oom_score_adj").write_text("900")
        serve(connection)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
