"""Findings as lines to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from optcli.errors import counted
from optcli.outputs import exported
from optcli.scaffold.inspection.findings import Findings

_NAMES = 5


def lines(findings: Findings) -> list[str]:
    """What `optcli inspect` prints."""
    parts = (_interface, _weights, _operators, _origin)
    return [line for part in parts for line in part(findings)]


def _interface(findings: Findings) -> Iterator[str]:
    precision = f", {findings.precision}" if findings.precision else ""
    size = findings.size_bytes
    shown = f"{size / 1e6:.2f} MB" if size >= 1e4 else f"{size} bytes"
    yield f"{findings.target}: {findings.format}{precision}, {shown}"
    for title, tensors in (("inputs", findings.inputs), ("outputs", findings.outputs)):
        for number, tensor in enumerate(tensors or ()):
            sizes = ", ".join("?" if each is None else str(each) for each in tensor.shape or ())
            shape = "" if tensor.shape is None else f"[{sizes}]"
            yield f"{title if number == 0 else '':<12}{tensor.name}  {tensor.dtype}{shape}"
            if tensor.meaning:
                yield f"{'':<12}  {tensor.meaning}"
    known = exported(findings.metadata)
    if known is not None:
        listed = ", ".join(known.names[:_NAMES]) + (", ..." if len(known.names) > _NAMES else "")
        of = f", images of {findings.metadata['imgsz']}" if "imgsz" in findings.metadata else ""
        classes = f", {counted(len(known.names), 'class', 'classes')} ({listed})" if known.names else ""
        yield f"{'metadata':<12}{known.task}{classes}{of}"


def _weights(findings: Findings) -> Iterator[str]:
    if findings.parameters is not None:
        kinds = findings.parameters_by_type
        by_type = ", ".join(
            f"{count:,} {kind}" if len(kinds) > 1 else kind for kind, count in kinds.items()
        )
        yield f"{'parameters':<12}{findings.parameters:,}" + (f" ({by_type})" if by_type else "")
    if findings.operations is not None:
        macs, flop = _short(findings.operations.macs), _short(findings.operations.flops, "FLOP")
        at = ", ".join(f"{name} {list(shape)}" for name, shape in findings.operations.at.items())
        yield f"{'operations':<12}{macs} multiply-accumulates ({flop}) at {at}"
        if findings.operations.uncounted:
            yield f"{'':<12}without {', '.join(findings.operations.uncounted)}"
    for note in findings.notes:
        yield f"{'note':<12}{note}"


def _operators(findings: Findings) -> Iterator[str]:
    if not findings.operators:
        return
    total = sum(each.count for each in findings.operators)
    yield f"{'operators':<12}{total} {findings.operators_are}"
    width = max(len(each.type) for each in findings.operators)
    for each in findings.operators:
        yield f"  {each.count:>6}  {each.type:<{width}}  {each.precision}".rstrip()


def _origin(findings: Findings) -> Iterator[str]:
    for number, step in enumerate(findings.made_by):
        yield f"{'made by' if number == 0 else '':<12}{_step(step)}"
    for name, value in findings.facts.items():
        if isinstance(value, str | int | float) and not isinstance(value, bool) and value != "":
            yield f"{'':<12}{name}: {value}"


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
