"""Archives of torch: what optcli reads of them before torch opens them.

- The members (`opened`): names, sizes and kinds. Of two members with one name the zipfile of Python and
  torch's own reader take different ones, and torch compares names without case.
- The operators (`Scan`). A doubt is what a person must trust: objects of classes, which only a pickle
  that runs code makes, and operators of a library that would be imported by the name in the file.

The rest of a program is not looked into: a worker that can only read opens it, or the person trusts it
(`pipeline.trusting`). Of weights torch itself checks that they lie in their records.
"""

from __future__ import annotations

import importlib
import importlib.util
import struct
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from optcli.errors import InputError, TrustError, first_line

_ENCRYPTED = 0x1
_LARGEST_MEMBER_COUNT = 200_000
# What a compressed member may become. torch compresses the text of programs alone.
_LARGEST_INFLATED_BYTES = 256 * 1024**2
_LINK = 0o120000
_FOLDER_FLAG = 0x10
# What zipfile raises for damaged files.
_UNSOUND = (
    *(OSError, ValueError, KeyError, EOFError, NotImplementedError),
    *(struct.error, zlib.error, zipfile.BadZipFile),
)

_MOST_DOUBTS = 10
# Whose operators torch brings itself.
_TORCHS = frozenset(
    {
        *("aten", "prim", "prims", "quantized", "_quantized", "mkldnn", "mkldnn_prepacked", "onednn"),
        *("prepacked", "sparse", "rnn", "xnnpack", "profiler", "higher_order"),
    }
)


@contextmanager
def opened(path: Path, what: str) -> Iterator[zipfile.ZipFile]:
    """The archive, once its members are known to be what torch writes.

    `what` names the kind of file for messages. Raises `InputError` for what is no sound archive, for
    one that can be read in more than one way, and for one that unpacks to more than it may.
    """
    try:
        if not path.is_file():  # a pipe would be waited for
            raise ValueError("it is no file")
        with path.open("rb") as stream, zipfile.ZipFile(stream) as archive:
            _check(archive, path)
            yield archive
    except RecursionError as error:
        raise InputError(
            f"this is not {what}: something in it is nested too deeply",
            place=str(path),
            hint="write it again with torch",
        ) from error
    except _UNSOUND as error:
        raise InputError(
            f"this is not {what}: {error}", place=str(path), hint="copy it again, or write it again"
        ) from error


def below_top(archive: zipfile.ZipFile, path: Path) -> dict[str, str]:
    """The names of members below the one folder at the top, and their full names."""
    tops = {name.partition("/")[0] for name in archive.namelist()}
    if len(tops) != 1:
        raise _refused(f"it has {len(tops)} folders at the top, wanted one", path)
    return {name.partition("/")[2]: name for name in archive.namelist()}


def _check(archive: zipfile.ZipFile, path: Path) -> None:
    members = archive.infolist()
    if not 0 < len(members) <= _LARGEST_MEMBER_COUNT:
        raise _refused(f"it has {len(members)} members", path)
    names: set[str] = set()
    for member in members:
        _check_name(member, path)
        # torch compares the names of members without case.
        folded = member.filename.casefold()
        if folded in names:
            raise _refused(f"two of its members are called {member.filename!r}", path)
        names.add(folded)
        _check_kind(member, path)
    inflated = sum(member.file_size for member in members if member.compress_type)
    if inflated > _LARGEST_INFLATED_BYTES:
        raise _refused(f"its compressed members unpack to {inflated} bytes", path)


def _check_name(member: zipfile.ZipInfo, path: Path) -> None:
    name = member.orig_filename
    parts = name.split("/")
    # torch reads an entry of a folder as any other, and writes none.
    if name.endswith("/") or member.external_attr & _FOLDER_FLAG:
        raise _refused(f"{name!r} is the entry of a folder", path)
    odd = not name.isprintable() or "\\" in name or name != member.filename
    if odd or any(part in ("", ".", "..") for part in parts) or ":" in parts[0]:
        raise _refused(f"one of its members is called {name!r}", path)


def _check_kind(member: zipfile.ZipInfo, path: Path) -> None:
    if member.flag_bits & _ENCRYPTED:
        raise _refused(f"{member.filename!r} is encrypted", path)
    if (member.external_attr >> 16) & 0o170000 == _LINK:
        raise _refused(f"{member.filename!r} is a link", path)
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _refused(f"{member.filename!r} is compressed in a way that torch does not write", path)
    if member.compress_type == zipfile.ZIP_STORED and member.file_size != member.compress_size:
        raise _refused(f"{member.filename!r} has two sizes", path)
    if not member.compress_size and member.file_size:  # torch gives what was in memory there
        raise _refused(f"{member.filename!r} has two sizes", path)


def _refused(what: str, path: Path) -> InputError:
    return InputError(
        f"this archive can be read in more than one way: {what}",
        place=str(path),
        hint="write it again with torch; --trust opens no such file",
    )


@dataclass
class Scan:
    """Whose operators are called: `namespaces` of known libraries, and `unknown` ones.

    `doubts` are half sentences about the file: `it calls the operator mine.f, which torch lacks`.
    """

    namespaces: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    doubts: list[str] = field(default_factory=list)

    def doubt(self, what: str) -> None:
        """Note what a person must trust; the first few are enough to be shown."""
        if len(self.doubts) < _MOST_DOUBTS and what not in self.doubts:
            self.doubts.append(what)

    def call(self, namespace: str, name: str, libraries: Collection[str]) -> None:
        """Note an operator or a class of a namespace; `libraries` are those that may be imported."""
        if namespace in libraries:
            self.namespaces.add(namespace)
        elif namespace not in _TORCHS:
            self.unknown.add(namespace)
            self.doubt(f"it calls the operator {namespace[:40]}.{name[:40]}, which torch lacks")

    def require(self, path: Path, what: str, *, trust: bool) -> None:
        """Raise `TrustError` for a doubt about a file, a `what`, that nobody said to trust."""
        if self.doubts and not trust:
            raise TrustError(
                f"opening this {what} could run code: {self.doubts[0]}",
                place=str(path),
                hint="add --trust where you know who made it, or write it again from its network",
            )

    def unreadable(self, path: Path, what: str, writer: str, error: Exception) -> InputError:
        """The error for a file, a `what`, that torch does not read although the scan let it through."""
        lacking = f" and the library of {', '.join(sorted(self.unknown))}" if self.unknown else ""
        return InputError(
            f"torch cannot read this {what}: {first_line(error)}",
            place=str(path),
            hint=f"write it again with {writer} of this version of torch{lacking}",
        )

    def bring_unknown(self) -> None:
        """Import the packages that are called like unknown namespaces, where there are any.

        Only for a file that a person trusts: it says what is imported. What is not found is left to
        torch, which names the operator that it lacks.
        """
        for name in sorted(self.unknown):
            with suppress(ImportError, ValueError):
                if importlib.util.find_spec(name) is not None:
                    importlib.import_module(name)
