"""Where images and answers are stored: a folder or anything else that fsspec reads and writes."""

from __future__ import annotations

import errno
import posixpath
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from optcli.errors import InputError, MissingError, StoreError, UsageError, first_line, raised_as
from optcli.files import regular_files
from optcli.store.remote_place import WHOLE_OBJECTS, library_for

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")

_ATTEMPTS, _PAUSE_S = 3, 0.5
# What trying again does not mend.
_FINAL = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
    regular_files.IrregularFileError,
)
# Of a file that is read at once: an image, or the answers of a shard.
MOST_BYTES = 1024 * 1024 * 1024


@dataclass(frozen=True)
class Place:
    """A path on a file system. `whole`: a file appears there at once, as in an object store."""

    fs: AbstractFileSystem
    path: str
    whole: bool = False

    @property
    def is_file(self) -> bool:
        """Whether it is a file. Raises `UsageError` where nothing is there, else `InputError`."""
        try:
            kind = asked(lambda: self.fs.info(self.path)["type"])
        except FileNotFoundError as error:
            raise UsageError(
                "there is no such file or folder", place=self.path, hint="correct --input"
            ) from error
        except OSError as error:
            raise InputError(
                f"it cannot be read: {first_line(error)}",
                place=self.path,
                hint="look at the path, your access to it and the network",
            ) from error
        return bool(kind == "file")

    def is_regular(self, path: str) -> bool:
        """Whether a file below may be opened: on this machine it could be a pipe."""
        return not _is_local(self.fs) or regular_files.is_file(path)

    def names(self) -> list[str]:
        """What lies in the folder, sorted by name; nothing where there is none. Raises OSError."""
        try:
            paths = asked(lambda: self.fs.ls(self.path, detail=False))
        except FileNotFoundError:
            return []
        inside = [str(path).rstrip("/") for path in paths]
        # An object store may list the folder itself, as an empty object of this name.
        return sorted(posixpath.basename(path) for path in inside if path != self.path)

    def files(self) -> dict[str, dict[str, Any]]:
        """Everything below the folder by its path, as fsspec describes it. Raises OSError."""
        if self.whole:
            listed: dict[str, dict[str, Any]] = asked(lambda: self.fs.find(self.path, detail=True))
            return listed
        found: dict[str, dict[str, Any]] = {}
        waiting = [self.path]
        while waiting:
            folder = waiting.pop()
            # `find` leaves out folders that cannot be listed, and says nothing of them.
            for about in asked(partial(self.fs.ls, folder, detail=True)):
                name = str(about["name"])
                if about["type"] == "directory" and name != folder:
                    waiting.append(name)
                else:
                    found[name] = about
        return found

    def make(self) -> None:
        """Make the folder. Raises OSError."""
        if not self.whole:  # folders come with their files there, and s3fs would make a bucket
            asked(lambda: self.fs.makedirs(self.path, exist_ok=True))


def place_of(uri: str) -> Place:
    """The file system and path of a URI; a path without a protocol is one of this machine.

    Raises `UsageError` for an unknown protocol, `MissingError` without its library.
    """
    import fsspec

    protocol = uri.partition("://")[0]
    try:
        # What other processes and machines write must be seen at once.
        fs, path = fsspec.core.url_to_fs(uri, use_listings_cache=False)
    except ImportError as error:
        raise MissingError(
            f"{protocol}: needs a library: {first_line(error)}",
            place=uri,
            hint=library_for(protocol),
        ) from error
    except ValueError as error:
        raise UsageError(
            first_line(error), place=uri, hint="name a folder, or a URL that fsspec reads"
        ) from error
    return Place(fs, path.rstrip("/") or "/", "://" in uri and protocol in WHOLE_OBJECTS)


def _is_local(fs: AbstractFileSystem) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


def read(place: Place, path: str, offset: int | None = None, size: int | None = None) -> bytes:
    """The bytes of a file, or a part of them. What may be a passing fault is tried three times.

    Raises OSError, also for what is no regular file on this machine, and for more than `MOST_BYTES`.
    """
    fs = place_of(path).fs if "://" in path else place.fs
    if (size or 0) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"found {size} bytes, wanted at most {MOST_BYTES}", path)
    if _is_local(fs):  # what is there may be a pipe or `/dev/zero`
        local = fs._strip_protocol(path)
        if offset is None:
            return _again(lambda: regular_files.read(local, MOST_BYTES))
        regular_files.check(local)
    if offset is None:
        return _again(lambda: bytes(fs.cat_file(path)))
    return _again(lambda: bytes(fs.cat_file(path, start=offset, end=offset + (size or 0))))


def write(place: Place, name: str, content: bytes) -> None:
    """Write a file below the place, whole or not at all. Raises `StoreError`."""
    fresh = posixpath.join(place.path, f".{name}.{uuid.uuid4().hex}")
    target = posixpath.join(place.path, name)

    def once() -> None:
        if place.whole:
            place.fs.pipe_file(target, content)
        else:
            place.fs.pipe_file(fresh, content)
            place.fs.mv(fresh, target)

    hint = "look at the permissions and the room there, then run the command again: it continues"
    with raised_as(StoreError, "answers cannot be written", of=OSError, place=target, hint=hint):
        _again(once)


def asked(call: Callable[[], T]) -> T:
    """What a file system gives. Raises OSError also where its library has errors of its own."""
    try:
        return call()
    except OSError:
        raise
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {first_line(error)}") from error


def _again(call: Callable[[], T]) -> T:
    for attempt in range(_ATTEMPTS):
        try:
            return asked(call)
        except _FINAL:
            raise
        except OSError as error:
            if attempt == _ATTEMPTS - 1 or error.errno == errno.EFBIG:
                raise
            time.sleep(_PAUSE_S * 2**attempt)
    raise AssertionError("the last attempt returns or raises")
