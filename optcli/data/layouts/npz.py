"""NumPy arrays in one file: `npz:PATH`, one array per input, rows are samples."""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

from optcli.data.collection import Collection, Finding, RawSample, RawSamples
from optcli.data.selection import choose, digest_of, split_digest
from optcli.errors import InputError, TrustError, did_you_mean, excerpt
from optcli.files import regular_files
from optcli.files.digest import FileDigests
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import numpy as np

# What zipfile, zlib and NumPy raise over a damaged archive, or one that is something else besides.
DAMAGED = (
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
    struct.error,
    RecursionError,
    TypeError,
    AttributeError,
)
# Masks and zeros compress a thousandfold; more, in a file that is not small, is a bomb.
_MOST_UNPACKED = 1000
_SMALL_BYTES = 1_000_000
TARGETS = ("target", "label", "y")


class Npz(Collection):
    """Arrays by input name, and beside them, as far as there: labels, `id` and `split`.

    The labels are the array that `target` names, else `target`, `label` or `y`. `id` names the
    rows (their numbers otherwise); `split: NAME` takes the rows whose `split` is that name. Pickled
    arrays are refused: reading them could run code.
    """

    holds = "arrays"

    def problems(self) -> list[Finding]:
        if wrong := regular_files.problem(self.path, excerpt(self.settings.place)):
            return [("source", wrong, "a path relative to the recipe")]
        try:
            names = _names(self.path)
        except (OSError, *DAMAGED) as error:
            hint = "copy it again if it was cut short; numpy.savez writes one"
            return [("source", f"not an npz file, or a damaged one: {excerpt(str(error))}", hint)]
        except InputError as error:
            return [("source", error.message, error.hint)]
        findings: list[Finding] = []
        for field in ("target", "array"):
            name = getattr(self.settings, field)
            if name and name not in names:
                findings.append((field, f"no array {name!r} in the file", did_you_mean(name, names)))
        if self.part and "split" not in names:
            hint = "an array `split` gives every row the name of its part"
            findings.append(
                ("split", f"no array 'split' in the file, it has {excerpt(', '.join(names))}", hint)
            )
        return findings

    def ingredients(self, digests: FileDigests) -> dict[str, Any]:
        return {
            "file": digests.of(self.path),
            "split": split_digest(self.settings, self.folder, digests.of),
        }

    def open(self, inputs: Sequence[TensorSpec]) -> RawSamples:
        self.require()
        archive = Archive.of(self.path)
        image = self.settings.input or inputs[0].name
        members = {spec.name: spec.name for spec in inputs}
        if self.settings.array:
            members[image] = self.settings.array
        target = self.settings.target or next((name for name in TARGETS if name in archive.names), None)
        arrays = {name: archive.rows(member) for name, member in members.items()}
        labels = archive.rows(target) if target else None
        count = len(next(iter(arrays.values())))
        extra: dict[str, np.ndarray] = {
            name: archive.rows(name) for name in ("id", "split") if name in archive.names
        }
        everything = {**arrays, **extra}
        if target and labels is not None:
            everything[target] = labels
        for name, array in everything.items():
            if len(array) != count:
                message = f"array {name!r} has {len(array)} rows, the others {count}"
                raise _wrong(self.path, message, "wanted one row a sample in every array")
        rows = self._part(extra.get("split"), count)
        ids = [_text(extra["id"][row]) if "id" in extra else str(row) for row in rows]
        chosen = choose(self.settings, self.folder, ids)
        chosen_rows = [rows[position] for position in chosen]
        return NpzItems(archive, arrays, labels, chosen_rows, [ids[position] for position in chosen])

    def _part(self, split: np.ndarray | None, count: int) -> list[int]:
        if self.part is None or split is None:
            return list(range(count))
        names = [_text(name) for name in split]
        if self.part not in names:
            hint = did_you_mean(self.part, sorted(set(names)))
            raise _wrong(self.path, f"no rows of split {self.part!r}", hint)
        return [row for row, name in enumerate(names) if name == self.part]


