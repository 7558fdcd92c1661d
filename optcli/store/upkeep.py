"""Keeping a store sound and small: finding damage, removing what is not needed."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from optcli.store import disk, locks
from optcli.store import entry as entry_file

if TYPE_CHECKING:
    from optcli.store import Store


@dataclass(frozen=True)
class Damage:
    """One damaged entry and what is wrong with it; `removed` where it was repaired by removing it."""

    kind: str
    key: str
    problems: tuple[str, ...]
    removed: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.key[:12]}: {'; '.join(self.problems)}"


@dataclass(frozen=True)
class Removed:
    """One thing that was removed, or would be in a dry run, and why."""

    kind: str
    key: str
    size_bytes: int
    reason: str

    def __str__(self) -> str:
        name = self.key if self.kind == "work" else self.key[:12]
        return f"{self.kind} {name} ({self.size_bytes / 1e6:.2f} MB): {self.reason}"


def damaged(store: Store, *, repair: bool) -> list[Damage]:
    """The damaged entries; with `repair` they are removed, to be made again."""
    damage = []
    for kind in store.kinds():
        for key in store.keys(kind):
            problems = _problems(store, kind, key)
            if problems:
                removed = repair and _discard_unless_locked(store, kind, key)
                damage.append(Damage(kind, key, problems, removed))
    return damage


def collect(
    store: Store, older_than_s: float | None, max_bytes: float | None, *, dry_run: bool
) -> list[Removed]:
    """Remove entries unused for `older_than_s` seconds, then the least recently used above `max_bytes`.

    Always removes what dead processes left and entries that cannot be read; a log goes with its
    entry, that of a failure when it is as old. What an unfinished step has kept to go on from goes
    when it is as old, and before any entry where room is to be made; caches of steps go when they are
    as old. Never removes an entry that is being made right now. Raises `StoreError`.
    """
    with disk.failures(store.root):
        removed = store.clear_stale(dry_run=dry_run)
    removed += _unreadable(store, dry_run=dry_run)
    entries = sorted(store.entries(), key=lambda entry: entry.last_used())
    total = sum(entry.size_bytes for entry in entries)
    now = time.time()
    removed += _scratch(store, older_than_s, max_bytes, total, dry_run=dry_run)
    for entry in entries:
        unused_s = now - entry.last_used()
        if older_than_s is not None and unused_s > older_than_s:
            reason = f"not used for {unused_s / 86400:.1f} days"
        elif max_bytes is not None and total > max_bytes:
            reason = "the least recently used, to make room"
        else:
            continue
        if dry_run or _discard_unless_locked(store, entry.kind, entry.key):
            removed.append(Removed(entry.kind, entry.key, entry.size_bytes, reason))
            total -= entry.size_bytes
    if older_than_s is not None:
        removed += _old_logs(store, now - older_than_s, dry_run=dry_run)
        removed += _old_caches(store, now - older_than_s, dry_run=dry_run)
    if not dry_run:
        _forget_uploads(store)
    return removed


def _forget_uploads(store: Store) -> None:
    """Remove what was noted of entries on their way to a remote store, where they are gone here."""
    for mark in (store.root / "remotes").glob("*/*"):
        if not store.folder(*mark.name.partition("-")[::2]).exists():
            mark.unlink(missing_ok=True)


def _scratch(
    store: Store, older_than_s: float | None, max_bytes: float | None, total: int, *, dry_run: bool
) -> list[Removed]:
    """Remove what unfinished steps have kept: too old, in the way, or of a step that is done."""
    removed = []
    unfinished = [(kind, key, store.scratch_folder(kind, key)) for kind, key in store.unfinished()]
    total += sum(disk.size_of(folder) for _, _, folder in unfinished)
    for kind, key, folder in sorted(unfinished, key=lambda item: disk.modified(item[2])):
        unused_s = time.time() - disk.modified(folder)
        size_bytes = disk.size_of(folder)
        if store.peek(kind, key) is not None:
            reason = "its step is done"
        elif older_than_s is not None and unused_s > older_than_s:
            reason = f"of a step not finished for {unused_s / 86400:.1f} days"
        elif max_bytes is not None and total > max_bytes:
            reason = "of an unfinished step, to make room"
        else:
            continue
        if dry_run or _unless_locked(store, kind, key, partial(disk.remove, folder)):
            removed.append(Removed("scratch", key, size_bytes, reason))
            total -= size_bytes
    return removed


def _old_caches(store: Store, before: float, *, dry_run: bool) -> list[Removed]:
    """Remove what steps have kept for others like them, and none has written since a time."""
    removed = []
    with disk.failures(store.root):
        for path in sorted(store.cache_folder().rglob("*")):
            status = path.stat()
            if path.is_file() and status.st_mtime < before:
                removed.append(Removed("cache", path.name, status.st_size, "of earlier steps"))
                if not dry_run:
                    path.unlink(missing_ok=True)
    return removed


def _old_logs(store: Store, before: float, *, dry_run: bool) -> list[Removed]:
    """Remove the logs of what failed, or was removed, before a time."""
    keys = {entry.key for entry in store.entries()}
    removed = []
    for key in store.logged():
        folder = store.log_folder(key)
        if key not in keys and folder.stat().st_mtime < before:
            removed.append(Removed("log", key, disk.size_of(folder), "old, and nothing came of it"))
            if not dry_run:
                disk.remove(folder)
    return removed


def _unreadable(store: Store, *, dry_run: bool) -> list[Removed]:
    removed = []
    for kind in store.kinds():
        for key in store.keys(kind):
            if store.peek(kind, key) is None:
                size_bytes = disk.size_of(store.folder(kind, key))
                if dry_run or _discard_unless_locked(store, kind, key):
                    removed.append(Removed(kind, key, size_bytes, "damaged"))
    return removed


def _problems(store: Store, kind: str, key: str) -> tuple[str, ...]:
    folder = store.folder(kind, key)
    before = _identity(store, kind, key)
    entry = entry_file.read(folder, kind, key)
    problems = entry_file.damage(entry) if entry else (f"{entry_file.FACTS}: missing or damaged",)
    # An entry that was removed or made again while it was read is not damaged.
    return problems if before is not None and _identity(store, kind, key) == before else ()


def _identity(store: Store, kind: str, key: str) -> int | None:
    try:
        return store.folder(kind, key).stat().st_ino
    except OSError:
        return None


def _discard_unless_locked(store: Store, kind: str, key: str) -> bool:
    return _unless_locked(store, kind, key, lambda: store.discard(kind, key))


def _unless_locked(store: Store, kind: str, key: str, remove: Callable[[], None]) -> bool:
    """Remove something of an entry unless somebody is making it right now."""
    with disk.failures(store.root):
        path = store.lock_path(kind, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = locks.try_acquire(path)
    if lock is None:
        return False
    try:
        remove()
    finally:
        lock.release()
    return True
