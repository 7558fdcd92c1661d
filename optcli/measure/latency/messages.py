"""What a measuring process is asked, and its answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from optcli.artifact import EMBEDDED_INPUTS, Artifact, own_inputs
from optcli.settings import TensorSpec
from optcli.workers import Child

T = TypeVar("T")

# For opening, and for warming up.
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class MeasureRequest:
    """What to open and what to feed it.

    `feeds` is a file of samples, None for random inputs; `options` are the runner's. `names` are those
    that the artifact has for its inputs, where they are others.
    """

    artifact: Artifact
    inputs: tuple[TensorSpec, ...]
    runner: str
    options: dict[str, Any]
    feeds: Path | None
    batch_sizes: tuple[int, ...]
    seed: int
    names: tuple[str, ...] = ()

    def of_model(self) -> MeasureRequest:
        """The same for a model that prepares its images: with its own inputs, and random pixels."""
        if EMBEDDED_INPUTS not in self.artifact.facts:
            return self
        inputs = own_inputs(self.artifact.facts, self.inputs)
        return replace(self, inputs=inputs, feeds=None, names=())


@dataclass(frozen=True)
class Command:
    """What to do next. `ready` is answered by `Ready`, the others by what stands beside them.

    `open`: `Opening`. `warm`: `WarmUp`, after `calls` calls or `seconds`; with `steady` once it is
    steady, after `calls` calls at least. `round`: `Round`, of `calls` timed calls after `lead_in`
    untimed ones. `memory`: `HeldMemory`. Nothing answers `end`.
    """

    do: Literal["ready", "open", "warm", "round", "memory", "end"]
    batch_size: int = 0
    calls: int = 0
    seconds: float = 0.0
    steady: bool = False
    lead_in: int = 0


@dataclass(frozen=True)
class Ready:
    """The inputs are made."""


@dataclass(frozen=True)
class Opening:
    """How the artifact was opened; `effective` are the runner's settings as read back."""

    import_ms: float
    load_ms: float
    effective: dict[str, Any]
    threads: int


@dataclass(frozen=True)
class WarmUp:
    """The first call and the usual one, which is the median; `steady` is None where nobody looked.

    `calls` were made in `seconds`, `steady_after` of them before it was steady.
    """

    first_ms: float
    calls: int
    usual_ns: float
    steady_after: int
    steady: bool | None
    seconds: float


@dataclass(frozen=True)
class Round:
    """The nanoseconds of each call, and the noise; see `Series` of `latency.samples`."""

    ns: tuple[int, ...]
    device_ns: tuple[int, ...] | None
    cpu_ns: int
    switches: int
    steal_s: float
    waited_ns: int
    first_feed: int
    feeds: int
    idle_cpu_ns: int = 0


@dataclass(frozen=True)
class HeldMemory:
    """The most memory held so far, and what only calls have shown of the runtime."""

    observed: dict[str, Any] = field(default_factory=dict)
    peak_memory_bytes: int | None = None
    peak_gpu_memory_bytes: int | None = None


def ask(child: Child, command: Command, answer: type[T], timeout_s: float = TIMEOUT_S) -> T:
    """Send a command; gives its answer. Raises `OptcliError` where there is none in time."""
    child.send(command)
    return child.receive(answer, timeout_s)
