"""A remote file system that fails, hangs and lies on request: `faulty:///folder`, through fsspec."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from optcli.errors import OptcliError
from optcli.store import Entry, Store, key_of
from optcli.store.remote import Limits, RemotePlace

PROTOCOL = "faulty"
# Nothing waits for a real network here; a busy machine may take its time. `HASTY` is for what never
# answers.
QUICK = Limits(answer_s=120.0, pauses_s=(0.0, 0.0), finish_s=120.0)
HASTY = replace(QUICK, answer_s=0.5)


def without_s3fs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No s3fs is installed, whether or not an earlier test of this process has used it."""
    monkeypatch.setitem(sys.modules, "s3fs", None)
    for known in ("s3", "s3a"):
        monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, known, raising=False)


@dataclass
class Faults:
    """What happens to a request: `before` is called with its name and path, and may raise or wait.

    `after` changes what is read. `asked` are the requests so far. With `range_fails` a range that
    begins behind the end of a file is an error.
    """

    before: Callable[[str, str], None] = lambda name, path: None
    after: Callable[[str, bytes], bytes] = lambda path, data: data
    asked: list[tuple[str, str]] = field(default_factory=list)
    range_fails: bool = False
    never: threading.Event = field(default_factory=threading.Event)

    def hang(self, name: str, path: str) -> None:
        """Never answer, until the test is over."""
        self.never.wait(600)

    def told(self, name: str, path: str) -> None:
        """Note a request, and do to it what was asked for."""
        self.asked.append((name, path))
        self.before(name, path)

    def count(self, name: str) -> int:
        """How many requests of a name there were."""
        return sum(each == name for each, _ in self.asked)


class FaultyFileSystem(LocalFileSystem):
    """The local file system, with faults."""

    protocol = PROTOCOL
    cachable = False
    faults = Faults()

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.faults.told("open", "")
        super().__init__(*arguments, **options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return super()._strip_protocol(str(path).removeprefix(f"{PROTOCOL}://"))

    def info(self, path: str, **options: Any) -> Any:
        self.faults.told("info", path)
        return super().info(path, **options)

    def cat_file(self, path: str, start: Any = None, end: Any = None, **options: Any) -> Any:
        self.faults.told("cat_file", path)
        if self.faults.range_fails and (start or 0) >= super().info(path)["size"]:
            raise OSError("InvalidRange: the requested range is not satisfiable")
        return self.faults.after(path, super().cat_file(path, start, end, **options))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> Any:
        self.faults.told("pipe_file", path)
        return super().pipe_file(path, value, mode, **options)

    def put_file(self, path1: str, path2: str, callback: Any = None, **options: Any) -> Any:
        self.faults.told("put_file", path2)
        return super().put_file(path1, path2, callback, **options)

    def ls(self, path: str, detail: bool = False, **options: Any) -> Any:
        self.faults.told("ls", path)
        return super().ls(path, detail, **options)


def register() -> Faults:
    """Make `faulty://` known to fsspec; gives its faults, none so far."""
    fsspec.register_implementation(PROTOCOL, FaultyFileSystem, clobber=True)
    FaultyFileSystem.faults = Faults()
    return FaultyFileSystem.faults


class Admits:
    """An admission that takes everything, or raises `error` for the record or for the files."""

    def __init__(self, error: OptcliError | None = None, *, of: str = "record") -> None:
        self.error, self.of = error, of

    def of_record(self, entry: Entry) -> None:
        if self.error is not None and self.of == "record":
            raise self.error

    def of_files(self, entry: Entry) -> None:
        assert entry.path.is_dir()
        if self.error is not None and self.of == "files":
            raise self.error

    def of_model(self, entry: Entry) -> None:
        if self.error is not None and self.of == "model":
            raise self.error


class Machine:
    """One of several machines that share a remote store: a local store, and what it was told."""

    def __init__(self, root: Path, url: str, *, read_only: bool = False) -> None:
        self.store = Store(root, RemotePlace(url, read_only))
        self.heard: list[str] = []
        self.limits = QUICK

    def connected(self) -> Any:
        return self.store.connected(lambda _, message: self.heard.append(message), self.limits)

    def make(self, *ingredients: dict[str, Any], kind: str = "artifact", **files: bytes) -> list[Entry]:
        """Make results, and wait until they are uploaded."""
        with self.connected():
            return [made(self.store, each, kind, **files) for each in ingredients]

    def find(self, ingredients: dict[str, Any], kind: str = "artifact", **options: Any) -> Entry | None:
        """What the machine finds, in its store or in the remote one."""
        admission = options.pop("admission", Admits())
        with self.connected():
            return self.store.get(kind, key_of(ingredients), admission=admission, **options)


def made(store: Store, ingredients: dict[str, Any], kind: str = "artifact", **files: bytes) -> Entry:
    """A result that was made here; `files` by their names, with `__` for a slash."""
    key = key_of(ingredients)
    contents = files or {"model": b"graph", "empty": b"", "parts__first": b"1" * 1000}
    with store.lock(kind, key), store.work(kind, key) as work:
        for name, data in contents.items():
            path = work / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return store.put(kind, key, work, {"format": "onnx"}, ingredients)


def files_of(entry: Entry) -> dict[str, bytes]:
    """The content of an entry by file."""
    return {name: (entry.path / name).read_bytes() for name in entry.contents}