@dataclass
class NpzItems(RawSamples):
    """The chosen rows. The arrays are views of what was read; nothing is copied."""

    parallel: ClassVar[bool] = True

    _archive: Archive
    _arrays: dict[str, np.ndarray]
    _labels: np.ndarray | None
    _rows: list[int]
    _ids: list[str]

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, index: int) -> RawSample:
        row, name = self._rows[index], self._ids[index]
        target = None if self._labels is None else self._labels[row]
        if target is not None and target.ndim == 0:
            target = target.item()
        raw = {key: array[row] for key, array in self._arrays.items()}
        return RawSample(name, f"{self._archive.path}, row {row} (id {name})", raw, target)

    def targets(self) -> Iterator[tuple[str, Any]] | None:
        if self._labels is None:
            return None
        labels = self._labels
        return ((name, labels[row]) for name, row in zip(self._ids, self._rows, strict=True))

    def identity(self, index: int) -> tuple[str, str]:
        row = self._rows[index]
        return self._ids[index], digest_of({name: rows[row] for name, rows in self._arrays.items()})


class Archive:
    """An npz whose members are read whole, each once, and shared by all that name the file.

    Raises OSError where it cannot be opened, `InputError` where it is damaged or a bomb.
    """

    _opened: ClassVar[WeakValueDictionary[tuple[Any, ...], Archive]] = WeakValueDictionary()

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: dict[str, np.ndarray] = {}
        try:
            self.names = _names(path)
        except DAMAGED as error:
            message = f"not an npz file, or a damaged one: {excerpt(str(error))}"
            raise _wrong(path, message, "write it with numpy.savez") from error

    @classmethod
    def of(cls, path: Path) -> Archive:
        stat = path.stat()
        key = (str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino)
        archive = cls._opened.get(key)
        if archive is None:
            archive = cls._opened[key] = cls(path)
        return archive

    def rows(self, name: str) -> np.ndarray:
        """One array. Raises `InputError` where it is missing or damaged, `TrustError` for a pickle."""
        if name not in self.names:
            message = f"no array {name!r} in the file, it has {excerpt(', '.join(self.names))}"
            hint = did_you_mean(name, self.names) or "name the array as the model's input"
            raise _wrong(self.path, message, hint)
        if name not in self._read:
            self._read[name] = self._load(name)
        return self._read[name]

    def _load(self, name: str) -> np.ndarray:
        import numpy as np

        try:
            with (
                regular_files.opened(self.path) as stream,
                np.load(stream, allow_pickle=False) as archive,
            ):
                array = archive[name]
            # NumPy gives the bytes of a member that is none of its own.
            if not isinstance(array, np.ndarray):
                raise ValueError("it is no array of NumPy's (.npy)")
        except (OSError, EOFError, KeyError, MemoryError, *DAMAGED) as error:
            if "allow_pickle" in str(error) or "pickle" in str(error):
                raise TrustError(
                    f"array {name!r} is pickled, and reading it could run code",
                    place=str(self.path),
                    hint="save it as a plain numeric or text array",
                ) from error
            hint = "the file is damaged: copy or write it again"
            raise _wrong(self.path, f"array {name!r} cannot be read: {error}", hint) from error
        if array.ndim == 0:
            hint = "wanted the samples along the first dimension"
            raise _wrong(self.path, f"array {name!r} has no rows: it is one value", hint)
        rows: np.ndarray = array
        return rows


def _names(path: Path) -> list[str]:
    """The arrays of an npz. Raises OSError and what `zipfile` raises, `InputError` for a bomb."""
    with regular_files.opened(path) as stream, zipfile.ZipFile(stream) as archive:
        members = archive.infolist()
        packed, unpacked = os.fstat(stream.fileno()).st_size, sum(each.file_size for each in members)
        names = [each.filename.removesuffix(".npy") for each in members]
    if unpacked > _MOST_UNPACKED * max(packed, _SMALL_BYTES):
        message = f"the npz has {packed / 1e6:.1f} MB and unpacks to {unpacked / 1e6:.0f} MB"
        raise _wrong(path, message, "write it with numpy.savez, which does not compress")
    twice = next((name for name in names if names.count(name) > 1), None) if len(names) < 1000 else None
    if twice is not None:
        message = f"the npz has two arrays {excerpt(twice)!r}"
        raise _wrong(path, message, "write it again with numpy.savez")
    return names


def _wrong(path: Path, message: str, hint: str) -> InputError:
    return InputError(message, place=str(path), hint=hint)


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
