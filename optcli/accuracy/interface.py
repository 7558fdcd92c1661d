"""How two interfaces differ: outputs added, removed, renamed, moved, of another shape or type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from optcli.accuracy.evaluation import StoredOutput
from optcli.errors import counted
from optcli.results.outcomes import InterfaceChange

_KINDS = {"i": "whole numbers", "u": "whole numbers", "b": "truth values", "c": "complex numbers"}


def paired(
    candidate: Sequence[StoredOutput], reference: Sequence[StoredOutput]
) -> list[tuple[StoredOutput, StoredOutput]]:
    """Outputs that belong together: by name where the names are the same, else by position."""
    names = {output.name: output for output in candidate}
    if set(names) == {output.name for output in reference}:
        return [(names[output.name], output) for output in reference]
    return list(zip(candidate, reference, strict=False))


def changes(
    candidate: Sequence[StoredOutput], reference: Sequence[StoredOutput]
) -> tuple[InterfaceChange, ...]:
    """How the outputs of a variant differ from the baseline's; empty where they do not."""
    return (*_names(candidate, reference), *_values(candidate, reference))


def said(change: InterfaceChange) -> str:
    """One change in words."""
    name, before, after = change.output, change.before, change.after
    return {
        "added": f"output {name!r} is new: the baseline has {before}, this {after}",
        "removed": f"output {name!r} is missing: the baseline has {before}, this {after}",
        "renamed": f"output {before!r} is called {after!r} here",
        "order": f"the outputs stand in another order: {before} is {after} here",
        "shape": f"output {name!r} has the shape {before} for a sample, here {after}",
        "dtype": f"output {name!r} is {before}, here {after}",
    }[change.what]


def _names(
    candidate: Sequence[StoredOutput], reference: Sequence[StoredOutput]
) -> Iterator[InterfaceChange]:
    now, before = [output.name for output in candidate], [output.name for output in reference]
    if len(now) != len(before):
        sizes = (counted(len(each), "output") for each in (before, now))
        counts = {**dict(zip(("before", "after"), sizes, strict=True)), "comparable": False}
        names = {"added": [n for n in now if n not in before] or now[len(before) :]}
        names["removed"] = [n for n in before if n not in now] or before[len(now) :]
        for what, of in names.items():
            for name in of:
                yield InterfaceChange.model_validate({"what": what, "output": name, **counts})
    elif set(now) == set(before) and now != before:
        order = {"before": ", ".join(before), "after": ", ".join(now)}
        yield InterfaceChange(what="order", output=before[0], **order, comparable=True)
    else:
        for new, old in zip(now, before, strict=True):
            if new != old:
                yield InterfaceChange(
                    what="renamed", output=old, before=old, after=new, comparable=True
                )


def _values(
    candidate: Sequence[StoredOutput], reference: Sequence[StoredOutput]
) -> Iterator[InterfaceChange]:
    for now, before in paired(candidate, reference):
        place: dict[str, Any] = {"output": before.name, "comparable": False}
        if now.shape != before.shape:
            shapes = {"before": _shape(before.shape), "after": _shape(now.shape)}
            yield InterfaceChange(what="shape", **shapes, **place)
        if _kind(now.dtype) != _kind(before.dtype):
            yield InterfaceChange(what="dtype", before=before.dtype, after=now.dtype, **place)


def _shape(shape: tuple[int, ...] | None) -> str:
    return "that varies" if shape is None else f"[{', '.join(str(size) for size in shape)}]"


def _kind(dtype: str) -> str:
    """Which kind of numbers; how many bits they have is no other interface."""
    import numpy as np

    return _KINDS.get(np.dtype(dtype).kind, "floating point")
