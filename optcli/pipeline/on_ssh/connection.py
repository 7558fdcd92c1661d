"""A connection by ssh to a host: optcli's code travels over it, and `host_program` runs there."""

from __future__ import annotations

import inspect
import io
import json
import os
import queue
import shlex
import signal
import subprocess
import tempfile
import threading
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from optcli.errors import MissingError, excerpt
from optcli.files import configuration
from optcli.pipeline import keys
from optcli.pipeline.on_ssh import boot
from optcli.pipeline.on_ssh.frames import PART_BYTES, EndedError, Frame, Frames
from optcli.pipeline.on_ssh.hosts import Host

LEAST_PYTHON = (3, 11)
# What optcli's measuring code imports; each runner says what it needs beside.
NEEDED = {"pydantic": "pydantic", "filelock": "filelock", "numpy": "numpy"}
CONNECT_S, _STARTS_S, _CLOSES_S = 15, 60.0, 2.0
# Ours come first: of two options of one name ssh takes the first.
_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    f"ConnectTimeout={CONNECT_S}",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=6",
    "ForwardAgent=no",
    "ForwardX11=no",
    "ClearAllForwardings=yes",
    "ControlMaster=no",
    "ControlPath=none",
)
# What ssh says, and what somebody can do about it.
_PYTHON = "say which Python has the runtimes there: `python` of the device in {file}"
_HINTS = {
    "Host key verification failed": "connect once by hand, `ssh {target}`, and compare the host's key",
    "Permission denied (": "`ssh-copy-id {target}` puts your key there: optcli asks for no password",
    "Could not resolve hostname": "look at the name of the host",
    "not found": _PYTHON,
    "No such file": _PYTHON,
    "Permission denied": _PYTHON,
}
# The rooms above the pipeline measure nothing.
_STAYS = ("cli/", "gate/", "serving/", "tuning/")


class LostError(Exception):
    """The host, or the connection to it, is gone."""


class Connection:
    """A process of ssh, and the program there that it is connected with."""

    def __init__(self, device: str, host: Host) -> None:
        """Raises `MissingError` where the host cannot be reached, or has not what it needs."""
        self._device, self._host = device, host
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._sent: set[str] = set()
        self._answers: queue.Queue[Frame | str] = queue.Queue()
        try:
            self._process = subprocess.Popen(
                ["ssh", "-T", *_ours(), *host.options, "--", host.target, _command(host)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                start_new_session=True,
            )
        except OSError as error:
            raise MissingError(
                f"ssh cannot be started: {error.strerror}",
                place=f"devices.{device}",
                hint="install OpenSSH's client",
            ) from error
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._frames = Frames(self._process.stdout.fileno(), self._process.stdin.fileno())
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def call(self, kind: str, record: Any, tell: Callable[[str], None]) -> tuple[Frame, bytes]:
        """The answer to a message, and the samples before it. Raises `LostError`."""
        samples = b""
        try:
            self._frames.send_record(kind, record)
        except EndedError as error:
            raise self._lost(str(error)) from error
        while True:
            frame = self._answers.get()
            if isinstance(frame, str):
                raise self._lost(frame)
            if frame.kind == "warned":
                tell(frame.payload.decode(errors="replace"))
            elif frame.kind == "samples":
                samples = frame.payload
            else:
                return frame, samples

    def send(self, files: Mapping[Path, str]) -> None:
        """Send what is not there yet, by the digests of files. Raises `LostError` and OSError."""
        for path, content in files.items():
            if content in self._sent:
                continue
            with path.open("rb") as stream:
                while part := stream.read(PART_BYTES):
                    try:
                        self._frames.send("part", part, digest=content)
                    except EndedError as error:
                        raise self._lost(str(error)) from error
            self._sent.add(content)

    def close(self) -> None:
        """End the program there, with what it measures, and ssh here."""
        process = self._process
        if self._frames.close(_CLOSES_S):
            with suppress(OSError):
                if process.stdin is not None:
                    process.stdin.close()  # by that the program there knows
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=_CLOSES_S)
        if process.poll() is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._said.close()

    def _start(self) -> None:
        hello = self._hello()
        version, lacks = tuple(hello.get("version", ())), list(hello.get("lacks", ()))
        python = str(hello.get("python", self._host.python))
        if version < LEAST_PYTHON:
            raise self._missing(
                f"Python {'.'.join(map(str, version))} is there, wanted 3.11 or newer",
                f"say which Python to take: `python` of the device in {configuration.file()}",
            )
        if lacks:
            install = f"{python} -m pip install {' '.join(NEEDED[name] for name in lacks)}"
            raise self._missing(
                f"{python} has no {', '.join(lacks)} there", f"ssh {self._host.target} {install}"
            )
        try:
            self._frames.send("code", _code())
        except EndedError as error:
            raise self._missing(str(error), "see whether the host has room and memory") from error
        for work in (self._frames.beat, self._listen):
            threading.Thread(target=work, daemon=True).start()

    def _hello(self) -> dict[str, Any]:
        try:
            said = self._frames.hello(boot.MARK, _STARTS_S)
            hello = json.loads(said)
        except (EndedError, ValueError) as error:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=1)
            last = self._last_words() or str(error)
            hint = next(
                (hint for words, hint in _HINTS.items() if words in last),
                "see whether `ssh {target}` connects",
            )
            raise self._missing(
                last, hint.format(target=self._host.target, file=configuration.file())
            ) from error
        return hello if isinstance(hello, dict) else {}

    def _listen(self) -> None:
        try:
            while True:
                self._answers.put(self._frames.receive())
        except EndedError as error:
            self._answers.put(str(error))

    def _last_words(self) -> str:
        """The last line that ssh, or the program there, wrote to its standard error."""
        self._said.seek(0)
        lines = [line.strip() for line in self._said.read().decode(errors="replace").splitlines()]
        return excerpt(next((line for line in reversed(lines) if line), ""), 300)

    def _missing(self, what: str, hint: str) -> MissingError:
        where = f"the device {self._device} ({self._host.target})"
        return MissingError(f"{where}: {what}", place=f"devices.{self._device}", hint=hint)

    def _lost(self, why: str) -> LostError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        said = self._last_words()
        return LostError(f"{why}; ssh says: {said}" if said else why)


def _ours() -> list[str]:
    return [word for option in _OPTIONS for word in ("-o", option)]


def _command(host: Host) -> str:
    """What the shell there runs; it may be any."""
    program = f"{inspect.getsource(boot)}\nmain({tuple(NEEDED)!r}, {host.folder!r})"
    python = shlex.quote(host.python)
    if host.python.startswith("~/"):  # the home there
        python = '"$HOME"/' + shlex.quote(host.python[2:])
    return f"{python} -u -c {shlex.quote(program)}"


@cache
def _code() -> bytes:
    """The part of optcli that measures, as a zip file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in keys.room(""):
            if not file.startswith(_STAYS):
                archive.write(keys.PACKAGE / file, f"optcli/{file}")
    return packed.getvalue()
