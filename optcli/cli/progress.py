"""Progress of a build on stderr: a line for every step, and on a terminal the step that runs now."""

from __future__ import annotations

import shutil
import sys
import threading


class Progress:
    """An observer that writes to stderr. On a terminal the last line is kept up to date."""

    def __init__(self) -> None:
        self._live = sys.stderr.isatty()
        self._lock = threading.Lock()
        self._shown = ""

    def started(self, step: str) -> None:
        self._update(f"{step} …")

    def cached(self, step: str) -> None:
        self._line(f"  cached  {step}")

    def progress(self, step: str, fraction: float | None, message: str) -> None:
        share = "" if fraction is None else f" {fraction:4.0%}"
        self._update(f"{step}{share} {message}")

    def finished(self, step: str, seconds: float) -> None:
        self._line(f"  built   {step}  ({seconds:.1f} s)")

    def failed(self, step: str, reason: str) -> None:
        self._line(f"  FAILED  {step}: {reason}")

    def warned(self, step: str, message: str) -> None:
        self._line(f"  note    {step}: {message}")

    def close(self) -> None:
        """Take the last line away."""
        self._update("")

    def _line(self, text: str) -> None:
        with self._lock:
            self._wipe()
            sys.stderr.write(text + "\n")
            sys.stderr.flush()

    def _update(self, text: str) -> None:
        if not self._live:
            return
        with self._lock:
            self._wipe()
            self._shown = text[: shutil.get_terminal_size().columns - 1]
            sys.stderr.write(self._shown)
            sys.stderr.flush()

    def _wipe(self) -> None:
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            self._shown = ""
