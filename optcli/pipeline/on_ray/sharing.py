"""A store that the nodes of a cluster see as well: a file by which they know that it is the same."""

from __future__ import annotations

import uuid
from pathlib import Path

from optcli.store import Store, disk, locks

_MARK = "seen-by-ray"


def mark_of(store: Store) -> tuple[Path, str]:
    """A file of the store, and what stands in it. Raises `StoreError`."""
    mark = store.root / _MARK
    # Parts of a build come here side by side.
    with locks.held(store.root / "locks" / f"{_MARK}.lock"), disk.failures(store.root):
        if not mark.exists():
            disk.write_whole(mark, uuid.uuid4().hex.encode())
        return mark, mark.read_text()
