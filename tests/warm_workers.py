"""Workers of builds in tests start warm: forked from a process that has imported optcli already.

A fresh interpreter that imports optcli takes half a second and more of a core, torch a second and more,
and thousands of builds of tests start one for each evaluation and launch. Libraries read their settings
from the environment when they are imported. So workers that will import the same ones in the same
environment are forked from a process that did so in that environment, and has computed nothing, as a
build's own fork server. Tests that look at how workers start and end ask for `cold_workers`
(conftest.py).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import psutil

from optcli.models.formats import openvino
from optcli.passes._torch import onnx_exporting
from optcli.workers import libraries, parent, server

_IMPORTED = (
    "optcli.pipeline.step",
    "optcli.accuracy.process",
    "optcli.measure.latency.process",
    "optcli.workers.server",
)
# What the runners of these names, or the formats, import when they open a model.
_OF_RUNNERS = {
    "torch": ("torch",),
    "torchscript": ("torch",),
    "aoti": ("torch",),
    "exported": ("torch",),
    "executorch": ("torch",),
    "onnxruntime": ("onnx", "onnxruntime"),
    "openvino": ("openvino",),
}
# What takes long of what steps import. A server of steps imports the rest itself.
_OF_STEPS = ("numpy", "torch", *onnx_exporting.IMPORTS_AHEAD)
# Variables that no library reads while it is imported; most differ from test to test.
_READ_LATER = re.compile(
    "(OPTCLI|PYTEST|GIT|GITHUB|XDG|AWS|FAKE_CUDA)(_.*)?|TMPDIR|COLUMNS|PWD|OLDPWD|HOME|NO_COLOR|TERM"
    "|SHARED|IMAGES|COCO|DETECTOR|FASHION"
)
_MOST = 10
_FORKER = "warm_workers"  # in place of a worker's module: another process that forks
_REQUEST_BYTES = 1 << 20

# Modules, the path for imports and other variables.
Kind = tuple[frozenset[str], tuple[str, ...], frozenset[tuple[str, str]]]

COLD = parent._started
_forkers: Forkers | None = None  # of this process


def descendants() -> set[psutil.Process]:
    """What runs below this process, but for what forks workers: which test starts that is chance."""
    forkers = _forkers.pids() if _forkers else set()
    return {each for each in psutil.Process().children(recursive=True) if each.pid not in forkers}


@contextmanager
def instead_of_cold() -> Iterator[None]:
    """Start workers that way in this process; what forks them starts with the first."""
    global _forkers
    _forkers = warm = Forkers()

    def started(
        command: Sequence[str],
        connection: int,
        arguments: Sequence[str],
        stream: int,
        environment: Mapping[str, str] | None,
    ) -> subprocess.Popen[bytes] | Forked:
        if command[0] != sys.executable or not sys.platform.startswith("linux"):
            return COLD(command, connection, arguments, stream, environment)
        given = {**os.environ, **parent._import_path(), **(environment or {})}
        if command[-1] == server.__name__:
            modules = tuple(each for each in _OF_STEPS if each in arguments)
        else:  # nothing else says what the worker is for
            message = sys._getframe(1).f_locals.get("message")
            opens = (
                message.get("format") if isinstance(message, dict) else getattr(message, "runner", "")
            )
            modules = ("numpy", *_OF_RUNNERS.get(opens, ()))
            if "torchvision:" in repr(message):  # a preparation, or a data set
                modules = (*dict.fromkeys((*modules, "torch", "torchvision")),)
        return warm.started(modules, command, connection, arguments, stream, given)

    parent._started = started  # type: ignore[assignment]
    try:
        yield
    finally:
        parent._started = COLD
        warm.close()


class Forkers:
    """What forks workers: a process that imported optcli alone, and one for each kind of worker.

    Tests have more kinds than there are to be processes: what was used last stays.
    """

    def __init__(self) -> None:
        self._plain: Warm | None = None
        self._of_a_kind: dict[Kind, Warm] = {}
        self._lock = threading.Lock()

    def started(
        self,
        modules: Sequence[str],
        command: Sequence[str],
        connection: int,
        arguments: Sequence[str],
        stream: int,
        environment: Mapping[str, str],
    ) -> Forked:
        """A worker that imports these modules in this environment."""
        with self._lock:
            warm = self._of(modules, environment)
            warm.starting += 1
        try:
            return warm.started(command, connection, arguments, stream, environment)
        finally:
            with self._lock:
                warm.starting -= 1

    def _of(self, modules: Sequence[str], environment: Mapping[str, str]) -> Warm:
        read = {name: each for name, each in environment.items() if not _READ_LATER.fullmatch(name)}
        path = dict.fromkeys(read.pop("PYTHONPATH", "").split(os.pathsep))
        kind = (frozenset(modules), (*path,), frozenset(read.items()))
        self._plain = self._plain or Warm()
        if kind not in self._of_a_kind and len(modules) > 1:
            idle = (old for old, each in self._of_a_kind.items() if each.is_idle())
            if len(self._of_a_kind) >= _MOST and (least := next(idle, None)):
                self._of_a_kind.pop(least).close()
            if len(self._of_a_kind) < _MOST:
                self._of_a_kind[kind] = Warm(self._nearest(kind), modules, environment)
        if kind in self._of_a_kind:  # the one that was used longest ago comes first
            self._of_a_kind[kind] = self._of_a_kind.pop(kind)
        return self._of_a_kind.get(kind, self._plain)

    def _nearest(self, kind: Kind) -> Warm:
        """That which has imported the most of what the kind needs, in the same environment."""
        known = [other for other in self._of_a_kind if other[1:] == kind[1:] and other[0] < kind[0]]
        return self._of_a_kind[max(known, key=lambda other: len(other[0]))] if known else self._plain

    def pids(self) -> set[int]:
        """Their process numbers."""
        with self._lock:
            return {each.pid for each in (*self._of_a_kind.values(), self._plain) if each is not None}

    def close(self) -> None:
        """End them with all that they forked."""
        for each in (*self._of_a_kind.values(), self._plain):
            if each is not None:
                each.close()


class Warm(parent.ForkServer):
    """The process that forks them, as this process sees it; itself forked from another one or fresh."""

    def __init__(
        self,
        by: Warm | None = None,
        modules: Sequence[str] = (),
        environment: Mapping[str, str] = os.environ,
    ) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in (self._control, theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
        number = theirs.fileno()
        if by is not None:
            forked = by.started([_FORKER], number, modules, subprocess.DEVNULL, environment)
            self._process = forked  # type: ignore[assignment]
        else:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(number)],
                pass_fds=[number],
                start_new_session=True,
            )
        theirs.close()
        self.pid = self._process.pid
        self.starting = 0  # workers that are about to be forked
        self._workers: list[Forked] = []
        self._follow()

    def is_idle(self) -> bool:
        """Whether nothing lives that it forked, other such processes among them."""
        for each in tuple(self._workers):
            if each.poll() is not None:
                self._workers.remove(each)
        return not (self.starting or self._workers)

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
            forked = Forked(self._fork(data, [connection, stream]))
        self._workers.append(forked)
        return forked


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


def main(control: socket.socket, modules: Sequence[str] = ()) -> None:
    """Fork a worker for each request; end with the tests, which close the other end of the socket."""
    for name in _IMPORTED:
        importlib.import_module(name)
    libraries.spare_the_compiler()
    openvino.forbid_telemetry()
    for name in modules:
        with suppress(Exception):  # the worker that needs it says so
            libraries.bring_in([name])
    gc.freeze()  # no worker looks for garbage here, or copies pages for that
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
    if request["module"] == _FORKER:
        main(socket.socket(fileno=connection), request["arguments"])
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
