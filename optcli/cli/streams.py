"""Standard output and error that can be written to, also if closed, unread or of a small encoding."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable
from typing import Any, TextIO, cast

# Control characters but for tab and line feed, and what changes the direction of text.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def prepare() -> None:
    """Make both streams safe to write to, whatever the caller did to them. Call before anything else.

    A stream that was closed becomes the null device: its number would otherwise go to the next file
    that is opened. A reader that goes away (`| head`) is no reason to stop, nor to exit with another
    code than the verdicts give. A character that the encoding lacks is replaced.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
    sys.stdout = patient(sys.stdout, 1)
    sys.stderr = patient(sys.stderr, 2)


def patient(stream: TextIO | None, number: int) -> TextIO:
    """A text stream that goes silent where its reader has gone; `number` is its file descriptor."""
    if stream is None:
        stream = open(number, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace" if number == 2 else "replace")
    return cast(TextIO, _Patient(stream))


def controlling(stream: TextIO) -> TextIO:
    """The same stream for text that moves the cursor or sets colours, and has no names in it."""
    return stream.controlling() if isinstance(stream, _Patient) else stream


def printable(text: str) -> str:
    """A text without what a terminal would obey, or would show in another order than it stands.

    Names of somebody else's classes, files and inputs come to the screen in it.
    """
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


class _Patient:
    """Passes on what is printable; once the reader is gone, to the null device."""

    def __init__(self, stream: TextIO, passing: Callable[[str], str] = printable) -> None:
        self._stream, self._passing = stream, passing

    def controlling(self) -> TextIO:
        return cast(TextIO, _Patient(self._stream, str))

    def write(self, text: str) -> int:
        try:
            self._stream.write(self._passing(text))
        except BrokenPipeError:
            self._silence()
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._silence()

    def _silence(self) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
