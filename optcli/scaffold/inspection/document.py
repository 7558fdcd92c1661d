"""Findings to be read: what a model takes, gives and weighs, its operators, and what made it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from optcli.errors import counted
from optcli.outputs import exported
from optcli.results.document import Document, Items, Names, Section, table_of_texts
from optcli.scaffold.inspection.findings import Findings, Tensor

_NAMES = 5


def document(findings: Findings) -> Document:
    """What `optcli inspect` shows."""
    precision = f", {findings.precision}" if findings.precision else ""
    size = findings.size_bytes
    shown = f"{size / 1e6:.2f} MB" if size >= 1e4 else f"{size} bytes"
    operators = findings.operators or ()
    kinds = [(str(each.count), each.type, each.precision) for each in operators]
    total = sum(each.count for each in operators)
    return Document(
        title=f"{findings.target}: {findings.format}{precision}, {shown}",
        sections=[
            Section("", [Names([*_interface(findings), *_weights(findings)])]),
            Section("Made by", [Items([_step(step) for step in findings.made_by])]),
            Section("Facts", [Names(list(_facts(findings)))]),
            Section(
                f"{total} {findings.operators_are}",
                [table_of_texts(("count", "type", "precision"), kinds, (1, 2))],
            ),
            Section("Notes", [Items(findings.notes)], tone="inconclusive"),
        ],
    )


def _interface(findings: Findings) -> Iterator[tuple[str, str]]:
    for title, tensors in (("inputs", findings.inputs), ("outputs", findings.outputs)):
        for tensor in tensors or ():
            yield title, _tensor(tensor)
    known = exported(findings.metadata)
    if known is not None:
        listed = ", ".join(known.names[:_NAMES]) + (", ..." if len(known.names) > _NAMES else "")
        of = f", images of {findings.metadata['imgsz']}" if "imgsz" in findings.metadata else ""
        classes = f", {counted(len(known.names), 'class', 'classes')} ({listed})" if known.names else ""
        yield "metadata", f"{known.task}{classes}{of}"


def _tensor(tensor: Tensor) -> str:
    sizes = ", ".join("?" if each is None else str(each) for each in tensor.shape or ())
    shape = "" if tensor.shape is None else f"[{sizes}]"
    meaning = f": {tensor.meaning}" if tensor.meaning else ""
    return f"{tensor.name}  {tensor.dtype}{shape}{meaning}"


def _weights(findings: Findings) -> Iterator[tuple[str, str]]:
    if findings.parameters is not None:
        kinds = findings.parameters_by_type
        by_type = ", ".join(
            f"{count:,} {kind}" if len(kinds) > 1 else kind for kind, count in kinds.items()
        )
        yield "parameters", f"{findings.parameters:,}" + (f" ({by_type})" if by_type else "")
    if findings.operations is not None:
        macs, flop = _short(findings.operations.macs), _short(findings.operations.flops, "FLOP")
        at = ", ".join(f"{name} {list(shape)}" for name, shape in findings.operations.at.items())
        yield "operations", f"{macs} multiply-accumulates ({flop}) at {at}"
        if findings.operations.uncounted:
            yield "operations", f"without {', '.join(findings.operations.uncounted)}"


def _facts(findings: Findings) -> Iterator[tuple[str, str]]:
    for name, value in findings.facts.items():
        if isinstance(value, str | int | float) and not isinstance(value, bool) and value != "":
            yield name, str(value)


def _step(step: dict[str, Any]) -> str:
    values = {k: v for k, v in (step.get("options") or {}).items() if v not in (None, [], {}, "")}
    options = ", ".join(f"{name}: {value}" for name, value in values.items())
    versions = ", ".join(f"{name} {each}" for name, each in (step.get("versions") or {}).items())
    name = str(step.get("step", "?"))
    return name + (f" {{{options}}}" if options else "") + (f" ({versions})" if versions else "")


def _short(count: float, unit: str = "") -> str:
    for limit, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if count >= limit:
            return f"{count / limit:.3g} {prefix}{unit}"
    return f"{count:g} {unit}".strip()
