"""Answers on disk: a file a shard under a name of its own, and a manifest that says which are missing.

A shard's file is written under a temporary name and renamed, after the file of its errors: a file that
is there is whole. So a run that was killed goes on with the shards that have none.
"""

from __future__ import annotations

import io
import json
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from optcli.errors import StoreError, UsageError, raised_as
from optcli.serving.inference.listing import Listing
from optcli.serving.prediction import storage
from optcli.serving.prediction.storage import BOXES, CLASSES, DIGEST, MANIFEST, StoragePlace, recorded

Form = Literal["parquet", "jsonl"]
ERRORS = ".errors.jsonl"
SCHEMA = 1
_ANOTHER = "name another --output"
_AGAIN = f"{_ANOTHER}, or add --restart: it removes the answers that are there"


@dataclass(frozen=True)
class Output:
    """A folder of answers. `identity` is what decides them: the artifact, the images, the options.

    `columns` are `classes`, `boxes` or the names of the model's outputs, `further_outputs` what a
    box has beside its place.
    """

    uri: str
    form: Form
    identity: dict[str, Any]
    columns: tuple[str, ...]
    further_outputs: tuple[str, ...] = ()

    def begin(self, listing: Listing, *, restart: bool = False) -> set[str]:
        """The names of the shards that are finished; what is there must be of the same answers.

        Raises `UsageError` where the folder holds something else, `StoreError` where it cannot be
        written.
        """
        place = storage.place_of(self.uri)
        names = self._names(place)
        if restart:
            self._remove(place, names)
            names = []
        known = recorded(self.uri) if MANIFEST in names else {}
        if not known and names:
            raise UsageError(
                "the folder is not empty and has no manifest of answers",
                place=self.uri,
                hint="name a new folder with --output",
            )
        if known:
            self._require_same(known)
        hint = "name another --output"
        with raised_as(StoreError, "the folder cannot be made", of=OSError, place=self.uri, hint=hint):
            place.make()
        shards = {shard.name for shard in listing.shards}
        finished = {name.removesuffix(f".{self.form}") for name in names} & shards
        self.note(listing, finished)
        return finished

    def note(self, listing: Listing, finished: set[str]) -> None:
        """Write the manifest. Raises `StoreError`."""
        missing = [shard.name for shard in listing.shards if shard.name not in finished]
        content = {
            "schema": SCHEMA,
            **self._decided_by(),
            "images": listing.images,
            "shards": len(listing.shards),
            "finished": sorted(finished),
            "missing": missing,
        }
        text = json.dumps(content, indent=1) + "\n"
        storage.write(storage.place_of(self.uri), MANIFEST, text.encode())

    def keep(self, name: str, rows: Sequence[Mapping[str, Any]], failures: Mapping[str, str]) -> None:
        """Write the answers of a shard, and what could not be answered. Raises `StoreError`."""
        place = storage.place_of(self.uri)
        if failures:
            lines = [{"id": id, "reason": reason} for id, reason in failures.items()]
            storage.write(place, f"{name}{ERRORS}", _lines(lines))
        parquet = self.form == "parquet"
        content = _parquet(rows, self.columns, self.further_outputs) if parquet else _lines(rows)
        storage.write(place, f"{name}.{self.form}", content)

    def tidy(self) -> None:
        """Remove what killed runs left half written. Raises `StoreError`."""
        place = storage.place_of(self.uri)
        self._remove(place, [name for name in self._names(place) if name.startswith(".part-")])

    def _decided_by(self) -> dict[str, Any]:
        return {**self.identity, "digests": DIGEST}

    def _names(self, place: StoragePlace) -> list[str]:
        hint = "name another --output"
        with raised_as(StoreError, "the folder cannot be read", of=OSError, place=self.uri, hint=hint):
            return place.names()

    def _remove(self, place: StoragePlace, names: Iterable[str]) -> None:
        message = "old answers cannot be removed"
        hint = "name another --output"
        with raised_as(StoreError, message, of=OSError, place=self.uri, hint=hint):
            for name in names:
                if name == MANIFEST or name.lstrip(".").startswith("part-"):
                    path = posixpath.join(place.path, name)
                    storage.asked(partial(place.fs.rm_file, path))

    def _require_same(self, known: Mapping[str, Any]) -> None:
        expected = {"schema": SCHEMA, **self._decided_by()}
        wrong = [key for key, value in expected.items() if known.get(key) != value]
        if wrong:
            raise UsageError(
                f"the folder holds the answers of another run, which differs in {', '.join(wrong)}",
                place=self.uri,
                hint=_AGAIN,
            )


def is_finished(uri: str, form: Form, listing: Listing) -> bool:
    """Whether a folder has a file for every shard. Raises `StoreError` where it cannot be read."""
    place = storage.place_of(uri)
    with raised_as(StoreError, "the folder cannot be read", of=OSError, place=uri, hint=_ANOTHER):
        names = set(place.names())
    return all(f"{shard.name}.{form}" in names for shard in listing.shards)


def _lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()


def _parquet(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    further_outputs: Sequence[str],
) -> bytes:
    import pyarrow
    import pyarrow.parquet as parquet

    content = io.BytesIO()
    table = pyarrow.Table.from_pylist(
        [dict(row) for row in rows], _schema(pyarrow, columns, further_outputs)
    )
    parquet.write_table(table, content)
    return content.getvalue()


def _schema(pyarrow: Any, columns: Sequence[str], further_outputs: Sequence[str]) -> Any:
    """The schema of the Parquet files: the same for every shard, also for one without an answer."""
    whole, real = pyarrow.int64(), pyarrow.float64()
    named = [("label", whole), ("name", pyarrow.string()), ("score", real)]
    fields: list[tuple[str, Any]] = [("id", pyarrow.string()), (DIGEST, pyarrow.string())]
    if tuple(columns) == (CLASSES,):
        fields += [*named, (CLASSES, pyarrow.list_(pyarrow.struct(named)))]
    elif tuple(columns) == (BOXES,):
        points = pyarrow.list_(pyarrow.list_(real))
        mask = pyarrow.struct([("size", pyarrow.list_(whole)), ("counts", pyarrow.string())])
        forms = {"mask": mask, "keypoints": points, "corners": points}
        box = [*named, ("box", pyarrow.list_(real)), *((name, forms[name]) for name in further_outputs)]
        boxes = pyarrow.list_(pyarrow.struct(box))
        fields += [("height", whole), ("width", whole), (BOXES, boxes)]
    else:
        array = pyarrow.struct([("shape", pyarrow.list_(whole)), ("values", pyarrow.list_(real))])
        fields += [(name, array) for name in columns]
    return pyarrow.schema(fields)
