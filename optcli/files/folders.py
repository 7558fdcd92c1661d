"""Folders for a while: made below the system's temporary one, and removed whatever lies in them."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from itertools import product
from pathlib import Path

from optcli.errors import MissingError

_PREFIX = "optcli-"
# Locked as long as its process lives: `kill -9` leaves the folder, and lets go of the lock.
_ALIVE, _NEW = ".alive", ".alive-new"
_SURELY_LOCKED_S = 60.0
_MOVED = "removing-"


@contextmanager
def temporary(purpose: str) -> Iterator[Path]:
    """An empty folder inside of one called `optcli-PURPOSE-…`, removed at the end.

    The first one of a process removes those that killed processes have left.
    """
    _clear_abandoned(tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
    lock = os.open(folder / _NEW, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with suppress(OSError):  # some places have no locks, confined workers neither: then it stays
            _lock(lock)
            os.replace(folder / _NEW, folder / _ALIVE)
        files = folder / "files"
        files.mkdir()
        yield files
    finally:
        os.close(lock)
        remove(folder)


def require_executable(folder: str | Path) -> None:
    """Raise `MissingError` where no compiled code can be loaded from a folder: it is mounted noexec."""
    if hasattr(os, "statvfs") and os.statvfs(folder).f_flag & getattr(os, "ST_NOEXEC", 0):
        raise MissingError(
            f"compiled code is loaded from the temporary folder, and {str(folder)!r} is mounted noexec",
            hint="set the variable TMPDIR to a folder from which programs may run",
        )


def remove(folder: Path) -> None:
    """Remove a folder and all below it, whatever its modes; what cannot be removed stays.

    However deep they are, folders in a folder come up into `folder` itself: no path gets too long.
    Links are removed and never followed.
    """
    with suppress(OSError):
        top = _opened(str(folder), None)
        try:
            _clear(top)
        finally:
            os.close(top)
        folder.rmdir()


@cache
def _clear_abandoned(place: str) -> None:
    with os.scandir(place) as items:
        names = [item.path for item in items if item.name.startswith(_PREFIX)]
    for name, alive in product(names, (_ALIVE, _NEW)):
        with suppress(OSError):  # another's, or without a process that it belongs to
            lock = os.open(os.path.join(name, alive), os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                _lock(lock)
                # Who is making a folder locks the file an instant after it is there.
                if alive == _ALIVE or time.time() - os.fstat(lock).st_mtime > _SURELY_LOCKED_S:
                    remove(Path(name))
            finally:
                os.close(lock)


def _lock(descriptor: int) -> None:
    """Lock a file until it is closed. Raises OSError where another process has it."""
    try:
        import fcntl
    except ImportError as error:
        raise OSError("this system has no such locks") from error
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _clear(top: int) -> None:
    number, removable = 0, True
    while removable:
        removable = False
        for name in _unlinked(top):
            with suppress(OSError):
                below = _opened(name, top)
                try:
                    for inner in _unlinked(below):
                        number += 1
                        up = f"{_MOVED}{os.getpid()}-{number}"
                        with suppress(OSError):
                            os.rename(inner, up, src_dir_fd=below, dst_dir_fd=top)
                finally:
                    os.close(below)
                os.rmdir(name, dir_fd=top)
                removable = True


def _opened(name: str, parent: int | None) -> int:
    """A descriptor of a folder that is no link, made readable and writable for its owner."""
    if not stat.S_ISLNK(os.lstat(name, dir_fd=parent).st_mode):
        with suppress(OSError):  # somebody else's
            os.chmod(name, 0o700, dir_fd=parent)
    return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)


def _unlinked(folder: int) -> list[str]:
    """Remove what is no folder in a folder; the names of the folders in it."""
    folders = []
    with os.scandir(folder) as items:
        for item in items:
            if item.is_dir(follow_symlinks=False):
                folders.append(item.name)
                continue
            with suppress(OSError):
                os.unlink(item.name, dir_fd=folder)
    return folders
