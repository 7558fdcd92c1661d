"""A store that the nodes of a cluster see as well: a file by which they know that it is the same."""

from __future__ import annotations

import uuid
from pathlib import Path

from optcli.store import Store, disk

_MARK = "seen-by-ray"


def mark_of(store: Store) -> tuple[Path, str]:
    """A file of the store, and what stands in it. Raises `StoreError`."""
    mark = store.root / _MARK
    with disk.failures(store.root):
        if not mark.exists():
            store.root.mkdir(parents=True, exist_ok=True)
            disk.write_whole(mark, uuid.uuid4().hex.encode())
        return mark, mark.read_text()
