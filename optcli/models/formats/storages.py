"""Whether the tensors of an archive lie within its records: read before torch opens it.

torch takes the size of a storage from the pickle that names it, and the place of a tensor in it from
there too. A pickle that claims more than the record holds makes torch read and write behind it.
"""

from __future__ import annotations

import io
import pickle
import pickletools
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optcli.models.formats import zip_archive

# Bytes of an element by the storage's class.
_ELEMENT_BYTES = {
    **dict.fromkeys(("Byte", "Char", "Bool", "QInt8", "QUInt8", "QUInt4x2", "QUInt2x4", "Untyped"), 1),
    **dict.fromkeys(("Short", "Half", "BFloat16"), 2),
    **dict.fromkeys(("Int", "Float", "QInt32"), 4),
    **dict.fromkeys(("Long", "Double", "ComplexFloat"), 8),
    "ComplexDouble": 16,
}
_PUTS = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})
_PICKLE, _RECORDS = "data.pkl", "data"


@dataclass(frozen=True)
class _Storage:
    count: int


class _Named:
    """Stands for whatever a pickle names and makes: does nothing."""

    name = ""
    checks_places = False

    def __new__(cls, *arguments: Any) -> _Named:
        if cls.checks_places:
            for parts in (arguments, *(each for each in arguments if isinstance(each, tuple))):
                if parts and isinstance(parts[0], _Storage):
                    _check_place(parts)
        return super().__new__(cls)

    def __init__(self, *arguments: Any) -> None: ...

    def __setstate__(self, state: Any) -> None: ...

    def __setitem__(self, key: Any, value: Any) -> None: ...

    def append(self, value: Any) -> None: ...

    def extend(self, values: Any) -> None: ...


class _Reader(pickle.Unpickler):
    """Reads what a pickle says of storages; imports, makes and calls nothing of what it names."""

    def __init__(self, data: bytes, size_of: Callable[[str], int | None], *, places: bool) -> None:
        super().__init__(io.BytesIO(data))
        self._size_of, self._places = size_of, places

    def find_class(self, module: str, name: str) -> Any:
        return type("_Other", (_Named,), {"name": name, "checks_places": self._places})

    def persistent_load(self, pid: Any) -> _Storage:
        if not (isinstance(pid, tuple) and len(pid) >= 5 and pid[0] == "storage"):
            raise ValueError("it names something that is no storage")
        kind = str(getattr(pid[1], "name", "")).removesuffix("Storage")
        key, count = str(pid[2]), pid[4]
        size = self._size_of(key)
        if kind not in _ELEMENT_BYTES or type(count) is not int:
            raise ValueError(f"its storage {key[:40]!r} is of an unknown kind")
        claimed = count * _ELEMENT_BYTES[kind]
        if count < 0 or claimed > (size or 0):
            raise ValueError(
                f"its storage {key[:40]!r} claims {count} elements, {claimed} bytes, and its record has"
                f" {size or 0} bytes"
            )
        return _Storage(count)


def check(data: bytes, size_of: Callable[[str], int | None], *, places: bool = True) -> None:
    """Check a pickle of tensors; `size_of` gives the bytes of the record that a storage names.

    `places` also checks where tensors lie in their storages: torch itself does where Python reads it.
    Raises `ValueError` for a storage that claims more than its record has, and for what is no pickle.
    """
    for operation, argument, _ in pickletools.genops(data):
        # What is kept under a number makes room for all smaller ones.
        if operation.name in _PUTS and int(argument or 0) > len(data):
            raise ValueError("its pickle counts further than it is long")
    try:
        _Reader(data, size_of, places=places).load()
    except (ValueError, RecursionError):
        raise
    except Exception as error:  # bytes that are no pickle fail in every way there is
        raise ValueError(f"its pickle cannot be read: {type(error).__name__} {error}") from error


def check_saved(path: Path, data: bytes | None = None) -> None:
    """Check a file of `torch.save`, or the one in `data`; `path` is named in errors.

    Does nothing for one that is no zip archive: torch itself checks the older form. Raises
    `InputError`.
    """
    if not zipfile.is_zipfile(path if data is None else io.BytesIO(data)):
        return
    with zip_archive.opened(path, "a sound file of torch.save", data) as archive:
        sizes = {name.partition("/")[2]: name for name in archive.namelist()}
        if _PICKLE in sizes:
            size_of = sizes_in(archive, f"{sizes[_PICKLE].partition('/')[0]}/{_RECORDS}")
            check(archive.read(sizes[_PICKLE]), size_of, places=False)


def sizes_in(archive: zipfile.ZipFile, folder: str) -> Callable[[str], int | None]:
    """Gives the bytes of a record in a folder of an archive; None for one that is not there."""

    def size_of(key: str) -> int | None:
        try:
            return archive.getinfo(f"{folder}/{key}").file_size
        except KeyError:
            return None

    return size_of


def reach(sizes: Sequence[int], strides: Sequence[int], offset: int) -> int:
    """How many elements of its storage a tensor needs. Raises `ValueError` for what is none."""
    numbers = (*sizes, *strides, offset)
    sound = len(sizes) == len(strides) and all(type(each) is int and each >= 0 for each in numbers)
    if not sound:
        raise ValueError("a tensor in it has a shape that is none")
    if 0 in sizes:
        return offset
    return offset + 1 + sum((size - 1) * step for size, step in zip(sizes, strides, strict=True))


def _check_place(parts: Sequence[Any]) -> None:
    """`parts` are the storage, the offset in it, sizes and strides."""
    if len(parts) < 4 or not (isinstance(parts[2], tuple) and isinstance(parts[3], tuple)):
        raise ValueError("a tensor in it has a shape that is none")
    needed = reach(parts[2], parts[3], parts[1])
    if needed > parts[0].count:
        raise ValueError(f"a tensor in it reaches to element {needed} of {parts[0].count}")
