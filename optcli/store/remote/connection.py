"""A remote file system through fsspec, with a time limit and further tries for everything it is asked.

Whatever goes wrong there is one of four errors, each of which a build survives:

- FileNotFoundError: nothing lies there.
- `GoneError`: it does not answer, or fails again and again. Nothing more is asked of it.
- `DeniedError`: it does not take what is written.
- `RefusedError`: what lies there is not what it should be.
"""

from __future__ import annotations

import hashlib
import posixpath
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from optcli.errors import MissingError, UsageError, first_line
from optcli.store.remote_place import WHOLE_OBJECTS, RemotePlace, library_for

T = TypeVar("T")

_PIECE_BYTES = 8 * 1024**2
_LEAST_BYTES_PER_S = 128 * 1024
_THREADS = 8
PART = ".part-"


class GoneError(Exception):
    """The remote store does not answer, or fails again and again."""


class DeniedError(Exception):
    """The remote store does not take what is written."""


class RefusedError(Exception):
    """What lies in the remote store is not what it should be. `objects` are digests of wrong files."""

    def __init__(self, reason: str, objects: Sequence[str] = ()) -> None:
        super().__init__(reason)
        self.objects = tuple(objects)


@dataclass(frozen=True)
class Limits:
    """How long a remote store is waited for, in seconds.

    `answer_s` is for one small request, `pauses_s` lie between the tries of one, `finish_s` is how much
    longer a build may take for uploads.
    """

    answer_s: float = 30.0
    pauses_s: tuple[float, ...] = (0.2, 1.0)
    finish_s: float = 60.0


@dataclass(frozen=True)
class Listed:
    """One file there: `path` below the store's root, when it was written in seconds since 1970."""

    path: str
    size_bytes: int
    written: float


class RemoteFileSystem:
    """One remote file system. Its methods may be called from several threads."""

    def __init__(self, place: RemotePlace, limits: Limits, tell: Callable[[str], None]) -> None:
        """Raises `MissingError` where a library is missing, `UsageError` for an unknown protocol."""
        import fsspec

        self.place, self._limits, self._tell = place, limits, tell
        self._gone = ""
        self._lock, self._opening = threading.Lock(), threading.Lock()
        self._opened: tuple[Any, str] | None = None
        try:
            fsspec.get_filesystem_class(place.protocol)
        except ImportError as error:
            raise MissingError(
                f"the remote store needs a library: {first_line(error)}",
                place=place.shown,
                hint=library_for(place.protocol),
            ) from error
        except ValueError as error:
            raise UsageError(
                f"fsspec knows no protocol {place.protocol!r}",
                place=place.shown,
                hint="write s3://bucket/prefix, gs://bucket/prefix or file:///folder",
            ) from error

    @property
    def is_gone(self) -> bool:
        """Whether it was given up."""
        return bool(self._gone)

    # What is asked

    def read(self, path: str, most_bytes: int) -> bytes:
        """A small file. Raises `RefusedError` where it has more than `most_bytes`."""
        data = self._ask(partial(_piece, path, 0, most_bytes + 1))
        if len(data) > most_bytes:
            raise RefusedError(f"{path} has more than {most_bytes} bytes")
        return data

    def download(self, path: str, target: Path, size_bytes: int, abandoned: threading.Event) -> str:
        """Write a file's first bytes to a new file; gives their digest, "" where it is shorter."""
        checksum = hashlib.sha256()
        with target.open("xb") as stream:
            for start in range(0, size_bytes, _PIECE_BYTES):
                end = min(start + _PIECE_BYTES, size_bytes)
                if abandoned.is_set():
                    raise GoneError("given up")
                piece = self._ask(partial(_piece, path, start, end), end - start)
                checksum.update(piece)
                stream.write(piece)
                if len(piece) != end - start:
                    return ""
        return checksum.hexdigest()

    def size(self, path: str) -> int | None:
        """The size of a file; None where there is none."""
        try:
            return int(self._ask(lambda fs, root: fs.info(f"{root}/{path}"))["size"] or 0)
        except FileNotFoundError:
            return None

    def write(self, path: str, data: bytes) -> None:
        """Write a file, whole or not at all. Raises `DeniedError`."""
        self._put(path, lambda fs, target: fs.pipe_file(target, data), len(data))

    def upload(self, path: str, source: Path) -> None:
        """Write a file from a local one, whole or not at all. Raises `DeniedError`."""
        size_bytes = source.stat().st_size
        if size_bytes <= _PIECE_BYTES:
            self.write(path, source.read_bytes())
        else:
            self._put(path, lambda fs, target: fs.put_file(str(source), target), size_bytes)

    def remove(self, path: str) -> None:
        """Remove a file, there or not. Raises `DeniedError`."""
        with suppress(FileNotFoundError):
            self._ask(lambda fs, root: fs.rm_file(f"{root}/{path}"), writes=True)

    def listing(self, folder: str) -> list[Listed]:
        """All files below a folder, sorted by their path; none where there is no such folder."""
        try:
            files = self._ask(_listing(folder, self.place.protocol), _LEAST_BYTES_PER_S * 300)
        except FileNotFoundError:
            return []
        return sorted(files, key=lambda each: each.path)

    def each(self, act: Callable[[Any], None], items: Sequence[Any]) -> None:
        """Call `act` with every item, several at once. Raises the first error and calls no more."""
        waiting, errors = iter(items), list[BaseException]()
        lock = threading.Lock()

        def work() -> None:
            while not errors:
                with lock:
                    item = next(waiting, self)
                if item is self:
                    return
                try:
                    act(item)
                except BaseException as error:
                    errors.append(error)

        # No pool: the interpreter would wait for its threads at its end, and these may never answer.
        count = min(_THREADS, len(items))
        threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]

    # How it is asked

    def _put(self, path: str, act: Callable[[Any, str], Any], size_bytes: int) -> None:
        def put(fs: Any, root: str) -> None:
            target = f"{root}/{path}"
            if self.place.protocol in WHOLE_OBJECTS:
                act(fs, target)
                return
            fs.makedirs(posixpath.dirname(target), exist_ok=True)
            part = f"{posixpath.dirname(target)}/{PART}{uuid.uuid4().hex}"
            try:
                act(fs, part)
                fs.mv(part, target)
            except BaseException:
                with suppress(Exception):
                    fs.rm_file(part)
                raise

        self._ask(put, size_bytes, writes=True)

    def _ask(self, act: Callable[[Any, str], T], size_bytes: int = 0, *, writes: bool = False) -> T:
        """What `act(file system, root)` gives, in time and tried again where it fails."""
        limit_s = self._limits.answer_s + size_bytes / _LEAST_BYTES_PER_S
        error: Exception | None = None
        for pause_s in (*self._limits.pauses_s, None):
            if self._gone:
                raise GoneError(self._gone)
            try:
                return self._in_time(act, limit_s)
            except TimeoutError:
                raise self._lost(f"no answer within {limit_s:.0f} s") from None
            except IsADirectoryError as refused:
                raise RefusedError(first_line(refused)) from refused
            except FileNotFoundError as missing:
                if not writes and not _without_bucket(missing):
                    raise
                error = missing
            except (PermissionError, NotImplementedError) as denied:
                if writes:
                    raise DeniedError(first_line(denied)) from denied
                error = denied
                break
            except Exception as failed:  # each library has errors of its own
                error = failed
            if pause_s is not None:
                time.sleep(pause_s)
        assert error is not None
        raise self._lost(f"{type(error).__name__}: {first_line(error)}") from error

    def _in_time(self, act: Callable[[Any, str], T], limit_s: float) -> T:
        """Call `act` in a thread of its own, which is left behind where it takes longer."""
        future: Future[T] = Future()

        def work() -> None:
            try:
                future.set_result(act(*self._file_system()))
            except BaseException as error:
                # A library's own time limit is a failure like others: it is tried again.
                timed_out = isinstance(error, TimeoutError)
                future.set_exception(OSError(first_line(error)) if timed_out else error)

        threading.Thread(target=work, daemon=True).start()
        return future.result(limit_s)

    def _file_system(self) -> tuple[Any, str]:
        from fsspec.core import url_to_fs

        with self._opening:
            if self._opened is None:
                # What others write must be seen at once.
                fs, root = url_to_fs(self.place.url, use_listings_cache=False)
                self._opened = fs, str(root).rstrip("/")
            return self._opened

    def _lost(self, reason: str) -> GoneError:
        with self._lock:
            first, self._gone = not self._gone, self._gone or reason
        if first:
            self._tell(f"{self.place.shown}: {reason}; going on without the remote store")
        return GoneError(reason)


