"""A process that imports libraries once and forks a worker for every call.

Started as `python -m optcli.workers.server`.

It never computes and never touches CUDA, so that a fork of it is as good as a fresh interpreter that
has already spent its seconds importing torch. It is single-threaded and ends when its parent does.
Why not multiprocessing's own fork server: docs/decisions/worker-processes.md.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
from multiprocessing.connection import Connection

from optcli.workers.child import serve
from optcli.workers.lifetime import bind_to_parent


def main() -> None:
    """Answer fork requests on the socket given as the first argument until it closes."""
    control = socket.socket(fileno=int(sys.argv[1]))
    bind_to_parent(int(sys.argv[2]))
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    os.set_blocking(wake, False)
    for name in sys.argv[3:]:
        with contextlib.suppress(ImportError):  # the step that needs it says so
            importlib.import_module(name)
    while True:
        ready, _, _ = select.select([control.fileno(), wake], [], [])
        if wake in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(wake, 4096)
            _report_ended(control)
        if control.fileno() in ready:
            data, descriptors, _, _ = socket.recv_fds(control, 64, 2)
            if not data:
                return
            _fork(control, wake, woken, *descriptors)


def _fork(control: socket.socket, wake: int, woken: int, channel: int, log: int) -> None:
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        control.close()
        os.close(wake)
        os.close(woken)
        for stream in (1, 2):
            os.dup2(log, stream)
        os.close(log)
        serve(Connection(channel), parent)
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
    main()
