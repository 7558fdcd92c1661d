"""Progress of a build on stderr: a line for every step, and for the step that runs now.

On a terminal that line is kept up to date; elsewhere, in a log say, there is a new one now and then.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from typing import Self

from optcli.cli import streams
from optcli.observer import Observer

# Control characters and the escape sequences of terminals: a step's words must not move the cursor.
_UNPRINTABLE = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b.|[\x00-\x08\x0b-\x1f\x7f-\x9f]")

# Where no line can be kept up to date, a step that says something says it again after so long.
_LINE_EVERY_S = 30.0


class Progress(Observer):
    """An observer that writes to stderr. On a terminal the last line is kept up to date.

    It writes no colours, so NO_COLOR has nothing to switch off. `clock` gives seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        # Diagnosis (-v) is written to the same place, by lines: nothing may stand in its way.
        diagnosing = logging.getLogger().isEnabledFor(logging.INFO)
        dumb = os.environ.get("TERM", "") in ("", "dumb")
        self._live = sys.stderr.isatty() and not diagnosing and not dumb
        self._lock = threading.Lock()
        self._shown = False
        self._clock = clock
        self._said: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Take the last line away."""
        self._update("")

    def started(self, step: str) -> None:
        self._said[step] = self._clock()
        self._update(f"{step} …")

    def cached(self, step: str) -> None:
        self._line(f"  cached  {step}")

    def progress(self, step: str, fraction: float | None, message: str) -> None:
        share = "" if fraction is None else f" {fraction:4.0%}"
        if self._live:
            self._update(f"{step}{share} {message}")
        elif self._clock() - self._said.setdefault(step, self._clock()) >= _LINE_EVERY_S:
            self._said[step] = self._clock()
            self._line(f"  …       {step}{share} {message}")

    def finished(self, step: str, seconds: float) -> None:
        self._line(f"  built   {step}  ({seconds:.1f} s)")

    def failed(self, step: str, reason: str) -> None:
        self._line(f"  FAILED  {step}: {reason}")

    def warned(self, step: str, message: str) -> None:
        self._line(f"  note    {step}: {message}")

    def _line(self, text: str) -> None:
        plain = _UNPRINTABLE.sub("", text).replace("\t", " ")
        with self._lock:
            self._wipe()
            sys.stderr.write(plain.replace("\n", "\n          ") + "\n")
            sys.stderr.flush()

    def _update(self, text: str) -> None:
        if not self._live:
            return
        plain = _UNPRINTABLE.sub("", text.replace("\n", " ").replace("\t", " "))
        with self._lock:
            self._wipe()
            self._shown = bool(plain)
            sys.stderr.write(shortened(plain, shutil.get_terminal_size().columns - 1))
            sys.stderr.flush()

    def _wipe(self) -> None:
        if self._shown:
            streams.controlling(sys.stderr).write("\r\x1b[K")
            self._shown = False


def shortened(text: str, columns: int) -> str:
    """As much of a text as fits into that many columns of a terminal, with `…` where it was cut."""
    from rich.cells import cell_len, set_cell_size

    if cell_len(text) <= columns:
        return text
    return set_cell_size(text, columns - 1).rstrip() + "…" if columns > 0 else ""
