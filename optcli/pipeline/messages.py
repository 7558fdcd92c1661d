"""The steps of a build as they are ordered: what workers get, and what they answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from optcli.artifact import Artifact, Format
from optcli.data import DataSettings, Preparation
from optcli.errors import StepError
from optcli.passes import Traits
from optcli.settings import TensorSpec
from optcli.settings.outputs import OutputPart
from optcli.settings.postprocess import PostprocessSettings
from optcli.store import Entry

# What every forked worker imports.
GROUND = ("numpy", "optcli.pipeline.step")


@dataclass(frozen=True, kw_only=True)
class DataRequest:
    """The data roles to check; a `metric` needs labels. Paths are relative to `folder`.

    `out`, in the request of every step, is an empty folder to write into: whoever starts it names one.
    """

    inputs: tuple[TensorSpec, ...]
    folder: Path
    data: dict[str, DataSettings]
    metric: str | None
    out: Path = Path()


@dataclass(frozen=True, kw_only=True)
class SourceRequest:
    """A model's source by its kind and settings. `probe` is a file of samples to try it on."""

    kind: str
    source: dict[str, Any]
    inputs: tuple[TensorSpec, ...]
    probe: Path | None
    threads: int
    out: Path = Path()


@dataclass(frozen=True, kw_only=True)
class PassRequest:
    """A pass, what it is run on, and what its `Job` holds.

    `folder` is the recipe's: paths in `data` and the user's own code are relative to it. `prepared` are
    folders with the samples of roles as they were prepared before; what is prepared now may be left in
    `keep`. `prepare`, `postprocess` and `parts` are what the recipe says, for a pass that
    reads it.
    `free_bytes` of memory were free when the step began.
    """

    step: str
    inputs: tuple[TensorSpec, ...]
    folder: Path
    probe: Path | None
    threads: int
    seed: int
    batch_sizes: tuple[int, ...]
    traits: Traits
    parent: Artifact
    origin: Artifact
    data: dict[str, DataSettings]
    prepare: Preparation | None = None
    postprocess: PostprocessSettings | None = None
    parts: dict[str, tuple[OutputPart, ...]] = field(default_factory=dict)
    prepared: dict[str, Path] = field(default_factory=dict)
    keep: Path | None = None
    out: Path = Path()
    scratch: Path | None = None
    cache: Path | None = None
    temporary: Path | None = None
    free_bytes: int = 0


@dataclass(frozen=True)
class WrittenArtifact:
    """An artifact that was written; `facts` as an `Artifact` has them."""

    format: Format
    precision: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class SourceFindings:
    """What a pass that cannot run here says of its source, a sentence each."""

    findings: tuple[str, ...]


@dataclass(frozen=True)
class SampleCounts:
    """How many samples each role has, and what is odd about them."""

    samples: dict[str, int]
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class StepNews:
    """What a step says on the way: how far it is, a fraction and a message, or a warning."""

    progress: tuple[float | None, str] | None = None
    warned: str | None = None


StepRequest = DataRequest | SourceRequest | PassRequest


@dataclass(frozen=True)
class Call:
    """A function of a worker, its request and the type of its answer."""

    function: str
    request: StepRequest
    gives: type[WrittenArtifact | SourceFindings | SampleCounts]


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

    def make(self, order: Order, work: Path) -> dict[str, Any]:
        """Write the files of a result into the empty folder `work`; gives its record.

        Raises the error of the step, which costs its variants.
        """

    def stop(self) -> None:
        """End what is being made now, and whatever is begun later."""

    def close(self) -> None:
        """Give back what the maker holds. Nothing is made any more."""
