"""A process that imports libraries once and forks a worker for every call.

Started as `python -m optcli.workers.server`.

It never computes and never touches CUDA, so that a fork of it is as good as a fresh interpreter that
has already spent its seconds importing torch. It is single-threaded and ends when its parent does.
Between two imports it forks whoever needs no more than what is there by then.
Why not multiprocessing's own fork server: docs/decisions/worker-processes.md.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
from multiprocessing.connection import Connection

from optcli.workers import libraries
from optcli.workers.child import serve
from optcli.workers.lifetime import bind_to_parent

# Names of the modules that the worker needs, as JSON.
REQUEST_BYTES = 1 << 16


def main() -> None:
    """Answer fork requests on the socket given as the first argument until it closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    bind_to_parent(int(sys.argv[2]))
    libraries.spare_the_compiler()
    gc.disable()  # what it imports stays alive: looking through all of it would only take time
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    os.set_blocking(wake, False)
    to_import = list(dict.fromkeys(sys.argv[3:]))
    # One at a time: who asks waits for the answer.
    forking: tuple[list[str], bool, list[int]] | None = None
    while True:
        sources = [wake] if forking else [wake, control.fileno()]
        ready, _, _ = select.select(sources, [], [], 0 if forking or to_import else None)
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            _report_ended(control)
        if control.fileno() in ready:
            data, descriptors, _, _ = socket.recv_fds(control, REQUEST_BYTES, 2)
            if not data:
                return
            request = json.loads(data)
            forking = request["after"], request["apart"], descriptors
        missing = [name for name in to_import if forking is None or name in forking[0]]
        if missing:
            to_import.remove(missing[0])
            with contextlib.suppress(Exception):  # the step that needs it says so
                libraries.bring_in([missing[0]])
        elif forking is not None:
            _, apart, descriptors = forking
            _fork(control, wake, woken, *descriptors, apart=apart)
            forking = None


def _fork(
    control: socket.socket, wake: int, woken: int, channel: int, log: int, *, apart: bool
) -> None:
    parent = os.getpid()
    gc.freeze()  # no worker looks for garbage among the libraries, or copies their pages for that
    child = os.fork()
    if child == 0:
        gc.enable()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        os.close(wake)
        os.close(woken)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
        serve(Connection(channel), parent, apart=apart)
    os.close(channel)
    os.close(log)
    control.sendall(json.dumps({"started": child}).encode() + b"\n")


def _report_ended(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        control.sendall(json.dumps({"ended": pid, "code": code}).encode() + b"\n")


if __name__ == "__main__":
    # The parent may have gone, or closed its end, while something was still to be told.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        main()
    # Taking the libraries down takes a third of a second, and the build waits for the end.
    os._exit(0)
