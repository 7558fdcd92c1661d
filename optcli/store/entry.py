"""One entry of the store: a folder `files/` and, written last, `entry.json` with what made it."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from optcli.errors import StoreError
from optcli.files import digest, regular_files
from optcli.files.digest import FileDigests
from optcli.store import disk

if TYPE_CHECKING:
    from optcli.artifact import Artifact

SCHEMA = 1
FACTS = "entry.json"
FILES = "files"
# Beside them, where the entry was fetched: the URL of the remote store.
ORIGIN = "fetched-from.txt"
_MOST_URL_BYTES = 64 * 1024


@dataclass(frozen=True)
class Entry:
    """A finished result. `path` is the folder of its files, `record` the facts given with them.

    `digest` is over the relative names and contents of the files, `contents` maps each name to its
    size in bytes and its digest. `created` is an ISO time in UTC. `origin` is the remote store that it
    was fetched from, "" where it was made here.
    """

    kind: str
    key: str
    path: Path
    record: dict[str, Any]
    ingredients: dict[str, Any]
    digest: str
    size_bytes: int
    created: str
    contents: dict[str, tuple[int, str]]
    origin: str = ""

    def last_used(self) -> float:
        """When it was last handed out, in seconds since 1970; 0 where it is gone."""
        return disk.modified(self.path.parent / FACTS)

    def artifact(self) -> Artifact:
        """The artifact that a step put into the store."""
        from optcli.artifact import Artifact, Format

        record = self.record
        return Artifact(
            self.key,
            Format(record["format"]),
            self.path,
            record["precision"],
            self.size_bytes,
            self.digest,
            record["facts"],
        )

    def step(self) -> dict[str, Any]:
        """What made it: its key and the ingredients of that."""
        return {"key": self.key, **self.ingredients}

    def lineage(self, find: Callable[[str, str], Entry | None]) -> tuple[Entry, ...]:
        """The results that led to an artifact, the source first, itself last.

        `find` gives an entry by kind and key. Those before one that it does not find are left out.
        """
        parent = self.ingredients.get("parent")
        before = find("artifact", parent) if parent else None
        return (*(before.lineage(find) if before is not None else ()), self)


def key_of(ingredients: dict[str, Any]) -> str:
    """The key of what these ingredients make: their digest, 64 hexadecimal digits."""
    return digest.of_value(ingredients)


def write(
    folder: Path, kind: str, key: str, record: dict[str, Any], ingredients: dict[str, Any]
) -> None:
    """Seal the files in `folder / FILES` with an `entry.json`, all of it safely on the disk."""
    files = folder / FILES
    # A worker could have written beside its folder; only what was fetched has an origin.
    (folder / ORIGIN).unlink(missing_ok=True)
    paths = disk.plain_files(files)  # first: settling a pipe would wait for ever
    with ThreadPoolExecutor(1) as waiting:  # for the disk: the digests are worked out meanwhile
        settled = waiting.submit(disk.settle, files)
        sizes = {name: path.stat().st_size for name, path in paths.items()}
        digests = {name: digest.of_file(path) for name, path in paths.items()}
        settled.result()
    body = {
        "schema": SCHEMA,
        "kind": kind,
        "key": key,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "digest": digest.of_value(sorted(digests.items())),
        "size_bytes": sum(sizes.values()),
        "contents": {name: (sizes[name], digests[name]) for name in paths},
        "record": record,
        "ingredients": ingredients,
    }
    body = json.loads(json.dumps(body))  # as it will be read: tuples are lists, keys are strings
    _seal(folder, {"seal": digest.of_value(body), "entry": body})


def adopt(folder: Path, sealed: dict[str, Any], origin: str) -> None:
    """Seal the files in `folder / FILES` as a remote store has sealed them."""
    disk.settle(folder / FILES)
    disk.write_whole(folder / ORIGIN, origin.encode())
    _seal(folder, sealed)


def _seal(folder: Path, sealed: dict[str, Any]) -> None:
    disk.write_whole(folder / FACTS, json.dumps(sealed, indent=1).encode())
    (folder / FACTS).chmod(0o444)
    disk.sync(folder)


def _origin(folder: Path) -> str:
    try:
        return regular_files.read(folder / ORIGIN, _MOST_URL_BYTES).decode(errors="replace") or "?"
    except FileNotFoundError:
        return ""


def read(folder: Path, kind: str, key: str) -> Entry | None:
    """The entry in a folder; None where it was never finished or does not agree with itself."""
    try:
        sealed = regular_files.json_of(folder / FACTS, regular_files.MOST_JSON_BYTES)
        body = sealed["entry"]
        identity = (digest.of_value(body), body["schema"], body["kind"], body["key"])
        if identity != (sealed["seal"], SCHEMA, kind, key):
            return None
        return Entry(
            kind=kind,
            key=key,
            path=folder / FILES,
            record=body["record"],
            ingredients=body["ingredients"],
            digest=body["digest"],
            size_bytes=body["size_bytes"],
            created=body["created"],
            contents={name: (size, content) for name, (size, content) in body["contents"].items()},
            origin=_origin(folder),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def is_complete(entry: Entry) -> bool:
    """Whether every file is there in its full size; contents are not read."""
    sizes = {name: size for name, (size, _) in entry.contents.items()}
    try:
        return all((entry.path / name).stat().st_size == size for name, size in sizes.items())
    except OSError:
        return False


def is_unchanged(entry: Entry, digests: FileDigests) -> bool:
    """Whether every file still has the content that it was kept with, as far as `digests` can tell."""
    try:
        return all(
            digests.of(entry.path / name) == content for name, (_, content) in entry.contents.items()
        )
    except OSError:
        return False


def damage(entry: Entry) -> tuple[str, ...]:
    """What is wrong with an entry's files, every one of them read anew; empty where nothing is."""
    try:
        present = disk.plain_files(entry.path)
    except StoreError as error:
        return (f"{error.place}: {error.message}",)
    problems = [f"{name}: missing" for name in entry.contents if name not in present]
    for name, path in present.items():
        if name not in entry.contents:
            problems.append(f"{name}: does not belong here")
            continue
        try:
            same = digest.of_file(path) == entry.contents[name][1]
        except OSError as error:
            problems.append(f"{name}: cannot be read ({error.strerror})")
        else:
            if not same:
                problems.append(f"{name}: its content has changed")
    return tuple(problems)


class Admission(Protocol):
    """Whether somebody uses an entry that was fetched. All raise an `OptcliError` for one that is not.

    `TrustError` is for what is sound and runs code; anything else says that the entry is damaged.
    """

    def of_record(self, entry: Entry) -> None:
        """Look at what is said of the entry; its files need not be there."""

    def of_files(self, entry: Entry) -> None:
        """Look at the files as well, which have the digests that they should have."""

    def of_model(self, entry: Entry) -> None:
        """Open the model of an entry, once, before the store adopts it."""
