"""One measurement at a time: two that ran at once would measure each other."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from optcli.observer import Observer
from optcli.store import pausing
from optcli.store.locks import held


@contextmanager
def acquired(step: str, observer: Observer) -> Iterator[None]:
    """Be the only build of this user that measures on this machine; waits, and says so.

    Uploads to a remote store wait as long as the block runs: they would take a core.
    """
    waiting = "another build is measuring on this machine; waiting for it"
    with held(lock(), waiting=lambda: observer.warned(step, waiting)), pausing.paused():
        yield


def lock() -> Path:
    """The lock file: a measurement holds it while it runs."""
    return Path(tempfile.gettempdir()) / f"optcli-measuring-{getattr(os, 'getuid', int)()}.lock"
