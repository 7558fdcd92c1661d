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
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from optcli.errors import MissingError, excerpt
from optcli.files import configuration, digest
from optcli.pipeline import keys
from optcli.pipeline.on_ssh import boot, wheels
from optcli.pipeline.on_ssh.frames import PART_BYTES, EndedError, Frame, Frames
from optcli.pipeline.on_ssh.hosts import Host

LEAST_PYTHON = (3, 11)
# What optcli's measuring code imports; each runner says what it needs beside.
NEEDED = ("pydantic", "filelock", "numpy")
# As `python` of a device: an environment that optcli makes there.
VENV = "venv"
CONNECT_S, _STARTS_S, _MAKES_S, _CLOSES_S = 15, 60.0, 1800.0, 2.0
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
_ROOM = "make room there, or say where there is some: `folder` of the device in {file}"
_HINTS = {
    "Host key verification failed": "connect once by hand, `ssh {target}`, and compare the host's key",
    "Permission denied (": "`ssh-copy-id {target}` puts your key there: optcli asks for no password",
    "Could not resolve hostname": "look at the name of the host",
    "not found": _PYTHON,
    "No such file": _PYTHON,
    "Permission denied": _PYTHON,
    "No space left": _ROOM,
    "File too large": _ROOM,
    "quota exceeded": _ROOM,
}
# The rooms above the pipeline measure nothing.
_STAYS = ("cli/", "gate/", "serving/", "tuning/")


class HostLostError(Exception):
    """The host, or the connection to it, is gone."""


class SshConnection:
    """A process of ssh, and the program there that it is connected with."""

    def __init__(
        self, device: str, host: Host, packages: Collection[str], tell: Callable[[str], None]
    ) -> None:
        """`packages` are what the runners import, `tell` hears what takes long.

        Raises `MissingError` where the host cannot be reached, or has not what it needs.
        """
        self._device, self._host, self._tell, self.python = device, host, tell, host.python
        self._wanted = wheels.requirements({*NEEDED, *packages})
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._sent: set[str] = set()
        self._answers: queue.Queue[Frame | str] = queue.Queue()
        try:
            self._process = subprocess.Popen(
                ["ssh", "-T", *_ours(), *host.options, "--", host.target, self._command()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
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
        """The answer to a message, and the samples before it. Raises `HostLostError`."""
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
        """Send what is not there yet, by the digests of files. Raises `HostLostError` and OSError."""
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
        self._errors.close()

    def _start(self) -> None:
        hello = self._hello(_STARTS_S)
        version = tuple(hello.get("version", ()))
        if version < LEAST_PYTHON:
            raise self._missing(
                f"Python {'.'.join(map(str, version))} is there, wanted 3.11 or newer",
                f"say which Python to take: `python` of the device in {configuration.file()}",
            )
        if "wants" in hello:
            self._tell("optcli makes an environment there from wheels: this takes a while, once")
            self._hand_over(wheels.fetched(self._wanted, hello, self._device))
            hello = self._hello(_MAKES_S)
        self.python, lacks = str(hello.get("python", self._host.python)), list(hello.get("lacks", ()))
        if lacks:
            install = f"{self.python} -m pip install {' '.join(lacks)}"
            raise self._missing(
                f"{self.python} has no {', '.join(lacks)} there", f"ssh {self._host.target} {install}"
            )
        self._hand_over(_code())
        for work in (self._frames.beat, self._listen):
            threading.Thread(target=work, daemon=True).start()

    def _hand_over(self, packed: bytes) -> None:
        try:
            self._frames.send("packed", packed)
        except EndedError as error:
            raise self._missing(str(error), "see whether the host has room and memory") from error

    def _command(self) -> str:
        """What the shell there runs; it may be any."""
        made = self._host.python == VENV
        name = f"environment-{digest.of_value(self._wanted)[:16]}" if made else ""
        call = f"main({NEEDED!r}, {self._host.folder!r}, {name!r})"
        program = f"{inspect.getsource(boot)}\n{call}"
        python = shlex.quote("python3" if made else self._host.python)
        if self._host.python.startswith("~/"):  # the home there
            python = '"$HOME"/' + shlex.quote(self._host.python[2:])
        return f"{python} -u -c {shlex.quote(program)}"

    def _hello(self, wait_s: float) -> dict[str, Any]:
        try:
            greeting = self._frames.hello(boot.MARK, wait_s)
            hello = json.loads(greeting)
        except (EndedError, ValueError) as error:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=1)
            last = self._last_words() or str(error)
            raise self._missing(
                last, hint_of(last, self._host, f"see whether `ssh {self._host.target}` connects")
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
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().decode(errors="replace").splitlines()]
        return excerpt(next((line for line in reversed(lines) if line), ""), 300)

    def _missing(self, what: str, hint: str) -> MissingError:
        where = f"the device {self._device} ({self._host.target})"
        return MissingError(f"{where}: {what}", place=f"devices.{self._device}", hint=hint)

    def _lost(self, why: str) -> HostLostError:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2)
        message = self._last_words()
        return HostLostError(f"{why}; ssh says: {message}" if message else why)


def hint_of(message: str, host: Host, otherwise: str) -> str:
    """What somebody can do about what ssh or the program there said last."""
    hint = next((hint for words, hint in _HINTS.items() if words in message), None)
    return hint.format(target=host.target, file=configuration.file()) if hint else otherwise


def _ours() -> list[str]:
    return [word for option in _OPTIONS for word in ("-o", option)]


@cache
def _code() -> bytes:
    """The part of optcli that measures, as a zip file."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in keys.room(""):
            if not file.startswith(_STAYS):
                archive.write(keys.PACKAGE / file, f"optcli/{file}")
    return packed.getvalue()
