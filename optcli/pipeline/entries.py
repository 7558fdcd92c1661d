"""Artifacts as the store keeps them."""

from __future__ import annotations

from typing import Any

from optcli.artifact import Artifact, Format
from optcli.store import Entry, Store


def artifact_of(entry: Entry) -> Artifact:
    """The artifact that a step put into the store."""
    record = entry.record
    return Artifact(
        entry.key,
        Format(record["format"]),
        entry.path,
        record["precision"],
        entry.size_bytes,
        entry.digest,
        record["facts"],
    )


def made_by(entry: Entry, store: Store) -> tuple[dict[str, Any], ...]:
    """The steps that made an artifact, the source first: each with the ingredients of its key.

    What is no longer in the store is left out.
    """
    steps: list[dict[str, Any]] = []
    step: Entry | None = entry
    while step is not None:
        steps.insert(0, {"key": step.key, **step.ingredients})
        parent = step.ingredients.get("parent")
        step = store.peek("artifact", parent) if parent else None
    return tuple(steps)
