"""A bundle's server while it runs: processes of its own, started from a folder and stopped whole."""

from __future__ import annotations

import contextlib
import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from optcli.environment import pip_install
from optcli.errors import MissingError, RunnerError, UsageError
from optcli.files import folders
from optcli.observer import Observer, Silent
from optcli.serving import bundle
from optcli.serving.bundle import require_whole

STEP = "serve"
_LAUNCH = "launch.py"
# What launch.py writes before the address, once requests are answered.
_READY = "ready: "
_LAST_LINES = 12
# Beyond the deadline of the requests inside: Ray itself takes a few seconds to stop.
_STOP_S = 20.0
# Ports that connections to elsewhere do not take by themselves before the server listens.
_BELOW_OUTGOING, _TRIES = range(20_000, 32_768), 20


@dataclass(frozen=True)
class Running:
    """A server that answers: its address, its processes, that to signal first, and its port of gRPC.

    `last_lines` grows by the lines that it writes once it is ready.
    """

    url: str
    pids: tuple[int, ...]
    grpc_port: int | None = None
    last_lines: Sequence[str] = ()


@contextmanager
def running(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    cpus: int | None = None,
    log: Path | None = None,
    ready_s: float = 180.0,
    variables: Mapping[str, str] | None = None,
    observer: Observer | None = None,
) -> Iterator[Running]:
    """The server of a bundle, ready and warmed up; all of it is stopped at the end, also after errors.

    `port` None: a free one. `cpus` is what Ray may share out among replicas, by default what they take.
    `log` is a file for what the server says, `variables` are added to its environment. Raises
    `UsageError` for a folder that is no bundle and a port that is taken, `InputError` for a broken
    one, `MissingError` without Ray, `RunnerError` where the server does not get ready within `ready_s`
    seconds.
    """
    served = bundle.read(folder)
    _require_ray()
    observer = observer or Silent()
    require_whole(folder, served)
    grpc_port = None if port or not served.grpc else _free_port(host, None)
    port = _free_port(host, port)
    started = time.monotonic()
    observer.started(STEP)
    with contextlib.ExitStack() as stack:
        if log is None:
            scratch = stack.enter_context(folders.temporary("serve"))
            log = Path(scratch) / "server.log"
        # `-P`: the folder's modules are found by the server itself, and shadow none of Python's before.
        command = [sys.executable, "-P", os.fspath(folder.resolve() / _LAUNCH)]
        command += ["--host", host, "--port", str(port), "--ready-timeout", str(ready_s)]
        command += ["--cpus", str(cpus)] if cpus is not None else []
        command += [] if grpc_port is None else ["--grpc-port", str(grpc_port)]
        stop_s = served.deadline_ms / 1000 + _STOP_S
        server = stack.enter_context(_Server(command, log, stop_s, variables or {}))
        observer.progress(STEP, None, "starting Ray and warming the model up")
        server.wait_until_ready(ready_s, folder)
        observer.finished(STEP, time.monotonic() - started)
        yield Running(_address(host, port), server.pids(), grpc_port, server.last_lines)


def wait(server: Running) -> None:
    """Return when the server has ended by itself, which it should not."""
    process = psutil.Process(server.pids[0])
    with contextlib.suppress(psutil.NoSuchProcess):
        while process.status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.5)


class _Server:
    """The child process and all that it starts."""

    def __init__(
        self, command: list[str], log: Path, stop_s: float, variables: Mapping[str, str]
    ) -> None:
        self._command, self._log, self._stop_s = command, log, stop_s
        self._environment = {**os.environ, **variables}
        self._lines: queue.Queue[str | None] = queue.Queue()
        self.last_lines: list[str] = []

    def __enter__(self) -> _Server:
        # A session of its own: Ctrl-C goes to optcli alone, which then lets requests be finished.
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            env=self._environment,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self._stop_s)
        # Ray ends its own processes, but not where launch.py was killed.
        family = self._family()
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.kill()
        self._process.wait()
        psutil.wait_procs(family, timeout=5)
        self._reader.join(5)

    def pids(self) -> tuple[int, ...]:
        """The process to signal first, then all that it started."""
        return (self._process.pid, *(process.pid for process in self._family()))

    def wait_until_ready(self, seconds: float, folder: Path) -> None:
        """Return when the server answers. Raises `RunnerError` with what it said where it does not."""
        # The server gives up by itself: this is for one that hangs.
        until = time.monotonic() + seconds + _STOP_S
        seen: list[str] = []
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                line = None
            if line is None:
                why = _cause(seen) or "\n".join(seen[-_LAST_LINES:])
                raise RunnerError(
                    f"the server did not get ready{f': {why}' if why else ''}",
                    place=str(folder),
                    hint="install the packages of its requirements.txt in these versions;"
                    f" `optcli serve {folder} --log FILE` writes all that the server says",
                )
            if line.startswith(_READY):
                self.last_lines.clear()
                return
            seen.append(line)

    def _read(self) -> None:
        """Copy what the server says into the log, until it ends."""
        assert self._process.stdout is not None
        with self._log.open("w", encoding="utf-8") as log:
            for line in self._process.stdout:
                log.write(line)
                log.flush()
                self.last_lines.append(line.rstrip("\n"))
                self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def _family(self) -> list[psutil.Process]:
        """What the child started: all else in its session, also where a parent is gone."""
        processes = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError, psutil.Error):
                if process.pid != self._process.pid and os.getsid(process.pid) == self._process.pid:
                    processes.append(process)
        return processes


def _cause(lines: Sequence[str]) -> str | None:
    """What the last traceback among some lines ends with; None where there is none."""
    cause, inside = None, False
    for line in lines:
        if line.startswith("  File "):
            inside = True
        elif inside and line.strip() and not line[0].isspace():
            cause, inside = line, False
    return cause


def _free_port(host: str, port: int | None) -> int:
    """The port, or a free one. Raises `UsageError` where it cannot be taken."""
    if port is None:
        for each in random.sample(_BELOW_OUTGOING, _TRIES):
            with contextlib.suppress(OSError), socket.create_server((host, each)):
                return each
    try:
        with socket.create_server((host, port or 0)) as server:
            return int(server.getsockname()[1])
    except OSError as error:
        raise UsageError(
            f"the server cannot listen there: {(error.strerror or str(error)).partition(' (')[0]}",
            place=_address(host, port or 0),
            hint="name another --port, or a --host of this machine",
        ) from error


def _address(host: str, port: int) -> str:
    named = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)  # noqa: S104
    return f"http://{named}:{port}"


def _require_ray() -> None:
    from importlib.util import find_spec

    if find_spec("ray") is None or find_spec("ray.serve") is None:
        raise MissingError("Ray Serve is not installed", place=STEP, hint=pip_install("serve"))
