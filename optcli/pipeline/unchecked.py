"""What a step has written while its check still runs: the steps after it may begin with a copy.

They are as far as they can be once the check has ended. What they make is kept only if the check found
nothing, and the files in the store are those that were copied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optcli.artifact import Artifact
from optcli.store import Entry, disk

_Marks = dict[str, tuple[int, int, int]]


class Withdrawn(Exception):  # noqa: N818 - no error: the step begins again, or its parent has failed
    """What was copied is not what the store has in the end, if anything."""


class Unchecked:
    """An artifact that its step has written and nobody has found right yet. For several threads.

    `artifact` is what the store will have, as far as it is known; its files lie in `folder` until then.
    """

    def __init__(self, artifact: Artifact, folder: Path) -> None:
        self.artifact = artifact
        self._folder = folder
        self._marks = _marks(folder)
        self._moving = threading.Lock()
        self._kept: Future[Entry | None] = Future()

    @contextmanager
    def in_place(self) -> Iterator[Path]:
        """Where its files lie; they are not moved during the block. Raises `Withdrawn`."""
        with self._moving:
            if self._kept.done():
                yield self.checked().path
            else:
                yield self._folder

    @contextmanager
    def moving(self) -> Iterator[None]:
        """A block in which nobody reads the files."""
        with self._moving:
            yield

    def keep(self, entry: Entry) -> None:
        """The check has ended well, and the store has this."""
        same = entry.key == self.artifact.key and _marks(entry.path) == self._marks
        if not self._kept.done():
            self._kept.set_result(entry if same else None)

    def withdraw(self) -> None:
        """The check has found something, or the step failed. Does nothing once it has ended well."""
        if not self._kept.done():
            self._kept.set_result(None)

    def checked(self) -> Entry:
        """What the store has, once the check has ended. Raises `Withdrawn`."""
        entry = self._kept.result()
        if entry is None:
            raise Withdrawn
        return entry

    def is_right(self) -> bool:
        """Whether the check ended well, once it has ended."""
        return self._kept.result() is not None

    @contextmanager
    def ending(self, end: Callable[[], None]) -> Iterator[None]:
        """Call `end` where it is withdrawn during the block, from another thread."""
        active = True

        def withdrawn(kept: Future[Entry | None]) -> None:
            if active and kept.result() is None:
                end()

        self._kept.add_done_callback(withdrawn)
        try:
            yield
        finally:
            active = False

    def completed(self, record: dict[str, Any]) -> dict[str, Any]:
        """The record of what was made of it, with the facts that only its check found.

        Waits for the end of the check. Raises `Withdrawn`.
        """
        facts = self.checked().record["facts"]
        found = {name: fact for name, fact in facts.items() if name not in self.artifact.facts}
        return {**record, "facts": {**found, **record["facts"]}}


def _marks(folder: Path) -> _Marks:
    """Size, time of the last change and inode of each file, by name: moving a folder leaves them."""
    states = {name: path.lstat() for name, path in disk.plain_files(folder).items()}
    return {name: (each.st_size, each.st_mtime_ns, each.st_ino) for name, each in states.items()}
