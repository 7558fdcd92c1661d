"""Files on their way between machines: each lies under its digest in the remote store.

What is sent here is no entry of the remote store: whoever gets the digests, through Ray, can fetch
it. So nothing that others wrote there takes part in a build.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from optcli import data
from optcli.data import DataSettings
from optcli.errors import OptcliError, first_line
from optcli.files import digest, regular_files
from optcli.files.digest import FileDigests
from optcli.pipeline.keys import PACKAGE
from optcli.pipeline.on_ray.messages import Shared
from optcli.pipeline.remote_devices.messages import Contents, UnreachableError
from optcli.settings import user_code
from optcli.store import Entry, Store, disk, key_of, locks
from optcli.store.remote import Limits, RefusedError, Remote, RemotePlace
from optcli.store.remote.connection import DeniedError, GoneError, RemoteFileSystem
from optcli.store.remote.manifest import object_of

_KIND = "input"
_MARK = "seen-by-ray"


@dataclass(frozen=True)
class Project:
    """The user's code and data that a pass or an evaluation reads; `data` names them relatively.

    `files` maps absolute paths to digests. `names` are files that are listed and not read: they decide
    which images a split takes. They are sent empty.
    """

    data: dict[str, DataSettings]
    files: Mapping[Path, str]
    names: frozenset[Path]

    def contents(self) -> Contents:
        """All of it as a node gets it. Raises OSError."""
        read = {path: (path.stat().st_size, content) for path, content in self.files.items()}
        listed = dict.fromkeys(self.names.difference(read), (0, digest.of_bytes(b"")))
        return {path.as_posix().lstrip("/"): about for path, about in (read | listed).items()}

    def to_send(self) -> dict[Path, tuple[int, str]]:
        """What is uploaded. Raises OSError."""
        return {path: (path.stat().st_size, content) for path, content in self.files.items()}


class _NotingDigests(FileDigests):
    """Notes the files that are asked for: a key holds the digest of each file that it depends on."""

    def __init__(self, known: FileDigests) -> None:
        super().__init__()
        self._source = known
        self.files: dict[Path, str] = {}

    def of(self, path: Path) -> str:
        content = self._source.of(path)
        place = Path(os.path.abspath(path))
        if not place.is_relative_to(PACKAGE):
            self.files[place] = content
        return content


def project_of(
    folder: Path,
    roles: Mapping[str, DataSettings],
    references: Iterable[str],
    digests: FileDigests,
) -> Project:
    """What is read beside artifacts. Raises `UnreachableError` where that is gone.

    `references` name code of the user's own, relative to `folder` as the paths of `roles` are.
    """
    noting = _NotingDigests(digests)
    names: set[Path] = set()
    try:
        for reference in references:
            user_code.digest(reference, folder, noting)
        for settings in roles.values():
            data.ingredients(settings, folder, noting)
            names |= {Path(os.path.abspath(path)) for path in data.listed(settings, folder)}
    except (OptcliError, OSError) as error:
        raise UnreachableError(f"the recipe's code or data cannot be read: {error}") from error
    relative = {role: _relative(of, folder) for role, of in roles.items()}
    return Project(relative, noting.files, frozenset(names))


def _relative(settings: DataSettings, folder: Path) -> DataSettings:
    """The same data, every path of it relative to the recipe's folder."""

    def moved(text: str) -> str:
        return Path(os.path.relpath(folder / regular_files.expanded(text), folder)).as_posix()

    return settings.with_paths(moved)


def send(connection: RemoteFileSystem, files: Mapping[Path, tuple[int, str]]) -> None:
    """Upload what is not there yet. Raises `UnreachableError`."""

    def one(item: tuple[Path, tuple[int, str]]) -> None:
        path, (size_bytes, content) = item
        if not size_bytes or connection.size(object_of(content)) == size_bytes:
            return
        if digest.of_file(path) != content:
            raise RefusedError(f"{path.name} was changed while the build ran")
        connection.upload(object_of(content), path)

    by_content = {about: path for path, about in files.items()}
    try:
        connection.each(one, [(path, about) for about, path in by_content.items()])
    except (GoneError, DeniedError, RefusedError, OSError) as error:
        raise UnreachableError(_without_secrets(connection.place, error)) from error


def receive(remote: Remote, contents: Contents, out: Path) -> None:
    """Fetch files below an empty folder. Raises `UnreachableError`."""
    for name in contents:
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise UnreachableError(f"{name[:80]!r} cannot be the name of a file")
    size_bytes = sum(size for size, _ in contents.values())
    entry = Entry(_KIND, _key(contents), out, {}, {}, "", size_bytes, "", dict(contents))
    try:
        remote.download(entry, out)
    except (GoneError, RefusedError, OSError) as error:
        raise UnreachableError(_without_secrets(remote.place, error)) from error


def fetched(store: Store, remote: Remote, contents: Contents, folder: str = "") -> Entry:
    """Files by their content as an entry of the store, fetched where it has them not.

    `folder` is there afterwards, with files or without. Raises `UnreachableError` and `StoreError`.
    """
    key = _key(contents)
    entry = store.get(_KIND, key)
    if entry is not None:
        return entry
    with store.lock(_KIND, key):
        entry = store.get(_KIND, key)
        if entry is None:
            with store.work(_KIND, key) as work:
                receive(remote, contents, work)
                (work / folder).mkdir(parents=True, exist_ok=True)
                entry = store.put(_KIND, key, work, {}, _ingredients(contents))
        return entry


def shared_with(store: Store, log: Path) -> Shared:
    """A file by which a node knows that it sees this very store. Raises `StoreError`."""
    mark, content = mark_of(store)
    return Shared(mark=mark, content=content, log=log)


def opened(url: str, store: Store) -> Remote:
    """A remote store to fetch from. Raises `UnreachableError` where this machine cannot open it."""
    warnings: list[str] = []
    try:
        return Remote(RemotePlace(url, True), store.root, store.peek, warnings.append, Limits())
    except OptcliError as error:
        raise UnreachableError(f"{error.message} ({error.hint})") from error


def _key(contents: Contents) -> str:
    return key_of(_ingredients(contents))


def _ingredients(contents: Contents) -> dict[str, Any]:
    files = {name: list(about) for name, about in contents.items()}
    return {"step": _KIND, "files": digest.of_value(files)}


def _without_secrets(place: RemotePlace, error: Exception) -> str:
    return f"{place.shown}: {first_line(error)}"


def mark_of(store: Store) -> tuple[Path, str]:
    """A file of the store, and what stands in it. Raises `StoreError`."""
    mark = store.root / _MARK
    # Parts of a build come here side by side.
    with locks.held(store.root / "locks" / f"{_MARK}.lock"), disk.failures(store.root):
        if not mark.exists():
            disk.write_whole(mark, uuid.uuid4().hex.encode())
        return mark, mark.read_text()
