"""What was found in a model: plain data, also what `optcli inspect --json` prints."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from optcli.errors import OptcliError
from optcli.settings import Settings


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


class Operations(Settings):
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
    operations: Operations | None = None
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
        try:
            yield Path(folder)
        except OptcliError as error:
            if error.place.startswith(folder):
                error.place = str(path)
            raise


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
    """The record of `Operations`."""
    left = tuple(f"{count} {name}" for name, count in sorted(Counter(uncounted or {}).items()))
    return {
        "macs": macs,
        "flops": 2 * macs,
        "at": {k: list(v) for k, v in at.items()},
        "uncounted": left,
    }
