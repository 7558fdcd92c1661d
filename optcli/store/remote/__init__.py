"""A store that machines share: results under the same keys, behind a URL that fsspec can open.

It is a cache of the local store. What it has is fetched when it is needed, what is made here is
uploaded in the background. Nothing that goes wrong there fails a build: a result that cannot be
fetched is made here. Who may write to it decides what others get: digests prove that a result came
whole, not who made it.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from optcli.errors import OptcliError, TrustError, counted
from optcli.files.digest import of_bytes
from optcli.store.entry import Entry
from optcli.store.remote import manifest
from optcli.store.remote.connection import GoneError, Limits, RefusedError, RemoteFileSystem
from optcli.store.remote.uploads import Uploads
from optcli.store.remote_place import RemotePlace, remote_place

# What travels: results that hold on any machine that makes the same key. Not what was measured on one
# machine, what can be large and is quickly made of the data (`prepared`), and what says whom to trust
# or which code to run (`baseline-written`, `traits`).
KINDS = frozenset({"artifact", "check", "data", "samples", "evaluation", "comparison", "remarks"})
# What stays free on a disk beside what is fetched.
_SPARE_BYTES = 256 * 1024**2
_NOTHING = of_bytes(b"")
_TRIES = 2
# Of those that `cache why` compares with.
MOST_COMPARED = 1000


class Remote:
    """One remote store, as one local store uses it."""

    def __init__(
        self,
        place: RemotePlace,
        root: Path,
        entry_of: Callable[[str, str], Entry | None],
        tell: Callable[[str], None],
        limits: Limits,
    ) -> None:
        """Raises `MissingError` where the URL's library is not installed, `UsageError` for a wrong URL.

        `tell` hears of what goes wrong there; `entry_of` gives an entry of the local store.
        """
        self.place, self._tell, self._limits = place, tell, limits
        self.connection = RemoteFileSystem(place, limits, tell)
        self._refused: set[tuple[str, str]] = set()
        self._untrusted = False
        self._uploads = None
        if not place.read_only:
            self._uploads = Uploads(root, self.connection, tell, entry_of)

    def look(self, kind: str, key: str) -> Entry | None:
        """What the manifest of an entry says, its files not being fetched; None where there is none.

        A damaged one is reported once, and replaced when the entry is made here.
        """
        if (kind, key) in self._refused or self.connection.is_gone:
            return None
        try:
            return self.described(kind, key)
        except (FileNotFoundError, GoneError):
            return None
        except RefusedError as error:
            self.refuse(kind, key, error)
            return None

    def described(self, kind: str, key: str, files: Path | None = None) -> Entry:
        """As `look`. Raises FileNotFoundError, `GoneError` and `RefusedError`."""
        data = self.connection.read(manifest.path_of(kind, key), manifest.MOST_BYTES)
        nowhere = files or Path("/nonexistent")
        return manifest.read(data, kind, key, nowhere, self.place.shown)

    def download(self, entry: Entry, out: Path) -> None:
        """Write the files of an entry below `out`, each compared with its digest.

        Raises `RefusedError` for an object that is missing or wrong, `GoneError`, and OSError where the
        disk refuses.
        """
        free = shutil.disk_usage(out).free
        if entry.size_bytes + _SPARE_BYTES > free:
            need, has = f"{entry.size_bytes / 1e6:.0f} MB", f"{free / 1e6:.0f} MB"
            self._tell(f"{entry.kind} {entry.key[:12]} is not fetched: it has {need}, free are {has}")
            raise GoneError("no room")
        for name in entry.contents:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
        abandoned = threading.Event()

        def fetch(item: tuple[str, tuple[int, str]]) -> None:
            name, (size_bytes, content) = item
            self._fetch(out / name, size_bytes, content, abandoned)

        try:
            self.connection.each(fetch, list(entry.contents.items()))
        finally:
            abandoned.set()

    def _fetch(self, target: Path, size_bytes: int, content: str, abandoned: threading.Event) -> None:
        if not size_bytes:
            if content != _NOTHING:
                raise RefusedError(f"{target.name} is empty, and its digest is not that of nothing")
            target.touch()
            return
        place = manifest.object_of(content)
        for _ in range(_TRIES):  # it may have been damaged on its way
            try:
                if self.connection.download(place, target, size_bytes, abandoned) == content:
                    return
            except FileNotFoundError:
                raise RefusedError(f"its object {content[:12]} is missing", [content]) from None
            target.unlink()
        raise RefusedError(f"its object {content[:12]} has not the content of its digest", [content])

    def refuse(self, kind: str, key: str, error: Exception) -> None:
        """Say once why an entry is not taken; what is damaged is replaced once it is made here."""
        self._refused.add((kind, key))
        if isinstance(error, TrustError):
            if not self._untrusted:
                self._untrusted = True
                self._tell(f"{self.place.shown}: {error.message}; made here instead ({error.hint})")
            return
        reason = error.message if isinstance(error, OptcliError) else str(error)
        self._tell(f"{self.place.shown}: {kind} {key[:12]} is refused: {reason}; made here instead")
        if self._uploads is not None:
            self._uploads.replace(kind, key)

    def was_fetched(self, kind: str, key: str) -> None:
        """Remember that an entry is there."""
        if self._uploads is not None:
            self._uploads.mark(kind, key, "done")

    def keep(self, entry: Entry) -> None:
        """Upload an entry that was made here, in the background."""
        if self._uploads is not None and entry.kind in KINDS and not entry.origin:
            self._uploads.add(entry.kind, entry.key)

    def finish(self) -> None:
        """Wait for uploads, as long as the limits say."""
        if self._uploads is None:
            return
        left = self._uploads.finish(self._limits.finish_s)
        if left:
            results = counted(left, "result is", "results are")
            self._tell(f"{results} not uploaded yet; the next build uploads what is left")

    def described_all(self, kinds: Iterable[str]) -> Iterator[Entry]:
        """What the newest manifests of some kinds say; damaged ones are left out."""
        entries: list[Entry] = []

        def read(identity: tuple[str, str]) -> None:
            entry = self.look(*identity)
            if entry is not None:
                entries.append(entry)

        with suppress(GoneError):
            for kind in kinds:
                files = self.connection.listing(f"{manifest.ENTRIES}/{kind}")
                newest = sorted(files, key=lambda each: each.written)[-MOST_COMPARED:]
                wanted = [each for file in newest if (each := manifest.identity_of(file.path))]
                self.connection.each(read, wanted)
        yield from sorted(entries, key=lambda each: (each.kind, each.key))
