"""One measurement at a time: two that ran at once would measure each other."""

from __future__ import annotations

import os
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

from optcli.observer import Observer
from optcli.store.locks import held


def acquired(step: str, observer: Observer) -> AbstractContextManager[None]:
    """Be the only build of this user that measures on this machine; waits, and says so."""
    waiting = "another build is measuring on this machine; waiting for it"
    return held(lock(), waiting=lambda: observer.warned(step, waiting))


def lock() -> Path:
    """The lock file: a measurement holds it while it runs."""
    return Path(tempfile.gettempdir()) / f"optcli-measuring-{getattr(os, 'getuid', int)()}.lock"
