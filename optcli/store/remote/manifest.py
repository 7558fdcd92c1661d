"""What a remote store says of an entry: the local `entry.json`, read as from somebody who may lie.

    v1/entries/<kind>/<key>.json            as the local store writes it; written last
    v1/objects/<first two>/<digest>         the content of one file, under its SHA-256

Nothing here is a path before its name has been checked, and no size is believed.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from optcli.files import digest, regular_files
from optcli.store.entry import SCHEMA, Entry, key_of
from optcli.store.remote.connection import RefusedError

ENTRIES, OBJECTS = "v1/entries", "v1/objects"
MOST_BYTES = 16 * 1024**2
_MOST_FILES = 100_000
_MOST_FILE_BYTES = 64 * 1024**3
_MOST_NAME, _MOST_PART = 1024, 255
_DIGEST = re.compile(r"[0-9a-f]{64}")
_KIND = re.compile(r"[a-z]{1,40}")


def path_of(kind: str, key: str) -> str:
    """Where the manifest of an entry lies, below the root of a remote store."""
    return f"{ENTRIES}/{kind}/{key}.json"


def object_of(content: str) -> str:
    """Where the file of a digest lies."""
    return f"{OBJECTS}/{content[:2]}/{content}"


def identity_of(path: str) -> tuple[str, str] | None:
    """The kind and key of the manifest at a path; None for a path that is none."""
    parts = path.removeprefix(f"{ENTRIES}/").split("/")
    if not path.startswith(f"{ENTRIES}/") or len(parts) != 2 or not parts[1].endswith(".json"):
        return None
    kind, key = parts[0], parts[1].removesuffix(".json")
    return (kind, key) if _KIND.fullmatch(kind) and _DIGEST.fullmatch(key) else None


def read(data: bytes, kind: str, key: str, files: Path, origin: str) -> Entry:
    """The entry that a manifest describes, whose files will lie in `files`.

    Raises `RefusedError` with the reason where it is damaged, is of another key, or asks for what no
    entry has.
    """
    try:
        return _entry(regular_files.parsed_json(data), kind, key, files, origin)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedError(f"its manifest cannot be read ({str(error)[:200]})") from error


def sealed(entry: Entry) -> dict[str, Any]:
    """What `entry.json` holds of an entry."""
    body = {
        "schema": SCHEMA,
        "kind": entry.kind,
        "key": entry.key,
        "created": entry.created,
        "digest": entry.digest,
        "size_bytes": entry.size_bytes,
        "contents": {name: list(of) for name, of in entry.contents.items()},
        "record": entry.record,
        "ingredients": entry.ingredients,
    }
    return {"seal": digest.of_value(body), "entry": body}


def _entry(record: Any, kind: str, key: str, files: Path, origin: str) -> Entry:
    _require(isinstance(record, dict) and isinstance(record.get("entry"), dict), "it holds no entry")
    body = record["entry"]
    _require(record.get("seal") == digest.of_value(body), "its seal does not fit")
    _require(type(body["schema"]) is int and body["schema"] == SCHEMA, "it has another schema")
    _require((body["kind"], body["key"]) == (kind, key), "it is of another entry")
    for name in ("record", "ingredients", "contents"):
        _require(isinstance(body[name], dict), f"{name} is no mapping")
    _require(key_of(body["ingredients"]) == key, "its ingredients do not make its key")
    contents = {name: _content(name, value) for name, value in body["contents"].items()}
    _require(len(contents) <= _MOST_FILES, f"it has more than {_MOST_FILES} files")
    _require_apart(list(contents))
    size_bytes = sum(size for size, _ in contents.values())
    _require(size_bytes <= _MOST_FILE_BYTES, f"it has {size_bytes} bytes, allowed {_MOST_FILE_BYTES}")
    digests = {name: content for name, (_, content) in contents.items()}
    _require(body["size_bytes"] == size_bytes, "its size is not that of its files")
    _require(body["digest"] == digest.of_value(sorted(digests.items())), "its digest does not fit")
    _require(isinstance(body["created"], str) and len(body["created"]) < 64, "created is no time")
    return Entry(
        kind=kind,
        key=key,
        path=files,
        record=body["record"],
        ingredients=body["ingredients"],
        digest=body["digest"],
        size_bytes=size_bytes,
        created=body["created"],
        contents=contents,
        origin=origin,
    )


def _content(name: str, value: Any) -> tuple[int, str]:
    _require(_is_plain(name), f"{name[:80]!r} cannot be the name of a file")
    _require(isinstance(value, list) and len(value) == 2, f"{name[:80]!r} has no size and digest")
    size, content = value
    _require(type(size) is int and size >= 0, f"the size of {name[:80]!r} is {str(size)[:40]!r}")
    _require(isinstance(content, str) and bool(_DIGEST.fullmatch(content)), f"{name[:80]!r}: no digest")
    return size, content


def _is_plain(name: str) -> bool:
    """Whether a name leads to a file below its folder, on every system, and to no cache of Python."""
    if not name or len(name) > _MOST_NAME or not name.isprintable() or "\\" in name or ":" in name:
        return False
    parts = name.split("/")
    too_long = any(len(part.encode()) > _MOST_PART for part in parts)
    return not too_long and not {"", ".", "..", "__pycache__"} & set(parts)


def _require_apart(names: list[str]) -> None:
    """No file has the name of another one's folder, nor one that differs in case alone."""
    folded = {name.casefold() for name in names}
    _require(len(folded) == len(names), "two of its files have one name")
    for name in folded:
        parts = name.split("/")
        inside = any("/".join(parts[:count]) in folded for count in range(1, len(parts)))
        _require(not inside, f"{name[:80]!r} lies in a file")


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise ValueError(what)
