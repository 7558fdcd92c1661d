"""Arrays in a file that two processes have in their memory: values cross without being sent."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.models.engines import EngineError

if TYPE_CHECKING:
    import numpy as np

_PREFIX = "optcli-engine-"
_SURELY_LOCKED_S = 60.0
_ALIGNED = 64
_ENOUGH_BYTES = 1 << 30
# Name, element type, shape and place of each array: what the other side must know.
Layout = Sequence[Sequence[Any]]


class SharedFolder:
    """An empty folder, in memory where there is room for large batches, else on the disk.

    It is locked as long as this process lives. Whoever makes one removes those that a killed process
    has left: memory that nothing else gives back.
    """

    def __init__(self) -> None:
        memory, disk = Path("/dev/shm"), Path(tempfile.gettempdir())  # noqa: S108 - a folder of its own
        roomy = memory.is_dir() and shutil.disk_usage(memory).free >= _ENOUGH_BYTES
        for place in (memory, disk):
            _remove_abandoned(place)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=memory if roomy else disk))
        self._lock = os.open(self.path, os.O_RDONLY)
        with suppress(OSError):  # where there are no locks, it stays after a kill
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Remove it with all in it; a second time nothing happens."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _remove_abandoned(place: Path) -> None:
    for each in place.glob(f"{_PREFIX}*"):
        with suppress(OSError, RecursionError):  # another user's, locked, gone by now, or too deep
            lock = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Who has just made one has not yet locked it.
                if time.time() - os.fstat(lock).st_mtime > _SURELY_LOCKED_S:
                    shutil.rmtree(each)
            finally:
                os.close(lock)


class SharedArrays:
    """One such file. One side writes, the other reads; who writes makes it larger.

    `only_reads`: the other side may have put anything there, or this one may not write. Its views
    cannot be written to.
    """

    def __init__(self, path: Path, *, only_reads: bool = False) -> None:
        self._path, self._only_reads = path, only_reads
        self._map: Any = None

    def write(self, arrays: Mapping[str, np.ndarray]) -> list[list[Any]]:
        """Write arrays one behind the other; gives their layout, plain data."""
        layout, end = [], 0
        for name, array in arrays.items():
            layout.append([name, array.dtype.str, list(array.shape), end])
            end += -(-array.nbytes // _ALIGNED) * _ALIGNED
        self._require(end)
        for view, array in zip(self.read(layout).values(), arrays.values(), strict=True):
            view[...] = array
        return layout

    def read(self, layout: Layout) -> dict[str, np.ndarray]:
        """Views of what was written; valid until the next `write`."""
        import numpy as np

        arrays = {}
        for name, dtype, shape, start in layout:
            kind = np.dtype(dtype)
            count = int(np.prod(shape, dtype=np.int64))
            self._mapped(start + count * kind.itemsize)
            arrays[name] = np.frombuffer(self._map, kind, count, start).reshape(shape)
        return arrays

    def _require(self, size_bytes: int) -> None:
        """Make the file so large. What is not really there would end the process when it is written."""
        needed_bytes = max(1, size_bytes)
        if self._map is not None and len(self._map) >= needed_bytes:
            return
        with open(self._path, "ab") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, needed_bytes)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                raise EngineError(
                    f"there is no room for {needed_bytes} bytes of inputs or outputs",
                    place=os.fspath(self._path),
                    hint="make room there, or use smaller batches",
                ) from error
        self._mapped(needed_bytes)

    def _mapped(self, size_bytes: int) -> None:
        if self._map is not None and len(self._map) >= size_bytes:
            return
        # Views of the old one may be alive: it goes with the last of them.
        if not self._only_reads:
            with open(self._path, "r+b") as file:
                self._map = mmap.mmap(file.fileno(), 0)
            return
        # No link is followed, and no pipe is waited for.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(self._path, "rb", opener=lambda path, _: os.open(path, flags)) as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
