"""Keeping a remote store sound and small: listing it, reading all of it, removing what is not needed.

Whoever does this needs to see all of it: what cannot be read is an error here, as nothing is being
built.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from optcli.errors import StoreError
from optcli.files import folders
from optcli.store.entry import Entry
from optcli.store.remote import Remote, manifest
from optcli.store.remote.connection import PART, DeniedError, GoneError, Listed, RefusedError
from optcli.store.upkeep import Damage, Removed

# An object without a manifest may belong to an upload that is still going on.
_UPLOADING_S = 24 * 3600.0
_UPLOADED = "of an upload that did not end, or of removed results"


def entries(remote: Remote, kind: str | None = None) -> tuple[list[tuple[Listed, Entry]], list[Damage]]:
    """What the remote store lists, the oldest first, and what of it is damaged. Raises `StoreError`."""
    sound: list[tuple[Listed, Entry]] = []
    damage: list[Damage] = []

    def read(file: Listed) -> None:
        identity = manifest.identity_of(file.path)
        if identity is None or (kind is not None and identity[0] != kind):
            if identity is None and PART not in file.path:
                damage.append(Damage("file", file.path, ("it is no manifest",)))
            return
        try:
            sound.append((file, remote.described(*identity)))
        except RefusedError as error:
            damage.append(Damage(*identity, (str(error),)))
        except FileNotFoundError:  # removed since it was listed
            pass

    with _answering(remote):
        remote.connection.each(read, remote.connection.listing(manifest.ENTRIES))
    return sorted(sound, key=lambda each: each[0].written), sorted(damage, key=lambda each: each.key)


def damaged(remote: Remote, *, repair: bool) -> tuple[int, list[Damage]]:
    """Read everything: how many entries are sound, and the damaged ones; `repair` removes these.

    An object that is damaged is removed with them: the next upload writes it again. Raises
    `StoreError`.
    """
    listed, damage = entries(remote)
    sizes = {content: size for _, each in listed for size, content in each.contents.values() if size}
    wrong: dict[str, str] = {}
    with _answering(remote), folders.temporary("verify") as scratch:
        never = threading.Event()

        def check(content: str) -> None:
            target = Path(scratch) / content
            try:
                same = remote.connection.download(
                    manifest.object_of(content), target, sizes[content], never
                )
                if same != content:
                    wrong[content] = "has not the content of its digest"
            except FileNotFoundError:
                wrong[content] = "is missing"
            finally:
                target.unlink(missing_ok=True)

        remote.connection.each(check, sorted(sizes))
        sound = len(listed)
        for _, entry in listed:
            problems = tuple(
                f"{name}: its object {content[:12]} {wrong[content]}"
                for name, (_, content) in entry.contents.items()
                if content in wrong
            )
            if problems:
                sound -= 1
                damage.append(Damage(entry.kind, entry.key, problems))
        if repair:
            damage = [_removed(remote, each) for each in damage]
            for content in wrong:
                remote.connection.remove(manifest.object_of(content))
    return sound, damage


def collect(
    remote: Remote,
    older_than_s: float | None,
    max_bytes: float | None,
    *,
    dry_run: bool,
) -> list[Removed]:
    """Remove entries uploaded longer ago than `older_than_s`, then the oldest above `max_bytes`.

    Objects that no manifest names go with them. They must be older than a day, or named by what
    is removed now: an upload writes its manifest last. Entries that are damaged go always. A remote
    store does not know when an entry was used. Raises `StoreError`.
    """
    listed, damage = entries(remote)
    with _answering(remote):
        objects = remote.connection.listing(manifest.OBJECTS)
        now = time.time()
        removed = [Removed(each.kind, each.key, 0, "damaged") for each in damage]
        remaining = dict(_recorded(listed, objects, older_than_s, max_bytes, now, removed))
        names = _contents(remaining.values())
        of_removed = _contents(entry for _, entry in listed) - names
        stale = [
            file
            for file in [*objects, *remote.connection.listing(manifest.ENTRIES)]
            if _is_stale(file, names)
            and (_name(file) in of_removed or now - file.written > _UPLOADING_S)
        ]
        # The bytes of a removed entry's objects are counted with it.
        left = (file for file in stale if _name(file) not in of_removed)
        removed += [Removed("object", _name(file), file.size_bytes, _UPLOADED) for file in left]
        if not dry_run:
            gone = [each for each in removed if each.kind != "object"]
            remote.connection.each(lambda each: _remove(remote, each.kind, each.key), gone)
            remote.connection.each(lambda file: remote.connection.remove(file.path), stale)
    return removed


def _recorded(
    listed: Iterable[tuple[Listed, Entry]],
    objects: Iterable[Listed],
    older_than_s: float | None,
    max_bytes: float | None,
    now: float,
    removed: list[Removed],
) -> Iterator[tuple[str, Entry]]:
    """The entries that stay; the others join what is `removed`."""
    users: dict[str, int] = {}
    sizes = {_name(file): file.size_bytes for file in objects}
    by_age = list(listed)
    for _, entry in by_age:
        for content in _contents([entry]):
            users[content] = users.get(content, 0) + 1
    total = sum(sizes.get(content, 0) for content in users)
    for file, entry in by_age:
        age_s = now - file.written
        if older_than_s is not None and age_s > older_than_s:
            reason = f"uploaded {age_s / 86400:.1f} days ago"
        elif max_bytes is not None and total > max_bytes:
            reason = "the first that was uploaded, to make room"
        else:
            yield f"{entry.kind}/{entry.key}", entry
            continue
        freed = 0
        for content in _contents([entry]):
            users[content] -= 1
            freed += 0 if users[content] else sizes.get(content, 0)
        total -= freed
        removed.append(Removed(entry.kind, entry.key, freed, reason))


def _contents(some: Iterable[Entry]) -> set[str]:
    return {content for entry in some for _, content in entry.contents.values()}


def _is_stale(file: Listed, names: set[str]) -> bool:
    if file.path.startswith(f"{manifest.ENTRIES}/"):
        return PART in file.path
    return _name(file) not in names


def _name(file: Listed) -> str:
    return file.path.rpartition("/")[2]


def _removed(remote: Remote, damage: Damage) -> Damage:
    _remove(remote, damage.kind, damage.key)
    return Damage(damage.kind, damage.key, damage.problems, removed=True)


def _remove(remote: Remote, kind: str, key: str) -> None:
    remote.connection.remove(key if kind == "file" else manifest.path_of(kind, key))


@contextmanager
def _answering(remote: Remote) -> Iterator[None]:
    try:
        yield
    except (GoneError, DeniedError, RefusedError) as error:
        raise StoreError(
            f"the remote store cannot be used: {error}",
            place=remote.place.shown,
            hint="look at the URL, your access to it and the network",
        ) from error
