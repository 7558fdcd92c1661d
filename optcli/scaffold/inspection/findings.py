"""What was found in a model: plain data, which `optcli inspect --json` prints, and its document."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from optcli.errors import counted
from optcli.models.sources._file import errors_of
from optcli.outputs import exported
from optcli.results.document import Document, Items, Names, Section, table_of_texts
from optcli.settings import Settings

_NAMES = 5


class Tensor(Settings):
    """An input or output: sizes, names of sizes that vary, null where nothing is known.

    `meaning` says what the values of an output are, and where that is known from.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None = None
    meaning: str | None = None


class Operator(Settings):
    """How often an operator occurs in one precision."""

    type: str
    precision: str
    count: int


class MultiplyAccumulates(Settings):
    """Multiply-accumulates of one call: those of convolutions and matrix products, exactly counted.

    `flops` counts a multiply-accumulate as two. `at` is the shape of each input. `uncounted` names
    operators that multiply as well and are not in the sum.
    """

    macs: int
    flops: int
    at: dict[str, tuple[int, ...]]
    uncounted: tuple[str, ...] = ()


class Findings(Settings):
    """All of it. A value that cannot be known is null, and `notes` say why."""

    schema_version: Literal[1] = Field(1, alias="schema")
    target: str
    kind: str = Field(description="artifact, file or recipe")
    format: str
    precision: str | None = None
    size_bytes: int
    inputs: tuple[Tensor, ...] | None = None
    outputs: tuple[Tensor, ...] | None = None
    operators: tuple[Operator, ...] | None = None
    operators_are: str = Field("operators", description="operators, calls or layers")
    parameters: int | None = Field(None, description="how many values the weights have")
    parameters_by_type: dict[str, int] = Field(default_factory=dict)
    operations: MultiplyAccumulates | None = None
    made_by: tuple[dict[str, Any], ...] = Field(
        (), description="the steps that made it, with what decided each (artifact.json)"
    )
    facts: dict[str, Any] = Field(default_factory=dict)
    metadata: dict[str, str] = Field(
        default_factory=dict, description="what its exporter wrote into the file of what it is"
    )
    notes: tuple[str, ...] = ()


@contextmanager
def as_folder(path: Path, files: Mapping[str, Path]) -> Iterator[Path]:
    """The folder of a model; for a model in a file, a temporary one with links to `files`, by name.

    What is wrong with the model is said of its own file.
    """
    if path.is_dir():
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, file in files.items():
            Path(folder, name).symlink_to(file)
        with errors_of(path, Path(folder)):
            yield Path(folder)


def most_of(parameters_by_type: Mapping[str, int]) -> str:
    """The type of most of the weights; `fp32` without any."""
    return max(parameters_by_type, key=lambda kind: parameters_by_type[kind], default="fp32")


def operators(counts: Mapping[tuple[str, str], int]) -> list[dict[str, Any]]:
    """Counts by (type, precision) as records, the most frequent first."""
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [
        {"type": kind, "precision": precision, "count": count} for (kind, precision), count in order
    ]


def operations(
    macs: int, at: Mapping[str, Sequence[int]], uncounted: Mapping[str, int] | None = None
) -> dict[str, Any]:
    """The record of `MultiplyAccumulates`."""
    left = tuple(f"{count} {name}" for name, count in sorted(Counter(uncounted or {}).items()))
    return {
        "macs": macs,
        "flops": 2 * macs,
        "at": {k: list(v) for k, v in at.items()},
        "uncounted": left,
    }


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
