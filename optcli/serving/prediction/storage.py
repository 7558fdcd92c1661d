"""Where images and answers are stored, by fsspec, and the answers that `optcli infer` has written."""

from __future__ import annotations

import errno
import io
import json
import posixpath
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from optcli import environment
from optcli.data.image_files import FORMATS
from optcli.errors import InputError, MissingError, StoreError, UsageError, first_line, raised_as
from optcli.files import regular_files
from optcli.files.digest import of_value
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.serving.prediction.of_recipe import ImageServing
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
MANIFEST = "manifest.json"
CLASSES, BOXES = "classes", "boxes"
# The digest of an image's bytes: a column of the answers, and in the manifest where they have it.
DIGEST = "sha256"
_DECIDES = ("artifact", "runner", "preparation")
_AGAIN = "name another --output, or add --restart: it removes the answers that are there"


@dataclass(frozen=True)
class StoragePlace:
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
        by_name: dict[str, dict[str, Any]] = {}
        waiting = [self.path]
        while waiting:
            folder = waiting.pop()
            # `find` leaves out folders that cannot be listed, and says nothing of them.
            for about in asked(partial(self.fs.ls, folder, detail=True)):
                name = str(about["name"])
                if about["type"] == "directory" and name != folder:
                    waiting.append(name)
                else:
                    by_name[name] = about
        return by_name

    def make(self) -> None:
        """Make the folder. Raises OSError."""
        if not self.whole:  # folders come with their files there, and s3fs would make a bucket
            asked(lambda: self.fs.makedirs(self.path, exist_ok=True))


def place_of(uri: str) -> StoragePlace:
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
    return StoragePlace(fs, path.rstrip("/") or "/", "://" in uri and protocol in WHOLE_OBJECTS)


def _is_local(fs: AbstractFileSystem) -> bool:
    from fsspec.implementations.local import LocalFileSystem

    return isinstance(fs, LocalFileSystem)


def read(place: StoragePlace, path: str, offset: int | None = None, size: int | None = None) -> bytes:
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


def write(place: StoragePlace, name: str, content: bytes) -> None:
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


def taking_stored(serving: ImageServing) -> ImageServing:
    """The same for stored images, in the formats of data sets: a server takes what browsers send."""
    return replace(serving, images={**serving.images, "formats": list(FORMATS)})


def deciding(built: BuiltVariant, serving: ImageServing) -> dict[str, str]:
    """What decides an answer beside the image: digests by key of the manifest."""
    stored = taking_stored(serving)
    return {
        "artifact": built.artifact.digest,
        "runner": of_value({"name": built.runner_name, **built.options}),
        "preparation": of_value({"images": stored.images, "postprocess": stored.postprocess}),
    }


def recorded(uri: str) -> dict[str, Any]:
    """The manifest that is there; empty where none is. Raises `InputError` for one that is broken."""
    place = place_of(uri)
    try:
        content = json.loads(read(place, posixpath.join(place.path, MANIFEST)))
        if not isinstance(content, dict) or not content:
            raise ValueError("it holds no mapping")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InputError(
            f"{MANIFEST} cannot be read: {first_line(error)}", place=uri, hint=_AGAIN
        ) from error
    return content


@dataclass(frozen=True)
class StoredAnswers:
    """A folder of answers to images, classes or boxes. `shards` are finished, `missing` are not."""

    uri: str
    form: str
    shards: tuple[str, ...]
    missing: int

    def rows(self) -> Iterator[tuple[bytes, dict[str, Any]]]:
        """The digest of each image's bytes, and the answer that a server gives to it.

        Raises `InputError` for a file that is broken, `StoreError` for one that cannot be read.
        """
        place = place_of(self.uri)
        for shard in self.shards:
            path = posixpath.join(place.path, f"{shard}.{self.form}")
            try:
                content = read(place, path)
            except OSError as error:
                raise StoreError(
                    f"the answers cannot be read: {first_line(error)}",
                    place=path,
                    hint="run `optcli infer` again: it answers the missing images",
                ) from error
            try:
                for row in rows_of(content, self.form):
                    yield bytes.fromhex(row[DIGEST]), _answer(row)
            except Exception as error:  # pyarrow raises its own kinds, and rows may lack anything
                raise InputError(
                    f"these are no answers of `optcli infer`: {first_line(error)}",
                    place=path,
                    hint="remove the file and run `optcli infer` again",
                ) from error


def open_answers(uri: str, built: BuiltVariant, serving: ImageServing, place: str) -> StoredAnswers:
    """The answers at `uri`, which a server of this variant would give, too.

    `place` is the option that names them, for errors. Raises `UsageError` for what is none, for answers
    of another artifact, runner or recipe, and for those without digests of their images.
    """
    known = recorded(uri)
    if not known:
        raise UsageError(
            f"{uri} has no {MANIFEST}: it holds no answers",
            place=place,
            hint="name the --output of `optcli infer`",
        )
    again = f"answer the images with this variant: optcli infer {built.name} --output NEW-FOLDER"
    outputs = deciding(built, replace(serving, postprocess={}))
    if known.get("preparation") == outputs["preparation"]:
        raise UsageError(
            "these are outputs of the model, not answers", place=place, hint=f"{again}, without --raw"
        )
    wanted = deciding(built, serving)
    others = [name for name in _DECIDES if known.get(name) != wanted[name]]
    if others:
        raise UsageError(
            f"these are answers of another {' and another '.join(others)}", place=place, hint=again
        )
    if known.get("format") == "parquet":
        require_parquet(uri)
    finished, missing = known.get("finished", []), known.get("missing", [])
    return StoredAnswers(uri, str(known.get("format")), tuple(map(str, finished)), len(missing))


def require_parquet(place: str, otherwise: str = "") -> None:
    """Raise `MissingError` where Parquet is not to be had; `otherwise` says what needs none."""
    if absent := environment.missing(environment.Needs(("pyarrow",))):
        raise MissingError(absent[0].what, place=place, hint=f"{otherwise}{absent[0].hint}")


def rows_of(content: bytes, form: str) -> Iterator[dict[str, Any]]:
    """The rows of a file of answers in its format, `parquet` or `jsonl`."""
    if form == "parquet":
        import pyarrow.parquet as parquet

        yield from parquet.read_table(io.BytesIO(content)).to_pylist()
    else:
        yield from map(json.loads, content.splitlines())


def _answer(row: Mapping[str, Any]) -> dict[str, Any]:
    """The answer as `Postprocess` makes it: a class without a name has no key for it."""
    if CLASSES in row:
        return {CLASSES: [_named(each) for each in row[CLASSES]]}
    size = {"height": row["height"], "width": row["width"]}
    return {"image": size, BOXES: [_named(each) for each in row[BOXES]]}


def _named(one: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in one.items() if key != "name" or value is not None}
