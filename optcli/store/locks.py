"""Who waits for whom: locks between processes, and background work that pauses for measurements.

The operating system lets go of a lock when its holder dies, however that happens.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from optcli.errors import StoreError
from optcli.store import disk

if TYPE_CHECKING:
    from filelock import BaseFileLock


def try_acquire(path: Path) -> BaseFileLock | None:
    """The lock, acquired; None where somebody holds it. Raises OSError where it cannot be made."""
    from filelock import FileLock, Timeout  # 30 ms, which a fully cached build need not pay

    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    return lock


@contextmanager
def held(
    path: Path, timeout_s: float | None = None, waiting: Callable[[], None] | None = None
) -> Iterator[None]:
    """Hold a lock; `waiting` is called once where somebody else has it.

    Raises `StoreError` after `timeout_s` seconds (None: waits for ever) or where no lock can be made.
    """
    from filelock import FileLock, Timeout

    with disk.failures(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = try_acquire(path)
        if lock is None:
            if waiting is not None:
                waiting()
            lock = FileLock(path)
            try:
                lock.acquire(timeout=-1 if timeout_s is None else timeout_s)
            except Timeout as error:
                raise StoreError(
                    f"another process has held this for more than {timeout_s:g} s",
                    place=str(path),
                    hint="wait for the other build to end, or end it",
                ) from error
    try:
        yield
    finally:
        lock.release()


class Background(Protocol):
    """Something that works beside the build."""

    def paused(self) -> AbstractContextManager[None]:
        """Do nothing as long as the block runs."""


_working: weakref.WeakSet[Background] = weakref.WeakSet()


def pause_with(work: Background) -> None:
    """Have it paused with everything else."""
    _working.add(work)


@contextmanager
def background_paused() -> Iterator[None]:
    """Nothing is done in the background of this process as long as the block runs."""
    with ExitStack() as stack:
        for work in list(_working):
            stack.enter_context(work.paused())
        yield
