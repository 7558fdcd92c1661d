"""The store: whether it can be written, how much room there is, whether what it holds is sound."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

from optcli.errors import counted
from optcli.scaffold.doctor.checks import Check
from optcli.store import Store

_check = partial(Check, group="store")
_ROOM_BYTES = 5e9
# Hashing more than this would take longer than a person waits for a doctor.
_HASHED_BYTES = 2e9


def checks(root: Path) -> list[Check]:
    """Everything about the store at `root`, which need not be there."""
    return [_place(root), _room(root), _soundness(root)]


def _place(root: Path) -> Check:
    there = _existing(root)
    if not os.access(there, os.W_OK):
        return _check(
            name="place",
            state="broken",
            found=f"{root} cannot be written",
            hint="choose another place: export OPTCLI_STORE=FOLDER, or --store FOLDER",
        )
    text = str(root) if there == root else f"{root} (not there yet)"
    return _check(name="place", state="ok", found=text)


def _room(root: Path) -> Check:
    free = shutil.disk_usage(_existing(root)).free
    small = free < _ROOM_BYTES
    return _check(
        name="room",
        state="note" if small else "ok",
        found=f"{free / 1e9:.1f} GB free",
        hint="optcli cache gc --older-than 30d makes room" if small else "",
    )


def _soundness(root: Path) -> Check:
    store = Store(root)
    entries = list(store.entries())
    size = sum(entry.size_bytes for entry in entries)
    contents = f"{counted(len(entries), 'entry', 'entries')}, {size / 1e6:.1f} MB"
    if size > _HASHED_BYTES:
        return _check(
            name="entries",
            state="ok",
            found=f"{contents}, too much to read now",
            hint="optcli cache verify reads every file",
        )
    damaged = store.verify()
    if damaged:
        return _check(
            name="entries",
            state="broken",
            found=f"{contents}; {len(damaged)} damaged, the first: {damaged[0]}",
            hint="optcli cache verify --repair",
        )
    return _check(name="entries", state="ok", found=f"{contents}, all sound")


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    return next((each for each in (path, *path.parents) if each.exists()), Path("/"))
