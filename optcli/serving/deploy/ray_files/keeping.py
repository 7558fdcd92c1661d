"""Statistics of inputs that are drawn at random, for `optcli loadtest --drift`. No input is kept.

Each day has a uniform sample of its rows (J. S. Vitter, Random sampling with a reservoir, ACM
Transactions on Mathematical Software 11 (1985) 37-57, algorithm R). Today's and yesterday's are kept.
They lie in `kept-inputs.npz` beside this file, or where KEPT_INPUTS says; empty: in memory alone. Of
several replicas one keeps them, which has the lock of the reference's file. Ray spreads requests at
random, so that what one replica sees is a sample of all.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import input_statistics
import numpy as np

VARIABLE = "KEPT_INPUTS"
PERIOD_S = 86_400.0
_PERIODS = 2
_WRITE_EVERY_S = 10.0


@dataclass
class Period:
    """A sample of the rows since `begun` (seconds since the epoch), of which `seen` came.

    `rows` has the statistics of each by its place in the sample.
    """

    begun: float
    seen: int = 0
    rows: dict[int, Sequence[np.ndarray]] = field(default_factory=dict)

    def matrices(self, columns: Sequence[int]) -> list[np.ndarray]:
        """The statistics of each tensor, a row for each that is known; `columns` are their numbers."""
        known = list(self.rows.values())
        return [
            np.array([row[index] for row in known], np.float32).reshape(-1, count)
            for index, count in enumerate(columns)
        ]


class Kept:
    """The samples of one server. `offer` is for the event loop: it draws, a thread does the rest."""

    def __init__(self, folder: Path, most: int) -> None:
        place = os.environ.get(VARIABLE, str(folder / input_statistics.KEPT))
        self._file = Path(place) if place else None
        content = (folder / input_statistics.REFERENCE).read_bytes()
        self._reference = input_statistics.unpacked(content)
        self._hows: list[dict[str, Any]] = self._reference.about["inputs"]
        self._columns = [len(input_statistics.names(how)) for how in self._hows]
        self._most, self._changed, self._unwritten = most, False, ""
        self._periods = [Period(time.time())]
        self._draw = random.Random()  # noqa: S311
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="inputs")
        self._closed = threading.Event()
        self._looked, self._held = -1.0, self._file is None
        self._lock_file = (folder / input_statistics.REFERENCE).open("rb")
        self._holds()

    def _holds(self) -> bool:
        """Whether this process keeps the sample; it looks every second whether no other one does."""
        if self._held or self._file is None or time.monotonic() - self._looked < 1.0:
            return self._held
        self._looked = time.monotonic()
        with contextlib.suppress(OSError):
            fcntl.flock(self._lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._held, self._periods = True, self._continued() or self._periods
            threading.Thread(target=self._write_now_and_then, daemon=True).start()
        return self._held

    def offer(self, feed: Mapping[str, np.ndarray]) -> None:
        """Count a request's rows, and keep the statistics of those that are drawn."""
        if not self._holds():
            return
        if time.time() - self._periods[-1].begun >= PERIOD_S:
            self._periods = [*self._periods, Period(time.time())][-_PERIODS:]
        period, drawn = self._periods[-1], {}
        for row in range(min(map(len, feed.values()))):
            place = period.seen
            period.seen += 1
            if place >= self._most:
                place = self._draw.randrange(period.seen)
            if place < self._most:
                drawn[place] = row
        if drawn:
            self._thread.submit(self._keep, period, feed, drawn)
        self._changed = True

    def _keep(self, period: Period, feed: Mapping[str, np.ndarray], drawn: Mapping[int, int]) -> None:
        for place, row in drawn.items():
            period.rows[place] = input_statistics.of_rows(feed, row, self._hows)

    def content(self) -> bytes:
        """The file: the reference, and what is kept."""
        periods = self._periods
        periods_written = [{"begun": each.begun, "seen": each.seen} for each in periods]
        about = {**self._reference.about, "periods": periods_written, "written": time.time()}
        about["unwritten"] = self._unwritten
        matrices = [each.matrices(self._columns) for each in periods]
        return input_statistics.Statistics(about, self._reference.reference, matrices).packed()

    def write(self) -> None:
        """Put the file in its place where something is new; try again later where it cannot be."""
        if self._file is None or not self._changed:
            return
        self._changed = False
        name = ""
        try:
            with tempfile.NamedTemporaryFile(dir=self._file.parent, delete=False) as fresh:
                name = fresh.name
                fresh.write(self.content())
            os.replace(name, self._file)
            self._unwritten = ""
        except OSError as error:
            self._changed, self._unwritten = True, error.strerror or str(error)
            with contextlib.suppress(OSError):
                os.unlink(name)

    def close(self) -> None:
        """Finish what is drawn, and write it."""
        self._closed.set()
        self._thread.shutdown()
        self.write()
        self._lock_file.close()

    def file(self) -> bytes:
        """The content of the file; another process may have written it."""
        if self._file is not None and not self._holds() and self._file.exists():
            return self._file.read_bytes()
        return self.content()

    def _write_now_and_then(self) -> None:
        while not self._closed.wait(_WRITE_EVERY_S):
            self.write()

    def _continued(self) -> list[Period]:
        """The periods of the file: a server that starts again goes on. None of another model."""
        try:
            content = b"" if self._file is None else self._file.read_bytes()
            stored = input_statistics.unpacked(content)
            ours = self._reference.about
            if any(stored.about[key] != ours[key] for key in ("inputs", "reference", "model")):
                return []
            return [
                Period(
                    period["begun"],
                    period["seen"],
                    dict(enumerate(zip(*matrices, strict=True))),
                )
                for period, matrices in zip(stored.about["periods"], stored.periods, strict=True)
            ]
        except (OSError, ValueError, KeyError, TypeError):
            return []
