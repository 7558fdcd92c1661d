"""What is stored: images of a folder, of tar files or of a Parquet list, divided into shards.

The same input gives the same shards, in the same order and with the same names.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optcli.data.image_files import SUFFIXES
from optcli.errors import InputError, UsageError, first_line
from optcli.serving.prediction.storage import StoragePlace, place_of, require_parquet

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

TAR, PARQUET = ".tar", (".parquet", ".pq")
_COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
# Columns of a list.
_PATH, _ID = "path", "id"


@dataclass(frozen=True)
class Stored:
    """One image: its `id`, unique in the input, and where its bytes lie.

    `path` is that of a file, as the input's file system has it or as a URL. `offset` is its place in a
    tar file, None: it is the whole file. `size` is how many bytes it has, None: not known.
    """

    id: str
    path: str
    offset: int | None = None
    size: int | None = None


@dataclass(frozen=True)
class Shard:
    """Images that one worker answers and one file holds the answers of."""

    name: str
    images: tuple[Stored, ...]


@dataclass(frozen=True)
class Listing:
    """All shards of an input. `digest` is over every id, place and size: not over the pixels."""

    uri: str
    shards: tuple[Shard, ...]
    digest: str

    @property
    def images(self) -> int:
        """How many images there are."""
        return sum(len(shard.images) for shard in self.shards)


def listing(uri: str, per_shard: int) -> Listing:
    """The images below a URI that fsspec reads, in shards of at most `per_shard`.

    A folder is looked through with all folders in it: image files, and the images in tar files. A tar
    file and a Parquet list may be named, too. A list has the column `path`, relative to the list or a
    URL, and may have `id`. Shards end where a tar file ends.

    Raises `UsageError` where nothing is there, `InputError` for a file that cannot be read, and
    `MissingError` without the library of its protocol.
    """
    place = place_of(uri)
    groups = list(_groups(place, uri))
    shards: list[Shard] = []
    for group in groups:
        images = iter(group)
        while chunk := tuple(itertools.islice(images, per_shard)):
            shards.append(Shard(f"part-{len(shards):06d}-{_digest(chunk)[:8]}", chunk))
    if not shards:
        raise UsageError(
            "there are no images",
            place=uri,
            hint=f"wanted files ending in {', '.join(SUFFIXES)}, tar files or a Parquet list of paths",
        )
    _require_distinct(shards, uri)
    whole = hashlib.sha256("".join(shard.name for shard in shards).encode()).hexdigest()
    return Listing(uri, tuple(shards), whole)


def _digest(images: tuple[Stored, ...]) -> str:
    content = [[each.id, each.path, each.offset, each.size] for each in images]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _require_distinct(shards: list[Shard], uri: str) -> None:
    seen: set[str] = set()
    for image in itertools.chain.from_iterable(shard.images for shard in shards):
        if image.id in seen:
            raise InputError(
                f"two images have the id {image.id!r}", place=uri, hint="give every image an id"
            )
        seen.add(image.id)


def _groups(place: StoragePlace, uri: str) -> Iterator[Iterator[Stored]]:
    """Images that may share a shard."""
    lower = place.path.lower()
    if lower.endswith(_COMPRESSED):
        raise UsageError(
            "a compressed tar file cannot be read from the middle",
            place=uri,
            hint="store it as .tar: images are compressed already",
        )
    if place.is_file:
        if lower.endswith(PARQUET):
            yield _of_list(place, uri)
        elif lower.endswith(TAR):
            yield _of_tar(place.fs, place.path, posixpath.basename(place.path), uri)
        else:
            raise UsageError(
                "this is a file", place=uri, hint="name a folder, a .tar file or a Parquet list"
            )
        return
    files = _files(place, uri)
    images = [each for each in files if each[0].lower().endswith(SUFFIXES)]
    yield (Stored(id, path, size=size) for id, path, size in images)
    for id, path, _ in files:
        if id.lower().endswith(TAR) and place.is_regular(path):
            yield _of_tar(place.fs, path, id, uri)


def _files(place: StoragePlace, uri: str) -> list[tuple[str, str, int | None]]:
    """Name below the folder, path and size of every file, sorted; hidden ones are left out."""
    try:
        entries = place.files()
    except OSError as error:
        raise InputError(
            f"the folder cannot be read: {first_line(error)}", place=uri, hint="look at its permissions"
        ) from error
    named = sorted(
        (posixpath.relpath(path, place.path), path, entry.get("size"))
        for path, entry in entries.items()
    )
    return [each for each in named if not any(part.startswith(".") for part in each[0].split("/"))]


def _of_tar(fs: AbstractFileSystem, path: str, name: str, uri: str) -> Iterator[Stored]:
    import tarfile

    try:
        with fs.open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:") as archive:
            for member in archive:
                if member.isreg() and member.name.lower().endswith(SUFFIXES) and not member.issparse():
                    yield Stored(f"{name}/{member.name}", path, member.offset_data, member.size)
    except (OSError, tarfile.TarError) as error:
        raise InputError(
            f"the tar file {name} cannot be read: {first_line(error)}",
            place=uri,
            hint="write it again without compression",
        ) from error


def _of_list(place: StoragePlace, uri: str) -> Iterator[Stored]:
    require_parquet(uri)
    import pyarrow
    import pyarrow.parquet as parquet

    try:
        with place.fs.open(place.path, "rb") as file:
            names = parquet.read_schema(file).names
            if _PATH not in names:
                raise InputError(
                    f"the list has the columns {', '.join(names)}, wanted `{_PATH}`",
                    place=uri,
                    hint=f"write the images' paths into a column `{_PATH}`",
                )
            columns = [_PATH, *([_ID] if _ID in names else [])]
            file.seek(0)
            table: dict[str, list[Any]] = parquet.read_table(file, columns=columns).to_pydict()
    except (OSError, pyarrow.ArrowException) as error:
        raise InputError(
            f"the list cannot be read: {first_line(error)}", place=uri, hint="wanted a Parquet file"
        ) from error
    folder = posixpath.dirname(place.path)
    for row, path in enumerate(table[_PATH]):
        if not isinstance(path, str) or not path:
            raise InputError(
                f"row {row} of the list has the path {path!r}", place=uri, hint="wanted text"
            )
        id = str(table[_ID][row]) if _ID in table else path
        away = "://" in path or posixpath.isabs(path)
        yield Stored(id, path if away else posixpath.join(folder, path))
