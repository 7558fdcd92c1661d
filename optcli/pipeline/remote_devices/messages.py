"""What a device is asked and what it answers, as plain data on its way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from optcli.artifact import Artifact
from optcli.environment import Missing, Needs
from optcli.measure.latency import LatencyOrder, SweepOrder
from optcli.measure.latency.messages import MeasureRequest
from optcli.measure.latency.shapes import ShapeComparison
from optcli.passes import Traits
from optcli.results import Sweep

Contents = dict[str, tuple[int, str]]
"""Files by their relative names: the size in bytes and the digest of each."""


class UnreachableError(Exception):
    """Files did not reach another machine: the remote store does not answer, or does not have them."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a variant needs to be run: of the machine, and for native code the device it was made for.

    `bound_to` is what the key of its artifact says of that device, `traits` are those of the pass.
    """

    needs: Needs
    bound_to: dict[str, Any] | None = None
    traits: Traits | None = None


@dataclass(frozen=True, kw_only=True)
class Look:
    """Asks what a node is. `packages` are those whose versions are wanted.

    `code` has the digests of optcli's modules that measure, by file; `wishes` are by variant.
    """

    packages: tuple[str, ...]
    code: dict[str, str]
    wishes: dict[str, Wish]


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a node says of itself, by `environment`; `unfit` says why it cannot measure for the driver.

    `lacks` says by variant what it needs and is not there. `confinement` is how workers are confined.
    """

    node: str
    host: str
    unfit: tuple[str, ...] = ()
    environment: dict[str, Any] = field(default_factory=dict)
    machine: dict[str, Any] = field(default_factory=dict)
    confinement: str = ""
    lacks: dict[str, tuple[Missing, ...]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Travelling:
    """How files come to the device: by their digests, from `url` or sent ahead, or in a shared store.

    `files` are by the path that the driver knows them by. A store that is shared has a file `mark` with
    this `content`.
    """

    files: dict[str, Contents] = field(default_factory=dict)
    url: str | None = None
    mark: str = ""
    content: str = ""


@dataclass(frozen=True, kw_only=True)
class DeviceOrder:
    """One measurement, one of the four; `step` is what it is called. Paths are those of the driver.

    `shapes` compares static shapes with dynamic ones. Of `pairs`, `count` are wanted in all by the
    `run` of this name.
    """

    step: str
    travelling: Travelling = field(default_factory=Travelling)
    shapes: MeasureRequest | None = None
    latency: LatencyOrder | None = None
    sweep: SweepOrder | None = None
    pairs: LatencyOrder | None = None
    run: str = ""
    count: int = 0

    @property
    def artifacts(self) -> list[Artifact]:
        """What is measured."""
        if self.shapes is not None:
            return [self.shapes.artifact]
        if self.sweep is not None:
            return [self.sweep.candidate.artifact]
        compared = self.latency or self.pairs
        return [] if compared is None else [each.artifact for each in compared.candidates]


@dataclass(frozen=True, kw_only=True)
class DeviceAnswer:
    """What became of an order on a node of this host name.

    `unreachable` says why files did not come through, `error` is that of the measurement, as
    `OptcliError.to_record` writes it. Raw samples of a latency come beside it, as bytes. `logs` are the
    ends of what the measuring processes said, by artifact; `warned` what people should know.
    """

    host: str
    unreachable: str = ""
    error: dict[str, Any] | None = None
    comparison: ShapeComparison | None = None
    sweep: Sweep | None = None
    logs: dict[str, str] = field(default_factory=dict)
    warned: tuple[str, ...] = ()
