"""What it takes to make one result of a build, and who can make it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from optcli.artifact import Format
from optcli.errors import StepError
from optcli.pipeline.messages import Call
from optcli.store import Entry

# What every forked worker imports.
GROUND = ("numpy", "optcli.pipeline.step")


@dataclass(frozen=True)
class Order:
    """One result to be made: `call` is the function of a worker that makes it, and its request.

    `entries` holds what the store has of the artifacts that the request names, `parent` and `origin`.
    `samples` maps the roles whose prepared samples may be shared to the keys of their samples.
    `forked_after` names what a worker has imported when it is forked; None: a fresh interpreter.
    A worker that is `confined` can only read, and write into its own folders. `format` is that of the
    artifact to be made; None where it is none.
    """

    kind: str
    key: str
    label: str
    call: Call
    ingredients: dict[str, Any]
    entries: Mapping[str, Entry] = field(default_factory=dict)
    samples: Mapping[str, str] = field(default_factory=dict)
    forked_after: tuple[str, ...] | None = None
    confined: bool = False
    format: Format | None = None

    def require_format(self, record: Mapping[str, Any]) -> None:
        """Raise `StepError` where a worker says that it made another format.

        The format decides whether later workers are confined, and the program of somebody's file may
        have answered in the worker's place.
        """
        if self.format is not None and record.get("format") != self.format:
            raise StepError(f"its worker says that it made {record.get('format')}, not {self.format}")


class Maker(Protocol):
    """Makes what orders ask for. Several threads may call `make` at once."""

    def open(self) -> None:
        """Raise what would keep the maker from making anything, before anything is made."""
        ...

    def make(self, order: Order, work: Path) -> dict[str, Any]:
        """Write the files of a result into the empty folder `work`; gives its record.

        Raises the error of the step, which costs its variants.
        """
        ...

    def stop(self) -> None:
        """End what is being made now, and whatever is begun later."""
        ...

    def close(self) -> None:
        """Give back what the maker holds. Nothing is made any more."""
        ...
