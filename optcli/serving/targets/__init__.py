"""Servers that `optcli deploy` writes for: one file is one target, and its name that of `--target`.

A target says all there is to say of its server: what it takes, how it batches, what it writes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from optcli.files import registry

if TYPE_CHECKING:
    from optcli.artifact import Artifact
    from optcli.pipeline.model_files.built_variant import BuiltVariant
    from optcli.results import Report
    from optcli.results.plan import Plan, Semantics
    from optcli.scaffold.inspection.findings import Tensor
    from optcli.serving.deploy.instructions import ReadmeStep
    from optcli.serving.deploy.interface import Interface
    from optcli.settings import TensorSpec
    from optcli.store import Store


@dataclass(frozen=True)
class DeployOptions:
    """What a server shall do beside the variant and the plan: options of `optcli deploy`.

    For `kserve`, `storage_uri` is the place from which the cluster fetches the repository, and
    `canary_traffic` the share of the requests that goes to it while another model is served by its
    name. For `ray`, `wait_ms` replaces the plan's wait; `cache` keeps answers for `cache_ttl_s`
    seconds, in `memory` or in a Redis (its URL); `known_answers` is the URI of answers that `optcli
    infer` wrote with this variant, which are hits of the cache from the start; `sample_inputs` keeps
    statistics of so many inputs a day, for `loadtest --drift`; `grpc` speaks the protocol over gRPC as
    well; `extensions` takes compressed bodies, and answers the protocol's statistics. `images`: the
    server of `ray` or `triton` also takes JPEG and PNG, and answers classes or boxes. `force` deploys a
    plan that rests on another curve, or on one of a busy machine, and a wait that is too short for
    sealed batches.

    `priorities` are shares of the traffic by priority, the most urgent first, for a plan that is made
    here; a plan in a file has its own. In Ray each is an application with replicas of its own.
    """

    storage_uri: str | None = None
    canary_traffic: float | None = None
    wait_ms: float | None = None
    images: bool = False
    cache: str | None = None
    cache_ttl_s: float = 3600.0
    sample_inputs: int = 0
    known_answers: str | None = None
    grpc: bool = False
    extensions: bool = False
    force: bool = False
    priorities: Mapping[str, float] | None = None


@dataclass(frozen=True)
class Declared:
    """Inputs and outputs, the fewest and the most rows of a call where they are known.

    `settings` are those that only the opened artifact shows.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    rows: tuple[int, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Deployment:
    """A variant with its interface and the plan; `path` is the report's, `name` the model's."""

    name: str
    built: BuiltVariant
    report: Report
    path: Path
    interface: Interface
    plan: Plan


@dataclass(frozen=True)
class WrittenServer:
    """What the README says of the files: what they are, how they are used, and sentences to know."""

    about: str
    steps: Sequence[ReadmeStep]
    notes: Sequence[str]
    closing: Sequence[str]


class ServingTarget(ABC):
    """A server. It is asked in the order of its methods, of which `declared` runs in a worker.

    `title` is what people call it, `server` whose rules its models' names follow, `semantics` when it
    sends a batch, and `batches` whether it joins requests at all. `overhead` is what a plan takes for
    its work beside the model, keys of a plan file's `overhead`, where nothing was measured, and
    `overhead_per_mb` what each million bytes of a request add; `scales`
    says whether each machine of a cluster has a process that takes requests. `takes` are the fields of
    `DeployOptions` that it has a use for, `why_not` a message and a hint for others, where there is
    more to say. `samples` is how many prepared samples it writes.
    """

    title: ClassVar[str]
    server: ClassVar[str]
    semantics: ClassVar[Semantics]
    batches: ClassVar[bool] = True
    overhead: ClassVar[Mapping[str, float]] = {}
    overhead_per_mb: ClassVar[Mapping[str, float]] = {}
    scales: ClassVar[bool] = False
    takes: ClassVar[frozenset[str]] = frozenset()
    why_not: ClassVar[Mapping[str, tuple[str, str]]] = {}
    samples: ClassVar[int] = 0

    def __init__(self, options: DeployOptions) -> None:
        """Raises `MissingError` without what it writes with, `UsageError` for what is asked wrongly."""
        self.options = options

    @abstractmethod
    def take(self, built: BuiltVariant) -> None:
        """Find out how the server runs a variant. Raises `InputError` where it does not."""

    def require(self, plan: Plan) -> None:
        """Raise `UsageError` for a plan that the server cannot carry out."""
        return

    @property
    def profile(self) -> int:
        """Which profile of an engine the server uses."""
        return 0

    @classmethod
    def declared(
        cls, artifact: Artifact, specs: Sequence[TensorSpec], files: Declared, profile: int
    ) -> Declared:
        """What the server has of what the artifact's files declare, and settings.

        Raises `InputError` for what the server cannot hand out.
        """
        return files

    @abstractmethod
    def write(self, folder: Path, deployment: Deployment) -> WrittenServer:
        """Write what the server reads. Raises `InputError`, `UsageError` and OSError."""

    def finish(self, folder: Path, store: Store) -> None:
        """What is left to do once the files are in their place."""
        return


def names() -> tuple[str, ...]:
    """The names of all targets."""
    return registry.names(__name__)


def find(name: str) -> type[ServingTarget]:
    """The target of a name. Raises `UsageError` for an unknown one."""
    return registry.find(__name__, name, ServingTarget)  # type: ignore[type-abstract]


def taking(option: str) -> list[str]:
    """The targets that have a use for an option."""
    return [name for name in names() if option in find(name).takes]
