"""Workers of builds in tests start warm: forked from a process that has imported optcli already.

A fresh interpreter that imports optcli takes half a second and more of a core, and thousands of builds
of tests start one for each evaluation and launch. Nothing that is imported here has threads or settings
of its own, not even numpy: a worker imports such libraries itself, in its own environment. Tests that
look at how workers start and end ask for `cold_workers` (conftest.py).
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from optcli.workers import parent, server

_IMPORTED = (
    "optcli.pipeline.step",
    "optcli.accuracy.process",
    "optcli.measure.latency.process",
    "optcli.workers.server",
)
_REQUEST_BYTES = 1 << 20

COLD = parent._started


@contextmanager
def instead_of_cold() -> Iterator[None]:
    """Start workers that way in this process; what forks them starts with the first."""
    warm: list[Warm] = []

    def started(
        command: Sequence[str],
        connection: int,
        arguments: Sequence[str],
        stream: int,
        environment: Mapping[str, str] | None,
    ) -> subprocess.Popen[bytes] | Forked:
        if command[0] != sys.executable or not sys.platform.startswith("linux"):
            return COLD(command, connection, arguments, stream, environment)
        if not warm:
            warm.append(Warm())
        given = {**os.environ, **parent._import_path(), **(environment or {})}
        return warm[0].started(command, connection, arguments, stream, given)

    parent._started = started  # type: ignore[assignment]
    try:
        yield
    finally:
        parent._started = COLD
        for each in warm:
            each.close()


class Warm(parent.ForkServer):
    """The process that forks them, as this process sees it."""

    def __init__(self) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in (self._control, theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self._follow()

    def started(
        self,
        command: Sequence[str],
        connection: int,
        arguments: Sequence[str],
        stream: int,
        environment: Mapping[str, str],
    ) -> Forked:
        """What `python -P -m MODULE CONNECTION PARENT ARGUMENTS` would be."""
        request = {"module": command[-1], "arguments": list(arguments), "cwd": os.getcwd()}
        data = json.dumps({**request, "environment": dict(environment)}).encode()
        with open(os.devnull, "r+b", buffering=0) as nothing:
            stream = nothing.fileno() if stream == subprocess.DEVNULL else stream
            return Forked(self._fork(data, [connection, stream]))


class Forked:
    """A worker, with what optcli asks of a `subprocess.Popen`."""

    def __init__(self, forked: parent._Forked) -> None:
        self.pid, self._forked = forked.pid, forked

    def poll(self) -> int | None:
        return self._forked.ended(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._forked.ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("worker", timeout or 0.0)
        return code


def main(control: socket.socket) -> None:
    """Fork a worker for each request; end with the tests, which close the other end of the socket."""
    for name in _IMPORTED:
        importlib.import_module(name)
    wake, woken = os.pipe2(os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    own = set(filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    path = [each for each in sys.path if each not in own]
    while True:
        ready, _, _ = select.select([wake, control], [], [])
        if wake in ready:
            with suppress(BlockingIOError):
                os.read(wake, 4096)
            with suppress(OSError):  # the tests have ended
                server._report_ended(control)
        if control not in ready:
            continue
        data, descriptors, _, _ = socket.recv_fds(control, _REQUEST_BYTES, 2)
        if not data:
            os._exit(0)
        forker = os.getpid()
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (control.detach(), wake, woken):
                os.close(each)
            _become(json.loads(data), descriptors, path, forker)
        for each in descriptors:
            os.close(each)
        control.send(json.dumps({"started": child}).encode() + b"\n")


def _become(request: dict, descriptors: list[int], path: list[str], parent: int) -> None:
    connection, stream = descriptors
    os.setsid()
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.dont_write_bytecode = "PYTHONDONTWRITEBYTECODE" in os.environ
    tempfile.tempdir = None
    sys.path[:] = [*filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *path]
    importlib.invalidate_caches()
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for each in (1, 2):
        os.dup2(stream, each)
    os.close(stream)
    sys.argv = [request["module"], str(connection), str(parent), *request["arguments"]]
    from multiprocessing.connection import Connection

    from optcli.workers import child, lifetime

    if request["module"] == child.__name__:
        child.serve(Connection(connection), parent, apart=lifetime.APART in request["arguments"])
    os.set_inheritable(connection, True)
    server.main()
    os._exit(0)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
