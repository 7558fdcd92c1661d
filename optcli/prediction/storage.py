"""Where images and answers are stored: a folder or anything else that fsspec reads and writes."""

from __future__ import annotations

import posixpath
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from optcli.errors import MissingError, StoreError, UsageError, first_line, raised_as

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

T = TypeVar("T")

_EXTRAS = {"gs": "gcs", "abfs": "adl", "az": "adl"}
_ATTEMPTS, _PAUSE_S = 3, 0.5
# What trying again does not mend.
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)


@dataclass(frozen=True)
class Place:
    """A path on a file system."""

    fs: AbstractFileSystem
    path: str

    @property
    def is_file(self) -> bool:
        """Whether it is a file. Raises `UsageError` where nothing is there."""
        try:
            kind = self.fs.info(self.path)["type"]
        except FileNotFoundError as error:
            raise UsageError(
                "there is no such file or folder", place=self.path, hint="correct --input"
            ) from error
        return bool(kind == "file")


def place_of(uri: str) -> Place:
    """The file system and path of a URI; a path without a protocol is one of this machine.

    Raises `UsageError` for an unknown protocol, `MissingError` without its library.
    """
    import fsspec

    protocol = uri.partition("://")[0]
    try:
        fs, path = fsspec.core.url_to_fs(uri)
    except ImportError as error:
        raise MissingError(
            f"{protocol}: needs a library: {first_line(error)}",
            place=uri,
            hint=f"pip install 'fsspec[{_EXTRAS.get(protocol, protocol)}]'",
        ) from error
    except ValueError as error:
        raise UsageError(
            first_line(error), place=uri, hint="name a folder, or a URL that fsspec reads"
        ) from error
    return Place(fs, path.rstrip("/") or "/")


def read(place: Place, path: str, offset: int | None = None, size: int | None = None) -> bytes:
    """The bytes of a file, or a part of them. What may be a passing fault is tried three times.

    Raises OSError.
    """
    fs = place_of(path).fs if "://" in path else place.fs
    if offset is None:
        return _again(lambda: bytes(fs.cat_file(path)))
    return _again(lambda: bytes(fs.cat_file(path, start=offset, end=offset + (size or 0))))


def write(place: Place, name: str, content: bytes) -> None:
    """Write a file below the place, whole or not at all. Raises `StoreError`."""
    fresh = posixpath.join(place.path, f".{name}.{uuid.uuid4().hex}")
    target = posixpath.join(place.path, name)

    def once() -> None:
        place.fs.pipe_file(fresh, content)
        place.fs.mv(fresh, target)

    hint = "look at the permissions and the room there, then run the command again: it continues"
    with raised_as(StoreError, "answers cannot be written", of=OSError, place=target, hint=hint):
        _again(once)


def _again(call: Callable[[], T]) -> T:
    for attempt in range(_ATTEMPTS):
        try:
            return call()
        except _FINAL:
            raise
        except OSError:
            if attempt == _ATTEMPTS - 1:
                raise
            time.sleep(_PAUSE_S * 2**attempt)
    raise AssertionError("the last attempt returns or raises")
