"""Answers that `optcli infer` has written: what decides them, and their rows."""

from __future__ import annotations

import io
import json
import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from optcli.data.image_files import FORMATS
from optcli.errors import InputError, StoreError, UsageError, first_line
from optcli.files.digest import of_value
from optcli.pipeline.model_files.built_variant import BuiltVariant
from optcli.serving.prediction import storage
from optcli.serving.prediction.of_recipe import ImageServing

MANIFEST = "manifest.json"
CLASSES, BOXES = "classes", "boxes"
# The digest of an image's bytes: a column of the answers, and in the manifest where they have it.
DIGEST = "sha256"
_DECIDES = ("artifact", "runner", "preparation")
_AGAIN = "name another --output, or add --restart: it removes the answers that are there"


def taking_stored(serving: ImageServing) -> ImageServing:
    """The same for stored images, in the formats of data sets: a server takes what browsers send."""
    return replace(serving, images={**serving.images, "formats": list(FORMATS)})


def deciding(built: BuiltVariant, serving: ImageServing) -> dict[str, str]:
    """What decides an answer beside the image: digests by key of the manifest."""
    told = taking_stored(serving)
    return {
        "artifact": built.artifact.digest,
        "runner": of_value({"name": built.runner_name, **built.options}),
        "preparation": of_value({"images": told.images, "postprocess": told.postprocess}),
    }


def recorded(uri: str) -> dict[str, Any]:
    """The manifest that is there; empty where none is. Raises `InputError` for one that is broken."""
    place = storage.place_of(uri)
    try:
        content = json.loads(storage.read(place, posixpath.join(place.path, MANIFEST)))
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
        place = storage.place_of(self.uri)
        for shard in self.shards:
            path = posixpath.join(place.path, f"{shard}.{self.form}")
            try:
                content = storage.read(place, path)
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


def opened(uri: str, built: BuiltVariant, serving: ImageServing, place: str) -> StoredAnswers:
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
    finished, missing = known.get("finished", []), known.get("missing", [])
    return StoredAnswers(uri, str(known.get("format")), tuple(map(str, finished)), len(missing))


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
