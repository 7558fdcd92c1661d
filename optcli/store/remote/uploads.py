"""Uploading results in the background: what is not there yet at the end is uploaded next time.

    remotes/<digest of the URL>/<kind>-<key>    in the local store: `pending`, `replace` or `done`

Nothing is uploaded while something is measured: it would take a core.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

from optcli.files import digest
from optcli.store import locks
from optcli.store.entry import Entry
from optcli.store.remote import manifest
from optcli.store.remote.connection import DeniedError, GoneError, RefusedError, RemoteFileSystem

Mark = Literal["pending", "replace", "done"]
# Afterwards it is asked for again: somebody may have removed it there.
_DONE_HOLDS_S = 24 * 3600.0
# How long a measurement waits for the object that is being sent.
_YIELDS_S = 10.0


class Uploads:
    """The results of one store on their way to one remote store."""

    def __init__(
        self,
        root: Path,
        connection: RemoteFileSystem,
        tell: Callable[[str], None],
        entry_of: Callable[[str, str], Entry | None],
    ) -> None:
        name = digest.of_value(connection.place.url)[:16]
        self._marks = root / "remotes" / name
        self._connection, self._tell, self._entry_of = connection, tell, entry_of
        self._waiting: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self._known: set[tuple[str, str]] = set()
        self._left = 0
        self._changed = threading.Condition()
        self._may_go = threading.Event()
        self._may_go.set()
        self._sending = threading.Lock()
        self._denied = False
        self._thread: threading.Thread | None = None
        self._again()
        locks.pause_with(self)

    def add(self, kind: str, key: str) -> None:
        """Upload an entry of the store, unless it is there as far as this store knows."""
        if self._denied or (kind, key) in self._known or self._is_done(kind, key):
            return
        if self._mark_of(kind, key) != "replace":
            self.mark(kind, key, "pending")
        self._enqueue(kind, key)

    def replace(self, kind: str, key: str) -> None:
        """Note that what lies there is damaged: once the entry is made here, it is uploaded over it."""
        self.mark(kind, key, "replace")
        self._known.discard((kind, key))

    def mark(self, kind: str, key: str, mark: Mark) -> None:
        """Remember what became of an entry; a store that cannot be written forgets it."""
        with suppress(OSError):
            self._marks.mkdir(parents=True, exist_ok=True)
            (self._marks / f"{kind}-{key}").write_text(mark)

    def finish(self, wait_s: float) -> int:
        """Wait until all is uploaded, at most so long; gives how many are left for the next time.

        None are said to be left where nothing can be uploaded: that was told.
        """
        until = time.monotonic() + wait_s
        with self._changed:
            while self._left and not self._stopped and (left_s := until - time.monotonic()) > 0:
                self._changed.wait(min(left_s, 1.0))
            return 0 if self._stopped else self._left

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Send nothing as long as the block runs; what is being sent may take a moment to end."""
        self._may_go.clear()
        try:
            if self._sending.acquire(timeout=_YIELDS_S):
                self._sending.release()
            yield
        finally:
            self._may_go.set()

    @property
    def _stopped(self) -> bool:
        return self._denied or self._connection.is_gone

    def _again(self) -> None:
        """Go on with what earlier builds did not finish."""
        with suppress(OSError):
            for path in sorted(self._marks.iterdir()):
                kind, _, key = path.name.partition("-")
                mark = self._mark_of(kind, key)
                if mark == "done":
                    continue
                if self._entry_of(kind, key) is not None:
                    self._enqueue(kind, key)
                elif mark == "pending":  # it was removed here before it got there
                    path.unlink(missing_ok=True)

    def _mark_of(self, kind: str, key: str) -> str:
        try:
            return (self._marks / f"{kind}-{key}").read_text()
        except OSError:
            return ""

    def _is_done(self, kind: str, key: str) -> bool:
        try:
            age_s = time.time() - (self._marks / f"{kind}-{key}").stat().st_mtime
        except OSError:
            return False
        return self._mark_of(kind, key) == "done" and age_s < _DONE_HOLDS_S

    def _enqueue(self, kind: str, key: str) -> None:
        self._known.add((kind, key))
        with self._changed:
            self._left += 1
        self._waiting.put((kind, key))
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="optcli uploads", daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while not self._stopped:
            kind, key = self._waiting.get()
            try:
                self._send(kind, key)
            except GoneError:
                break
            except DeniedError as error:
                self._denied = True
                self._tell(
                    f"{self._connection.place.shown}: nothing can be written there ({error});"
                    " --remote-readonly reads only"
                )
                break
            except (RefusedError, OSError) as error:  # of this one entry; the others may go well
                self._tell(f"{kind} {key[:12]} is not uploaded: {error}")
            with self._changed:
                self._left -= 1
                self._changed.notify_all()
        with self._changed:
            self._changed.notify_all()

    def _send(self, kind: str, key: str) -> None:
        """Upload the content of an entry, and its manifest once all of that is there."""
        entry = self._entry_of(kind, key)
        if entry is None or entry.origin:
            return
        anew = self._mark_of(kind, key) == "replace"
        with self._turn():
            there = not anew and self._connection.size(manifest.path_of(kind, key)) is not None
        if not there:
            for name, (size_bytes, content) in entry.contents.items():
                if size_bytes:
                    self._send_object(entry.path / name, size_bytes, content, anew=anew)
            data = json.dumps(manifest.sealed(entry), indent=1).encode()
            with self._turn():
                self._connection.write(manifest.path_of(kind, key), data)
        self.mark(kind, key, "done")

    def _send_object(self, path: Path, size_bytes: int, content: str, *, anew: bool) -> None:
        place = manifest.object_of(content)
        with self._turn():
            if not anew and self._connection.size(place) == size_bytes:
                return
            if digest.of_file(path) != content:
                raise RefusedError(f"{path.name} was changed in the store")
            self._connection.upload(place, path)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One request, while nothing is measured."""
        while True:
            self._may_go.wait()
            with self._sending:
                if self._may_go.is_set():
                    yield
                    return
