"""The store: results under the key of everything that made them; atomic, locked, verified.

    entries/<kind>/<key>/entry.json   what made it, its facts and the digest of every file
    entries/<kind>/<key>/files/       what was made, read-only
    work/                             what is being made now; an entry is moved out of here whole
    scratch/<kind>/<key>/             what an unfinished step keeps to go on from, such as checkpoints
    locks/                            one empty file per key that was ever made
    logs/<key>/                       what was said while it was made, or failed to be
    remotes/<remote store>/           what of it is there, and what is still to be uploaded
    digests.json                      the digests of files elsewhere, remembered

A result is looked up by reading one small file. It becomes visible by one rename, after all of it is
on the disk: a process may be killed at any moment and leaves either the whole result or none.

A store may have a remote one beside it, which other machines share: see `connected` and `remote`.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.errors import OptcliError, StoreError
from optcli.files.digest import FileDigests
from optcli.store import disk, locks
from optcli.store import entry as entry_file
from optcli.store.entry import Admission, Entry, key_of
from optcli.store.upkeep import Damage, Removed, collect, damaged
from optcli.store.why import IngredientDifference, Why, explain

if TYPE_CHECKING:
    from optcli.store.remote import Limits, Remote, RemotePlace

_ALIVE = "alive.lock"
_GONE = "gone-"
_STUCK = "stuck-"
# Commits last milliseconds; a minute means that something is stuck.
_COMMIT_TIMEOUT_S = 60.0


class Store:
    """Results by kind ("artifact", "data", "measurement", ...) and key.

    >>> with store.lock("artifact", key), store.work("artifact", key) as work:
    ...     (work / "model.onnx").write_bytes(model)
    ...     entry = store.put("artifact", key, work, {"opset": 18}, ingredients)

    Nothing is written before the first lock or work: a store that is not there is an empty one, and a
    read-only one can be read. Every method that writes raises `StoreError`.
    """

    def __init__(self, root: Path, remote: RemotePlace | None = None) -> None:
        """`remote` is used as long as the store is `connected`."""
        self.root = root.expanduser().absolute()
        self.remote_place = remote
        self.remote: Remote | None = None

    @staticmethod
    def of(store: Store | Path | None) -> Store:
        """The store itself, the one in a folder, or the default one.

        The latter two have the remote store that OPTCLI_REMOTE_STORE names.
        """
        return store if isinstance(store, Store) else Store.at(store)

    @staticmethod
    def at(root: Path | None, remote: str | None = None, *, read_only: bool = False) -> Store:
        """The store of `--store`, `--remote-store` and `--remote-readonly`, or of their variables.

        Raises `UsageError` for a remote store that is no URL.
        """
        from optcli.store.remote_place import remote_place

        return Store(Store.default_root(root), remote_place(remote, read_only=read_only))

    @staticmethod
    def default_root(explicit: Path | None = None) -> Path:
        """Where the store lies: `--store`, else OPTCLI_STORE, else `artifacts/.store` right here."""
        named = os.environ.get("OPTCLI_STORE", "")
        return (explicit or Path(named or "artifacts/.store")).expanduser().absolute()

    @cached_property
    def digests(self) -> FileDigests:
        """Digests of files outside the store, remembered in it. Call their `save` when done."""
        return FileDigests(self.root / "digests.json")

    # Sharing

    @contextmanager
    def connected(
        self,
        tell: Callable[[str, str], None],
        limits: Limits | None = None,
        *,
        uploading: bool = True,
    ) -> Iterator[None]:
        """Use the remote store, where there is one, as long as the block runs.

        `get` fetches from it, `put` uploads in the background, if `uploading`. At the end the rest is
        waited for, as long as the `limits` say; an interrupt waits for nothing. `tell` hears of what
        goes wrong there, each once. Raises `MissingError` where a library for it is not installed,
        `UsageError` for a URL that nothing opens.
        """
        if self.remote_place is None or self.remote is not None:
            yield
            return
        from optcli.store.remote import Limits, Remote

        place = self.remote_place
        self.remote = remote = Remote(
            place if uploading else replace(place, read_only=True),
            self.root,
            self.peek,
            lambda message: tell("remote store", message),
            limits or Limits(),
        )
        try:
            yield
        except Exception:
            remote.finish()
            raise
        else:
            remote.finish()
        finally:
            self.remote = None

    # Reading

    def get(
        self, kind: str, key: str, *, anew: bool = False, admission: Admission | None = None
    ) -> Entry | None:
        """A finished and sound entry, to be used; None where there is none.

        A file that is missing or was changed makes it none: it is made again. Contents are read where
        a file is not as `digests` remembers it, so an untouched entry costs a look at each file. With
        `anew` the entry is removed instead.

        With an `admission` it is fetched where only the remote store has it, unless its lock is held:
        look before locking. What was fetched, now or earlier, and is not admitted is removed.
        """
        if anew:
            self.discard(kind, key)
        entry = self.sound(kind, key)
        if admission is not None:
            if entry is None and not anew:
                entry = self._fetched(kind, key, admission)
            elif entry is not None and entry.origin:
                entry = self._admitted(entry, admission)
        if entry is not None:
            with suppress(OSError):  # a read-only store cannot remember when it was used
                os.utime(entry.path.parent / entry_file.FACTS)
            if self.remote is not None:
                self.remote.keep(entry)
        return entry

    def _admitted(self, entry: Entry, admission: Admission) -> Entry | None:
        """A fetched entry, or None where it may not be used now, as without `--trust`."""
        try:
            admission.of_record(entry)
            admission.of_files(entry)
        except OptcliError as error:
            if self.remote is not None:
                self.remote.refuse(entry.kind, entry.key, error)
            self.discard(entry.kind, entry.key)
            return None
        return entry

    def _fetched(self, kind: str, key: str, admission: Admission) -> Entry | None:
        """An entry from the remote store; None where that has none, or none that is admitted."""
        if self.remote is None:
            return None
        from optcli.store.remote.connection import GoneError, RefusedError
        from optcli.store.remote.manifest import sealed

        lock = None
        try:
            with disk.failures(self.root):
                self.lock_path(kind, key).parent.mkdir(parents=True, exist_ok=True)
                lock = locks.try_acquire(self.lock_path(kind, key))
            if lock is None:
                return None  # somebody makes or fetches it, or we ourselves do
            entry = self.sound(kind, key)
            if entry is not None:  # somebody has done so since we looked
                return self._admitted(entry, admission) if entry.origin else entry
            there = self.remote.look(kind, key)
            if there is None:
                return None
            admission.of_record(there)
            with self.work(kind, key) as work, disk.failures(self.root):
                self.remote.download(there, work)
                here = replace(there, path=work)
                admission.of_files(here)
                admission.of_model(here)
                entry_file.adopt(work.parent, sealed(here), there.origin)
                entry = self._moved_in(kind, key, work)
        except (GoneError, StoreError):  # a store that cannot be written says so where it must be
            return None
        except (RefusedError, OptcliError) as error:
            self.remote.refuse(kind, key, error)
            return None
        finally:
            if lock is not None:
                lock.release()
        self.remote.was_fetched(kind, key)
        return entry

    def sound(self, kind: str, key: str) -> Entry | None:
        """As `get`, without counting as a use."""
        entry = self.peek(kind, key)
        return entry if entry is not None and entry_file.is_unchanged(entry, self.digests) else None

    def peek(self, kind: str, key: str) -> Entry | None:
        """A finished entry as it was written, its files being there in full size; contents unread."""
        entry = entry_file.read(self.folder(kind, key), kind, key)
        return entry if entry is not None and entry_file.is_complete(entry) else None

    def kinds(self) -> list[str]:
        """The kinds of entries there are."""
        return _names(self.root / "entries")

    def keys(self, kind: str) -> list[str]:
        """The keys of a kind, those of damaged entries among them."""
        return _names(self.root / "entries" / kind)

    def entries(self, kind: str | None = None) -> Iterator[Entry]:
        """All finished entries, of one kind or of all."""
        for kind_name in self.kinds() if kind is None else [kind]:
            for key in self.keys(kind_name):
                entry = self.peek(kind_name, key)
                if entry is not None:
                    yield entry

    def folder(self, kind: str, key: str) -> Path:
        """Where an entry lies or would lie."""
        return self.root / "entries" / kind / key

    def log_folder(self, key: str) -> Path:
        """Where the log of making an entry belongs; it goes when the entry is discarded."""
        return self.root / "logs" / key

    def scratch_folder(self, kind: str, key: str) -> Path:
        """Where making an entry may keep what it needs to go on after being killed; `put` removes it.

        It is written to under the entry's lock only, and made by whoever needs it.
        """
        return self.root / "scratch" / kind / key

    def cache_folder(self) -> Path:
        """Where steps keep what makes others like them faster, whatever their keys: `gc` empties it."""
        return self.root / "caches"

    def unfinished(self) -> list[tuple[str, str]]:
        """The kind and key of every step that has kept something in its scratch folder."""
        kinds = _names(self.root / "scratch")
        return [(kind, key) for kind in kinds for key in _names(self.root / "scratch" / kind)]

    def logged(self) -> list[str]:
        """The keys that have a log."""
        return _names(self.root / "logs")

    # Writing

    def lock(
        self, kind: str, key: str, waiting: Callable[[], None] | None = None
    ) -> AbstractContextManager[None]:
        """Be the only process, and thread, that makes this entry; look with `get` once you are.

        `waiting` is called once where another has the lock.
        """
        return locks.held(self.lock_path(kind, key), waiting=waiting)

    def lock_path(self, kind: str, key: str) -> Path:
        """The file locked while an entry is made. It stays: removing it would split those waiting."""
        return self.root / "locks" / f"{kind}-{key}.lock"

    @contextmanager
    def work(self, kind: str, key: str) -> Iterator[Path]:
        """An empty folder to make an entry in; gone at the end unless `put` has kept it.

        What a killed process left behind of the same entry is removed first.
        """
        prefix = f"{kind}-{key[:16]}-"
        with disk.failures(self.root):
            self._prepare()
            self.clear_stale(prefix)
            with self._commit():
                bench = Path(tempfile.mkdtemp(prefix=prefix, dir=self.root / "work"))
                alive = locks.try_acquire(bench / _ALIVE)
        try:
            with disk.failures(self.root):
                files = bench / "entry" / entry_file.FILES
                files.mkdir(parents=True)
            yield files
        finally:
            disk.remove(bench)
            if alive is not None:
                alive.release()

    def put(
        self,
        kind: str,
        key: str,
        work: Path,
        record: dict[str, Any],
        ingredients: dict[str, Any],
    ) -> Entry:
        """Keep what lies in a folder of `work`; an entry that appeared meanwhile stays instead.

        `record` and `ingredients` are plain JSON data. A `StoreError`, where the disk refuses, leaves
        nothing behind.
        """
        with disk.failures(self.root):
            entry_file.write(work.parent, kind, key, record, ingredients)
        entry = self._moved_in(kind, key, work)
        if self.remote is not None:
            self.remote.keep(entry)
        return entry

    def _moved_in(self, kind: str, key: str, work: Path) -> Entry:
        """Move what was sealed beside `work` into place, unless a sound entry has appeared there."""
        final = self.folder(kind, key)
        with disk.failures(self.root), self._commit():
            first = self.sound(kind, key)
            aside = None if first else self._aside(final)
            if first is None:
                final.parent.mkdir(parents=True, exist_ok=True)
                work.parent.rename(final)
                disk.sync(final.parent)
        if aside is not None:
            disk.remove(aside)
        disk.remove(self.scratch_folder(kind, key))
        entry = first or entry_file.read(final, kind, key)
        assert entry is not None, f"{final} was not written as it is read"
        return entry

    def discard(self, kind: str, key: str) -> None:
        """Remove an entry, damaged or not; at once for everybody who looks."""
        with disk.failures(self.root):
            self._prepare()
            with self._commit():
                aside = self._aside(self.folder(kind, key))
        if aside is not None:
            disk.remove(aside)
            disk.remove(self.log_folder(key))

    # Upkeep

    def verify(self, *, repair: bool = False) -> list[Damage]:
        """Read every file of every entry and name the damaged ones; `repair` removes those."""
        return damaged(self, repair=repair)

    def gc(
        self,
        older_than_s: float | None = None,
        max_bytes: float | None = None,
        *,
        dry_run: bool = False,
    ) -> list[Removed]:
        """Remove what is not needed; see `upkeep.collect`."""
        return collect(self, older_than_s, max_bytes, dry_run=dry_run)

    def clear_stale(self, prefix: str = "", *, dry_run: bool = False) -> list[Removed]:
        """Remove the work folders of dead processes, never those of a living one."""
        cleared = []
        for name in _names(self.root / "work"):
            if not name.startswith((prefix, _GONE)):
                continue
            bench = aside = self.root / "work" / name
            with self._commit():
                if not name.startswith((_GONE, _STUCK)):
                    if not _is_abandoned(bench):
                        continue
                    aside = (None if dry_run else self._aside(bench)) or bench
            removed = Removed("work", name, disk.size_of(aside), "left by a process that died")
            if not dry_run:
                disk.remove(aside)
            if aside.exists() and not dry_run:
                removed = self._set_aside(aside)
            cleared.append(removed)
        return cleared

    def _set_aside(self, folder: Path) -> Removed:
        """Take a folder that cannot be removed out of the way of builds; `gc` tries it again."""
        with suppress(OSError):
            folder = folder.rename(folder.with_name(f"{_STUCK}{folder.name.removeprefix(_STUCK)}"))
        logging.getLogger(__name__).warning("%s cannot be removed; cache gc tries again", folder)
        return Removed("work", folder.name, disk.size_of(folder), "stays: it cannot be removed")

    def _commit(self) -> AbstractContextManager[None]:
        """Held for the few renames that change what can be seen, so that they never interleave."""
        return locks.held(self.root / "locks" / "commit.lock", _COMMIT_TIMEOUT_S)

    def _aside(self, folder: Path) -> Path | None:
        """Move a folder out of sight, to be removed at leisure; None where there is none."""
        if not folder.exists():
            return None
        aside = Path(tempfile.mkdtemp(prefix=_GONE, dir=self.root / "work"))
        with suppress(FileNotFoundError):  # somebody else is removing it right now
            folder.rename(aside / folder.name)
        return aside

    def _prepare(self) -> None:
        """Make the root, marked for git and for backups as something that can be made again."""
        (self.root / "work").mkdir(parents=True, exist_ok=True)
        for name, text in (
            (".gitignore", "*\n"),
            ("CACHEDIR.TAG", "Signature: 8a477f597d28d172789f06886806bc55\n# Made by optcli.\n"),
        ):
            if not (self.root / name).exists():
                (self.root / name).write_text(text)


def _is_abandoned(bench: Path) -> bool:
    """Whether no living process works in a folder."""
    try:
        alive = locks.try_acquire(bench / _ALIVE)
    except FileNotFoundError:
        return False  # it has just been removed
    if alive is not None:
        alive.release()
    return alive is not None


def _names(folder: Path) -> list[str]:
    """The names of the folders in a folder, sorted; none where it is not there."""
    try:
        with os.scandir(folder) as items:
            return sorted(item.name for item in items if item.is_dir(follow_symlinks=False))
    except OSError:
        return []
