"""Prepared samples in the store: what one worker has prepared, those after it read from there."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli.errors import StoreError
from optcli.files import sample_cache
from optcli.settings import TensorSpec
from optcli.store import Store, key_of

_KIND = "prepared"
# Of how the files are written: another number for another form.
_FORM = 1


@dataclass(frozen=True)
class PreparedSamples:
    """The prepared samples of one data role, as `sample_cache` writes them.

    `samples` is the key of what they are made of: settings, content, code and libraries.
    """

    store: Store
    samples: str
    inputs: Sequence[TensorSpec]

    @property
    def _ingredients(self) -> dict[str, Any]:
        inputs = [spec.model_dump(mode="json") for spec in self.inputs]
        return {"step": _KIND, "samples": self.samples, "inputs": inputs, "form": _FORM}

    def find(self) -> Path | None:
        """The folder of the prepared samples; None where the store has none."""
        entry = self.store.get(_KIND, key_of(self._ingredients))
        return None if entry is None else entry.path

    def take(self, folder: Path) -> None:
        """Keep what a worker has left in a folder, if it is a whole set; the folder is gone then."""
        if sample_cache.is_whole(folder):
            key = key_of(self._ingredients)
            with (
                suppress(StoreError),  # whoever comes next prepares them again
                self.store.lock(_KIND, key),
                self.store.work(_KIND, key) as work,
            ):
                for part in folder.iterdir():
                    shutil.move(part, work / part.name)
                self.store.put(_KIND, key, work, {}, self._ingredients)
        shutil.rmtree(folder, ignore_errors=True)
