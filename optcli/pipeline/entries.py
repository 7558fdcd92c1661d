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


def lineage(entry: Entry, store: Store) -> tuple[Entry, ...]:
    """The results that led to an artifact, the source first, itself last.

    Those before one that is no longer in the store are left out.
    """
    entries: list[Entry] = []
    step: Entry | None = entry
    while step is not None:
        entries.insert(0, step)
        parent = step.ingredients.get("parent")
        step = store.peek("artifact", parent) if parent else None
    return tuple(entries)


def made_by(entry: Entry, store: Store) -> tuple[dict[str, Any], ...]:
    """The steps that made an artifact, as `lineage` has them: each with the ingredients of its key."""
    return tuple({"key": step.key, **step.ingredients} for step in lineage(entry, store))
