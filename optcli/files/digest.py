"""Digests of values and files: by these optcli tells whether two things are the same.

Every digest is SHA-256 in hexadecimal. Reading large files again and again would make a cached
build slow, so `FileDigests` remembers a file's digest by path, size, modification time and inode.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from optcli.files import regular_files

# Longer than a tick of any file system's clock (FAT: 2 s); and of the kernel's, by which those go that
# tell parts of a millisecond.
_SETTLED_NS = 3_000_000_000
_TICK_NS = 100_000_000


def of_value(value: Any) -> str:
    """Digest of plain JSON data, whatever the order of keys. Raises TypeError for other values."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return of_bytes(text.encode(errors="surrogatepass"))  # file names need not be UTF-8


def of_bytes(data: bytes | memoryview) -> str:
    """Digest of raw bytes."""
    return hashlib.sha256(data).hexdigest()


def of_file(path: Path) -> str:
    """Digest of a regular file's content, read in pieces. Raises OSError, for a pipe or device too."""
    with regular_files.opened(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def files_below(folder: Path) -> list[Path]:
    """Every file below a folder, sorted by its relative path; caches of Python are left out."""
    paths = (Path(root, name) for root, _, names in os.walk(folder) for name in names)
    return sorted(path for path in paths if "__pycache__" not in path.parts)


class FileDigests:
    """File digests, remembered in a JSON file between runs.

    A memory that is missing or damaged is simply begun again; it is never trusted for a file whose
    size, inode, or times of modification and change (ns) differ. A file changed within the last
    `_SETTLED_NS` is read again by the next run: a second change within one tick of the clock would go
    unseen. In one run `_TICK_NS` is enough, where the file's times are fine.
    """

    def __init__(self, memory: Path | None = None) -> None:
        self._memory = memory
        self._known: dict[str, tuple[list[int], str]] = {}
        self._young: dict[str, tuple[list[int], str]] = {}
        self._changed = False
        if memory is not None:
            with suppress(OSError, ValueError, TypeError, AttributeError):
                entries = regular_files.json_of(memory, regular_files.MOST_JSON_BYTES).items()
                self._known = {place: (list(mark), str(digest)) for place, (mark, digest) in entries}

    def of(self, path: Path) -> str:
        """Digest of a file's content. Raises OSError."""
        place = os.path.abspath(
            path
        )  # links need no resolving: the inode below tells their targets apart
        stat = regular_files.check(place)
        mark = [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
        for memory in (self._known, self._young):
            entry = memory.get(place)
            if entry is not None and entry[0] == mark:
                return entry[1]
        changed_ns = max(stat.st_mtime_ns, stat.st_ctime_ns)
        age_ns = time.time_ns() - changed_ns
        digest = of_file(Path(place))
        if time.time_ns() - changed_ns > _SETTLED_NS:
            self._known[place] = (mark, digest)
            self._changed = True
        elif age_ns > _TICK_NS and stat.st_mtime_ns % 1_000_000 and stat.st_ctime_ns % 1_000_000:
            self._young[place] = (mark, digest)
        return digest

    def of_folder(self, folder: Path) -> str:
        """Digest over relative names and contents of all files below a folder. Raises OSError."""
        files = files_below(folder)
        return of_value([[path.relative_to(folder).as_posix(), self.of(path)] for path in files])

    def save(self) -> None:
        """Write the memory, if there is one and anything new was learned; failing to is no error."""
        if self._memory is None or not self._changed:
            return
        with suppress(OSError):
            self._memory.parent.mkdir(parents=True, exist_ok=True)
            fresh = self._memory.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
            fresh.write_text(json.dumps(dict(self._known)))
            os.replace(fresh, self._memory)
            self._changed = False
