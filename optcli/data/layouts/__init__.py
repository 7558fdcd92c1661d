"""The layouts of data on a disk: one file is one kind of source, `coco:PATH` is read by `coco.py`.

A layout says all there is to say of it: what its name is followed by, which libraries read it.
"""

from __future__ import annotations

from optcli.data.collection import Collection
from optcli.files import registry


def names() -> tuple[str, ...]:
    """Every kind that a source may begin with, sorted."""
    return registry.names(__name__)


def find(kind: str) -> type[Collection]:
    """The layout of a kind. Raises `UsageError` for an unknown one."""
    return registry.find(__name__, kind, Collection)  # type: ignore[type-abstract]
