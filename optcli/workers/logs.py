"""The log of a worker: what it writes to its standard output and error, up to a limit.

A model from elsewhere may print for ever, and a log is a file on the user's disk. So workers write
into a pipe, and a thread of the parent copies it: the first bytes into the log, the rest into nothing.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from optcli.errors import excerpt

LARGEST_BYTES = 32 * 1024**2
_PIECE = 1 << 16
_END_BYTES = 256 * 1024
# The innermost frame of Python in a report of `faulthandler`.
_CRASHED_AT = re.compile(
    r"^Current thread 0x\w+.*\(most recent call first\):\n +File \"(.+)\", line (\d+) in (.+)$",
    re.MULTILINE,
)
_CUT = b"\n... the rest of what this worker wrote is left out\n"


@contextmanager
def opened(log: Path | None) -> Iterator[tuple[int, threading.Thread | None]]:
    """What a worker writes into, and the thread that copies it to the log (appended).

    It does so until all that write are gone, also after leaving, which closes the descriptor here. No
    log leads to nothing.
    """
    if log is None:
        nothing = os.open(os.devnull, os.O_WRONLY | os.O_APPEND)
        try:
            yield nothing, None
        finally:
            os.close(nothing)
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    target = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    source, written = os.pipe()
    copying = threading.Thread(target=_copy, args=(source, target), daemon=True, name="worker's log")
    copying.start()
    try:
        yield written, copying
    finally:
        os.close(written)


def _copy(source: int, target: int) -> None:
    left = LARGEST_BYTES
    try:
        while data := os.read(source, _PIECE):
            part = data[:left]
            left -= len(part)
            with suppress(OSError):  # no room: the worker goes on all the same
                if part:
                    os.write(target, part)
                if len(part) < len(data) and left == 0:
                    os.write(target, _CUT)
                    left = -1
            if left < 0:
                break
        while os.read(source, _PIECE):  # a worker never waits for its log
            pass
    finally:
        os.close(source)
        os.close(target)


def log_end(path: Path) -> str:
    """The end of a log; empty where it cannot be read."""
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, path.stat().st_size - _END_BYTES))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""


def last_words(path: Path | None) -> str:
    """Where a worker crashed, by the last of Python's reports in its log, or what it wrote last."""
    if path is None:
        return ""
    text = log_end(path)
    if crashes := list(_CRASHED_AT.finditer(text)):
        file, line, function = crashes[-1].groups()
        return f"it crashed in {function}, line {line} of {Path(file).name}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return f"it wrote last: {excerpt(lines[-1], 200)}" if lines else "it wrote nothing before that"
