"""The trials of one search, kept in the store as they end.

A run that was killed goes on with the trials that it finished.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from optcli.results.tuning import TuningTrial
from optcli.store import disk


class Study:
    """The trials at `path`, one JSON object a line; a line that was not written whole is left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.trials: list[TuningTrial] = _read(path)

    def keep(self, trial: TuningTrial) -> None:
        """Add a trial that has ended. Raises `StoreError` where it cannot be written."""
        self.trials.append(trial)
        text = "".join(f"{each.model_dump_json()}\n" for each in self.trials)
        with disk.failures(self._path.parent):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._path.with_name(f".{self._path.name}.{os.getpid()}")
            disk.write_whole(fresh, text.encode())
            fresh.replace(self._path)


def _read(path: Path) -> list[TuningTrial]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    trials = []
    for line in lines:
        try:
            trials.append(TuningTrial.model_validate_json(line))
        except ValidationError:  # written by another version: what follows it cannot be relied on
            break
    return trials
