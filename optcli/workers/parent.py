"""The parent's side of worker processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, Self, TypeVar

from optcli.errors import Problem, StepError, WorkerEndError, ended_by, from_record
from optcli.files import folders
from optcli.workers import channel, logs, messages
from optcli.workers.lifetime import APART, stop

_POLL_S = 0.2
# For interpreters older than 3.11, which do not know -P.
_START = (
    "import sys; sys.path[:] = [each for each in sys.path if each]; import runpy; "
    "runpy.run_module(sys.argv.pop(1), run_name='__main__', alter_sys=True)"
)
_LAST_WORDS_S = 2.0
# Until a worker that nobody asks any more is killed.
_LEAVING_S = 2.0
# A fork server that imports something does not hear that it should end.
_CLOSING_S = 0.1

T = TypeVar("T")


@dataclass(frozen=True)
class Listener(Generic[T]):
    """Hears the events of a worker, which are all of the type `kind`."""

    kind: type[T]
    hear: Callable[[T], None]


class Child:
    """A worker process that carries out one call. Leaving the context kills what is still running."""

    def __init__(
        self,
        connection: Connection,
        pid: int,
        ended: Callable[[float], int | None],
        log: Path | None,
        writing: threading.Thread | None = None,
    ) -> None:
        """`ended` waits so many seconds for the exit status."""
        self._connection = connection
        self._ended_in = ended
        self._scratch = ExitStack()  # a temporary folder, removed when the worker has ended
        self._writing = writing
        self.pid = pid
        self.log = log

    def send(self, message: Any) -> None:
        """Ask the worker something. Raises `StepError` when it is dead."""
        self._send({"command": messages.to_record(message)})

    def call(self, function: str, message: Any, confined: Sequence[Path] | None) -> None:
        """Tell the worker what to do, before anything else; it ends where it cannot be told."""
        try:
            call = {"function": function, "message": messages.to_record(message)}
            if confined is not None:
                call["scratch"] = str(self._scratch.enter_context(folders.temporary("worker")))
                call["writable"] = [str(folder) for folder in confined]
            self._send(call)
        except BaseException as error:
            self.__exit__(type(error))
            raise

    def _send(self, record: dict[str, Any]) -> None:
        try:
            channel.send(self._connection, record)
        except OSError:
            raise self._death() from None

    def receive(self, kind: type[T], timeout_s: float | None = None) -> T:
        """The worker's next event, which must be of the type `kind`.

        Raises the worker's own error, or `StepError` when it died, sent anything else or was silent for
        `timeout_s` seconds (it is killed then).
        """
        return messages.read(kind, self._next(timeout_s).get("event"))

    def result(
        self, gives: type[T], timeout_s: float | None = None, listener: Listener[Any] | None = None
    ) -> T:
        """Wait for the function to return and give its value; the listener hears events on the way.

        Raises as `receive` does; `timeout_s` is for the whole call.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            record = self._next(left, timeout_s)
            if "result" in record:
                return messages.read(gives, record["result"])
            if left == 0.0:  # of a worker that talks without an end something is always there
                self.kill()
                raise _too_late(timeout_s)
            if listener is not None:
                listener.hear(messages.read(listener.kind, record.get("event")))

    def _ended(self, timeout_s: float) -> int | None:
        """Its exit status once it has ended, None before that."""
        code = self._ended_in(timeout_s)
        if code is not None:
            self._tidy()
        return code

    def _tidy(self) -> None:
        """Of a worker that has ended: have its log written, and its temporary folder removed."""
        if self._writing is not None:
            self._writing.join(_LAST_WORDS_S)  # the log is whole for whoever looks into it
            self._writing = None
        self._scratch.close()

    def kill(self) -> None:
        """Kill the worker and everything it started, and wait until it is gone."""
        stop(self.pid, self._ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._connection.close()
        if kind is not None or self._ended(_LEAVING_S) is None:
            self.kill()

    def _next(self, timeout_s: float | None, limit_s: float | None = None) -> dict[str, Any]:
        """What the worker sends next. Raises its error where it sends one."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        gone = False
        while True:
            wait_s = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
            if self._connection.poll(max(0.0, wait_s)):
                record = self._message(deadline)
                if record is None and deadline is not None and time.monotonic() >= deadline:
                    raise _too_late(limit_s if limit_s is not None else timeout_s)
                if record is None:
                    raise self._death()
                if "error" in record:
                    error = messages.read(dict[str, Any], record["error"])
                    messages.read(tuple[Problem, ...], error.get("problems", ()))
                    raise from_record(error)
                return record
            if gone:  # dead, and nothing of it is left to be read
                raise self._death()
            gone = self._ended(0.0) is not None
            if deadline is not None and time.monotonic() >= deadline and not gone:
                self.kill()
                raise _too_late(limit_s if limit_s is not None else timeout_s)

    def _message(self, deadline: float | None) -> dict[str, Any] | None:
        """The record that has begun to come. A worker that does not end it in time is killed."""
        if deadline is None:
            return channel.receive(self._connection)
        waiting = threading.Timer(max(0.0, deadline - time.monotonic()), self.kill)
        waiting.start()
        try:
            return channel.receive(self._connection)
        finally:
            waiting.cancel()

    def _death(self) -> WorkerEndError:
        code = self._ended(5.0)
        if code is None:
            self.kill()
            return WorkerEndError(
                "it closed its channel and did not end", hint=logs.last_words(self.log)
            )
        if code < 0:
            reason, name = ended_by(-code)
            return WorkerEndError(f"it {reason} ({name})", hint=logs.last_words(self.log))
        return WorkerEndError(f"it ended early with exit status {code}", hint=logs.last_words(self.log))


def _too_late(limit_s: float | None) -> WorkerEndError:
    return WorkerEndError(
        f"it did not finish within {limit_s or 0.0:g} s and was stopped",
        hint="raise the limit with --timeout",
    )


def spawn(
    function: str,
    message: Any,
    *,
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
    interpreter: str = sys.executable,
    confined: Sequence[Path] | None = None,
) -> Child:
    """Start `module:function` in a fresh interpreter whose environment is set before any import.

    Its standard output and error go to `log` (appended, and no more than `workers.logs` lets a worker
    write). `confined` holds it to reading, and to writing below these folders and a temporary one of
    its own (`workers.confinement`); None leaves it free.
    Call from a thread that outlives the worker.
    """
    ours, child_end = channel.pair()
    command = _running(interpreter, "optcli.workers.child")
    arguments = () if confined is None else (APART,)
    with logs.opened(log) as (stream, writing):
        process = _started(command, child_end.fileno(), arguments, stream, environment)
    child_end.close()
    child = Child(ours, process.pid, partial(_ended, process), log, writing)
    child.call(function, message, confined)
    return child


def run(
    function: str,
    message: Any,
    gives: type[T],
    *,
    log: Path | None = None,
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
    listener: Listener[Any] | None = None,
    interpreter: str = sys.executable,
    confined: Sequence[Path] | None = None,
    holding: Callable[[Child], AbstractContextManager[Any]] = nullcontext,
    reads: str | Path | None = None,
) -> T:
    """Carry out `module:function` in a fresh interpreter and give its value; raises as `result`.

    `confined` is that of `spawn`. The context `holding` of the worker lasts as long as it runs.
    A crash is said of what it `reads`: a file, or the name of a model or of data.
    """
    with ExitStack() as scratch:
        if log is None and reads is not None:  # it says where it crashed
            log = Path(scratch.enter_context(folders.temporary("log")), "log.txt")
        child = scratch.enter_context(
            spawn(
                function,
                message,
                log=log,
                environment=environment,
                interpreter=interpreter,
                confined=confined,
            )
        )
        scratch.enter_context(holding(child))
        try:
            return child.result(gives, timeout_s, listener)
        except WorkerEndError as error:
            raise error if reads is None else error.said_of(reads) from error


class ForkServer:
    """Forks workers from a process that has the `preload` modules imported already.

    It starts at once and imports in the background, in this order. A worker waits for those it needs.
    """

    def __init__(self, preload: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._preload = tuple(preload)
        self._control, child = socket.socketpair()
        command = _running(sys.executable, "optcli.workers.server")
        number = child.fileno()
        self._process = _started(command, number, preload, subprocess.DEVNULL, environment)
        child.close()
        self._follow()

    def start(
        self,
        function: str,
        message: Any,
        *,
        after: Sequence[str] | None = None,
        log: Path | None = None,
        confined: Sequence[Path] | None = None,
    ) -> Child:
        """Fork a worker for `module:function`. Raises `StepError` when the server is dead.

        `after` names those of the preloaded modules that it needs; None: all. `confined` is that of
        `spawn`.
        """
        modules = self._preload if after is None else after
        ours, child_end = channel.pair()
        with logs.opened(log) as (stream, writing), child_end:
            request = {"after": [*modules], "apart": confined is not None}
            forked = self._fork(json.dumps(request).encode(), [child_end.fileno(), stream])
        child = Child(ours, forked.pid, forked.ended, log, writing)
        child.call(function, message, confined)
        return child

    def _fork(self, request: bytes, descriptors: Sequence[int]) -> _Forked:
        with self._starting:
            with suppress(OSError):
                socket.send_fds(self._control, [request], descriptors)
            forked = self._started.get()
            if forked is None:
                self._started.put(None)
                raise StepError("the process that forks workers has died")
        return forked

    def close(self) -> None:
        """End the server; its workers die with it. Closing it again does nothing."""
        with suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        try:
            self._process.wait(_CLOSING_S)
        except subprocess.TimeoutExpired:
            stop(self._process.pid, partial(_ended, self._process))

    def _follow(self) -> None:
        """Hear of what the server starts and of what ends."""
        self._starting = threading.Lock()
        self._started: SimpleQueue[_Forked | None] = SimpleQueue()  # None: the server is gone
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        # An end belongs to the last start with its number: the system gives numbers out again.
        running: dict[int, _Forked] = {}
        with suppress(OSError, ValueError), self._control.makefile("rb") as lines:
            for line in lines:
                news = json.loads(line)
                if "started" in news:
                    forked = running[news["started"]] = _Forked(news["started"])
                    self._started.put(forked)
                elif ended := running.pop(news["ended"], None):
                    # Others are what a library started while the server imported it.
                    ended.code.set_result(news["code"])
        self._started.put(None)
        for forked in running.values():
            forked.code.set_result(-int(signal.SIGKILL))


@dataclass(frozen=True)
class _Forked:
    """A worker that the fork server started; `code` becomes its exit status.

    The server tells it once it has imported what it is about to import, which can take a second.
    """

    pid: int
    code: Future[int] = field(default_factory=Future)

    def ended(self, timeout_s: float | None) -> int | None:
        """Its exit status; None where it has not ended after so many seconds."""
        with suppress(TimeoutError):
            return self.code.result(timeout_s)
        return None


def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """The exit status of a process; None where it has not ended after so many seconds."""
    with suppress(subprocess.TimeoutExpired):
        return process.wait(timeout_s) if timeout_s else process.poll()
    return None


def _started(
    command: Sequence[str],
    connection: int,
    arguments: Sequence[str],
    stream: int,
    environment: Mapping[str, str] | None,
) -> subprocess.Popen[bytes]:
    """A process that gets its end of a connection, its parent and more; it writes to `stream`."""
    return subprocess.Popen(
        [*command, str(connection), str(os.getpid()), *arguments],
        stdin=subprocess.DEVNULL,
        stdout=stream,
        stderr=stream,
        env={**os.environ, **_import_path(), **(environment or {})},
        pass_fds=[connection],
        start_new_session=True,
    )


def _running(interpreter: str, module: str) -> list[str]:
    """The command that runs a module, with nothing imported from the current folder.

    Else whatever lies there, such as a downloaded `socket.py`, would run instead of the library.
    """
    if interpreter == sys.executable:
        return [interpreter, "-P", "-m", module]
    return [interpreter, "-c", _START, module]


def _import_path() -> dict[str, str]:
    """Let the worker import this very optcli, also where it is not installed.

    An empty part of PYTHONPATH would stand for the current folder.
    """
    rest = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    parts = [str(Path(__file__).parents[2]), *filter(None, rest)]
    return {"PYTHONPATH": os.pathsep.join(parts)}
