"""Messages between this machine and a host: a line of JSON and bytes. Both ends use this module.

Each end says every few seconds that it is there. One that hears nothing for long takes the other one
for lost: a connection that was cut may never say so.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

BEAT_S, SILENCE_S = 5.0, 60.0
PART_BYTES = 1 << 18
_BEAT = "beat"
_MOST_HEAD_BYTES = 1 << 16
_MOST_BYTES = 1 << 32


class EndedError(Exception):
    """The other end is gone, or says nothing that can be understood."""


@dataclass(frozen=True)
class Frame:
    """One message: what it is, what is said about it, and its bytes."""

    kind: str
    about: Mapping[str, Any] = field(default_factory=dict)
    payload: bytes = b""

    def record(self) -> Any:
        """The bytes read as JSON. Raises `EndedError` where they are none."""
        try:
            return json.loads(self.payload)
        except ValueError as error:
            raise EndedError("it sent no JSON") from error


class Frames:
    """One end of a connection. Any thread sends, one receives."""

    def __init__(self, source: int, sink: int) -> None:
        self._source, self._sink = source, sink
        for descriptor in (source, sink):
            os.set_blocking(descriptor, False)
        self._sending = threading.Lock()
        self._buffer = bytearray()
        self._closed = False

    def send(self, kind: str, payload: bytes = b"", **about: Any) -> None:
        """Raises `EndedError` where the other end takes nothing."""
        head = json.dumps({"kind": kind, "bytes": len(payload), **about}).encode() + b"\n"
        with self._sending:
            if self._closed:  # the number of the file may be another one's by now
                raise EndedError("it was closed")
            self._write(memoryview(head))
            self._write(memoryview(payload))

    def send_record(self, kind: str, record: Any) -> None:
        """Send plain data. Raises as `send` does."""
        self.send(kind, json.dumps(record).encode())

    def hello(self, mark: bytes, wait_s: float) -> bytes:
        """The rest of the first line that begins with a mark. Raises `EndedError`."""
        ends = time.monotonic() + wait_s
        while True:
            line = self._line(ends)
            if line.startswith(mark):
                return line.removeprefix(mark)

    def receive(self) -> Frame:
        """The next message that is more than a sign of life. Raises `EndedError`."""
        while True:
            frame = self._next()
            if frame.kind != _BEAT:
                return frame

    def beat(self) -> None:
        """Say again and again that this end is there; returns once the other one is not."""
        with contextlib.suppress(EndedError):
            while True:
                self.send(_BEAT)
                time.sleep(BEAT_S)

    def close(self, wait_s: float) -> bool:
        """Send nothing any more. Whether nothing is being sent either, after so many seconds."""
        if not self._sending.acquire(timeout=wait_s):
            return False
        self._closed = True
        self._sending.release()
        return True

    def _next(self) -> Frame:
        head = self._line()
        try:
            about = json.loads(head)
            kind, size = str(about.pop("kind")), int(about.pop("bytes"))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise EndedError("it sent no message of optcli") from error
        if not 0 <= size <= _MOST_BYTES:
            raise EndedError(f"it announced {size} bytes")
        while len(self._buffer) < size:
            self._fill()
        payload = bytes(self._buffer[:size])
        del self._buffer[:size]
        return Frame(kind, about, payload)

    def _line(self, ends: float = math.inf) -> bytes:
        searched = 0
        while (end := self._buffer.find(b"\n", searched)) < 0:
            searched = len(self._buffer)
            if searched > _MOST_HEAD_BYTES:
                raise EndedError("it sent no message of optcli")
            self._fill(min(SILENCE_S, ends - time.monotonic()))
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return line

    def _fill(self, wait_s: float | None = None) -> None:
        wait_s = SILENCE_S if wait_s is None else wait_s
        try:
            if not select.select([self._source], [], [], max(0.0, wait_s))[0]:
                raise EndedError(f"it has said nothing for {wait_s:.0f} s")
            data = os.read(self._source, 1 << 20)
        except BlockingIOError:
            return
        except OSError as error:
            raise EndedError(str(error)) from error
        if not data:
            raise EndedError("it ended the connection")
        self._buffer += data

    def _write(self, data: memoryview) -> None:
        while data:
            try:
                if not select.select([], [self._sink], [], SILENCE_S)[1]:
                    raise EndedError(f"it has taken nothing for {SILENCE_S:.0f} s")
                data = data[os.write(self._sink, data) :]
            except BlockingIOError:
                continue
            except OSError as error:
                raise EndedError(str(error)) from error