def _without_bucket(error: BaseException) -> bool:
    """Whether not even the bucket is there, which S3 tells from a missing object."""
    response = getattr(error.__cause__, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return code == "NoSuchBucket"


def _piece(path: str, start: int, end: int, fs: Any, root: str) -> bytes:
    """What a file has between two places; nothing where it ends before the first one."""
    place = f"{root}/{path}"
    try:
        return bytes(fs.cat_file(place, start=start, end=end))
    except (FileNotFoundError, IsADirectoryError, PermissionError):
        raise
    except Exception:
        # An object store refuses a range that begins behind the end.
        if int(fs.info(place)["size"] or 0) <= start:
            return b""
        raise


def _listing(folder: str, protocol: str) -> Callable[[Any, str], list[Listed]]:
    def act(fs: Any, root: str) -> list[Listed]:
        place = f"{root}/{folder}"
        if protocol in WHOLE_OBJECTS:
            return list(_listed(fs.find(place, detail=True), root))
        return list(_listed(_details(fs, place), root))

    return act


def _details(fs: Any, folder: str) -> dict[str, Mapping[str, Any]]:
    """Every file below a folder. `find` would leave out what it fails to list, and say nothing."""
    files: dict[str, Mapping[str, Any]] = {}
    waiting = [folder]
    while waiting:
        for about in fs.ls(waiting.pop(), detail=True):
            if about["type"] == "directory" and not about.get("islink"):
                waiting.append(str(about["name"]))
            else:
                files[str(about["name"])] = about
    return files


def _listed(files: Mapping[str, Mapping[str, Any]], root: str) -> Iterator[Listed]:
    for name, about in files.items():
        inside = str(name).partition(f"{root}/")[2] if root else str(name)
        size = about.get("size")
        yield Listed(inside, size if isinstance(size, int) else 0, _written(about))


def _written(about: Mapping[str, Any]) -> float:
    """When a file was written, as its file system calls it; 0 where it does not tell."""
    for name in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = about.get(name)
        if isinstance(value, str):
            with suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return 0.0
