"""Writing to a disk that may be full, read-only or pulled away, and saying so in words."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from optcli.errors import NO_ROOM, StoreError, excerpt, strerror
from optcli.files import regular_files
from optcli.files.folders import remove as remove

_REFUSED = {errno.EACCES, errno.EPERM}
# Of an artifact. Networks of torch with the user's code have a few hundred files.
MOST_FILES = 20_000
_MOST_DEPTH = 50


@contextmanager
def failures(place: Path) -> Iterator[None]:
    """Turn what the disk refuses into a `StoreError` that names the place and one action."""
    try:
        yield
    except OSError as error:
        raise failure(error, place) from error


def failure(error: OSError, place: Path) -> StoreError:
    """The `StoreError` for a refusal of the operating system at `place`."""
    where = str(error.filename or place)
    if error.errno in NO_ROOM:
        return StoreError(
            f"{NO_ROOM[error.errno]}: {_free(place)} free, more is needed",
            place=where,
            hint="make room with `optcli cache gc`, or choose another place with --store",
        )
    if error.errno == errno.EROFS:
        message = "the store is on a read-only file system, and something new must be written"
    elif error.errno in _REFUSED:
        message = f"the store may not be written here: {error.strerror}"
    else:
        message = f"the store cannot be used ({_free(place)} free): {strerror(error)}"
    return StoreError(
        message, place=where, hint="choose a place you can write to with --store or OPTCLI_STORE"
    )


def plain_files(folder: Path) -> dict[str, Path]:
    """Relative POSIX name to path of every file below a folder, sorted; Python's caches left out.

    Raises `StoreError` for a link or a device: what it leads to could change behind the store's back;
    and for more than `MOST_FILES` files, or folders in folders without an end.
    """
    files: dict[str, Path] = {}
    for parent, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        deep = len(Path(parent).parts) - len(folder.parts) >= _MOST_DEPTH
        if deep or len(files) + len(names) > MOST_FILES:
            raise StoreError(
                f"found {'deeper folders' if deep else 'more files'} than the store takes: at most"
                f" {MOST_FILES} files, and folders {_MOST_DEPTH} deep",
                place=excerpt(parent),
                hint="write fewer files, such as one archive",
            )
        for name in (*folders, *names):
            path = Path(parent, name)
            mode = path.lstat().st_mode
            if stat.S_ISREG(mode):
                files[path.relative_to(folder).as_posix()] = path
            elif not stat.S_ISDIR(mode):
                what = "a link" if stat.S_ISLNK(mode) else regular_files.kind(mode)
                raise StoreError(
                    f"found {excerpt(path.name)}, which is {what}; wanted regular files only",
                    place=str(path),
                    hint="write a copy of the file instead of a link, and no pipes, sockets or devices",
                )
    return dict(sorted(files.items()))


def write_whole(path: Path, data: bytes) -> None:
    """Write a new file and wait until it is on the disk."""
    with path.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())


def settle(folder: Path) -> None:
    """Wait until everything below a folder is on the disk, so that no crash can lose half of it.

    Files become read-only, against edits by accident. Folders stay writable, so that a person can
    delete a store.
    """
    for parent, folders, names in os.walk(folder):
        for name in list(folders):
            if name == "__pycache__":
                remove(Path(parent, name))
                folders.remove(name)
        for name in names:
            path = Path(parent, name)
            sync(path)
            path.chmod(stat.S_IMODE(path.stat().st_mode) & ~0o222)
        sync(Path(parent))


def sync(path: Path) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def size_of(folder: Path) -> int:
    """Bytes of all files below a folder that may be vanishing."""
    size_bytes, waiting = 0, [folder]
    while waiting:  # `os.walk` calls itself for each folder in a folder
        with suppress(OSError), os.scandir(waiting.pop()) as items:
            for item in items:
                if item.is_dir(follow_symlinks=False):
                    waiting.append(Path(item))
                else:
                    size_bytes += item.stat(follow_symlinks=False).st_size
    return size_bytes


def modified(path: Path) -> float:
    """When a file was last written, or a folder last gained or lost one, in seconds since 1970.

    0 where it is gone.
    """
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _free(place: Path) -> str:
    for folder in (place, *place.parents):
        try:
            free = shutil.disk_usage(folder).free
        except OSError:
            continue
        return f"{free / 1e9:.1f} GB" if free >= 1e9 else f"{free / 1e6:.1f} MB ({free} bytes)"
    return "unknown"
