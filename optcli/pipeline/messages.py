"""What a build's worker processes are told, and what they answer: one step each."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optcli.artifact import Artifact, Format
from optcli.data import DataSettings, Preparation
from optcli.passes import Traits
from optcli.settings import TensorSpec
from optcli.settings.postprocess import PostprocessSettings


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
    `keep`. `prepare` and `postprocess` are what the recipe says, for a pass that reads it.
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
    prepared: dict[str, Path] = field(default_factory=dict)
    keep: Path | None = None
    out: Path = Path()
    scratch: Path | None = None
    cache: Path | None = None
    temporary: Path | None = None
    free_bytes: int = 0


@dataclass(frozen=True)
class Written:
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
class News:
    """What a step says on the way: how far it is, a fraction and a message, or a warning."""

    progress: tuple[float | None, str] | None = None
    warned: str | None = None


StepRequest = DataRequest | SourceRequest | PassRequest


@dataclass(frozen=True)
class Call:
    """A function of a worker, its request and the type of its answer."""

    function: str
    request: StepRequest
    gives: type[Written | SourceFindings | SampleCounts]
