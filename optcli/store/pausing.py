"""Quiet for measurements: what the stores of this process do in the background waits meanwhile."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Protocol


class Background(Protocol):
    """Something that works beside the build."""

    def paused(self) -> AbstractContextManager[None]:
        """Do nothing as long as the block runs."""
        ...


_working: weakref.WeakSet[Background] = weakref.WeakSet()


def join(work: Background) -> None:
    """Have it paused with everything else."""
    _working.add(work)


@contextmanager
def paused() -> Iterator[None]:
    """Nothing is done in the background of this process as long as the block runs."""
    with ExitStack() as stack:
        for work in list(_working):
            stack.enter_context(work.paused())
        yield
