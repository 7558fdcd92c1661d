"""Passes: one file is one pass. A pass turns one artifact into another.

The class is the configuration: its fields are the options in a recipe, its docstring the help, and
both are part of the key of what it makes. Heavy libraries are imported inside `run`. Add one by
adding a file here: docs/add-a-pass.md.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.files import registry
from optcli.observer import Observer
from optcli.sample import SampleSet
from optcli.settings import Settings, TensorSpec
from optcli.settings.outputs import OutputPart

Role = Literal["calibration", "training", "validation"]


@dataclass(frozen=True)
class Job:
    """All that a pass may use besides its source.

    `out` is an empty folder to write the artifact into. `origin` is the model as it came from its
    source, for a pass that `reads_origin`. A data role is None unless the pass names it in `roles()`.
    `device` is `cpu` or `cuda`: the pass's own option of that name, where it has one.
    `cache` is a folder that outlives the step, for what other steps can use too, such as a timing
    cache. It may not exist yet: the pass makes it. None: there is no such folder.
    `scratch` is a folder of this step's own that outlives a killed build, for checkpoints: whoever
    writes there makes it, and it is removed once the step is done. None: nothing can be kept.
    `temporary` is an empty folder beside `out`, for what is only needed on the way: see `work_folder`.
    `batch_sizes` are those that latency will be measured at, for a pass that `uses_batch_sizes`.
    `preparation` has the steps of the recipe's `prepare` as `data.images` reads them, and the `layout`,
    for a pass that `reads_preparation`; None where the recipe has none. `postprocess` is how a
    detector's outputs are decoded, for a pass that `reads_postprocess`: a kind and its settings. For a
    pass that `reads_outputs` it may be a guess, and `parts` says what each output holds, by its name.
    """

    out: Path
    inputs: tuple[TensorSpec, ...]
    origin: Artifact
    observer: Observer
    step: str = ""
    calibration: SampleSet | None = None
    training: SampleSet | None = None
    validation: SampleSet | None = None
    device: str = "cpu"
    threads: int = 1
    seed: int = 0
    scratch: Path | None = None
    cache: Path | None = None
    temporary: Path | None = None
    batch_sizes: tuple[int, ...] = ()
    preparation: dict[str, Any] | None = None
    postprocess: tuple[str, Mapping[str, Any]] | None = None
    parts: Mapping[str, tuple[OutputPart, ...]] = field(default_factory=dict)

    @property
    def work_folder(self) -> Path:
        """Where to make temporary folders: on the disk of `out`, which has room for models."""
        return self.temporary or self.out.parent

    def progress(self, fraction: float | None, message: str) -> None:
        """Say how far the pass is; `fraction` is 0..1 or None where the end is not known."""
        self.observer.progress(self.step, fraction, message)

    def warn(self, message: str) -> None:
        """Say something a person should know that stops nothing."""
        self.observer.warned(self.step, message)


@dataclass(frozen=True)
class Made:
    """What a pass says about the artifact it wrote.

    `precision` is what the weights and activations are computed in now; None: as in the source.
    `facts` is plain JSON data, added to the source's facts.
    """

    precision: str | None = None
    facts: dict[str, Any] = field(default_factory=dict)


class Pass(Settings):
    """Turns one artifact into another.

    `accepts` lists the formats it reads. `needs` names the packages (their versions enter the key)
    and the device it cannot run without, `needs_of_source` the packages that only sources of a format
    take beside them. `uses` lists the data roles it may read; where options
    decide, `roles` says which ones it does, as `requires` says what of `needs`. `tolerance`, for a
    conversion that must not change the result, is the largest |difference| allowed as a fraction
    of the largest |output|: the build then checks every artifact against its parent. `device_bound`
    says that the result depends on the CPU or GPU it was made on (`bound_to` on what of it),
    `uses_batch_sizes` that it depends on the batch sizes at which latency is measured,
    `reads_preparation`, `reads_postprocess` and `reads_outputs` that it depends on what the recipe says
    of them, `last` that no pass can follow. `computes_on_one_core` says that it takes seconds and
    leaves the other cores free: the build runs its parent on them, for the comparison. `reads_origin`
    says that `run` reads `job.origin`: a build then copies that for it. Of a pass that is not optcli's
    own it is taken for granted. `imports_ahead` names modules that `run` imports beside the packages of
    `needs`: a build imports them while other steps run, so importing one must start no thread.
    """

    accepts: ClassVar[tuple[Format, ...]]
    needs: ClassVar[Needs] = Needs()
    needs_of_source: ClassVar[Mapping[Format, tuple[str, ...]]] = {}
    uses: ClassVar[tuple[Role, ...]] = ()
    tolerance: ClassVar[float | None] = None
    device_bound: ClassVar[bool] = False
    uses_batch_sizes: ClassVar[bool] = False
    last: ClassVar[bool] = False
    computes_on_one_core: ClassVar[bool] = False
    reads_origin: ClassVar[bool] = False
    reads_preparation: ClassVar[bool] = False
    reads_postprocess: ClassVar[bool] = False
    reads_outputs: ClassVar[bool] = False
    imports_ahead: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def run(self, source: Artifact, job: Job) -> Made:
        """Write the artifact into `job.out`. Whatever it raises fails this step and no other."""

    def produces(self, source: Format) -> Format:
        """The format made from one of `accepts`, decided from the options alone; here the same."""
        return source

    def roles(self) -> tuple[Role, ...]:
        """The data roles that are read with these options."""
        return self.uses

    def requires(self) -> Needs:
        """The packages and the device that it needs with these options."""
        return self.needs

    def bound_to(self) -> dict[str, Any]:
        """What a `device_bound` result depends on, as plain data; empty: the CPU and the threads."""
        return {}

    def attempts(self) -> tuple[Pass, ...]:
        """The passes to try in turn: the next runs where the one before raised or erred."""
        return (self,)

    def check_source(self, source: Artifact, job: Job) -> tuple[str, ...]:
        """What is known of the result, a sentence each, where something that the pass needs is missing.

        A build calls this, on passes that override it, once the steps before them are done.
        """
        return ()


def names() -> tuple[str, ...]:
    """The names of all passes: ours and those of installed packages (entry point `optcli.passes`)."""
    return tuple(sorted({*registry.names(__name__), *registry.entry_points("optcli.passes")}))


def packages_in_words(kind: type[Pass], quote: str = "") -> tuple[str, ...]:
    """The packages that a pass needs; those that only sources of some formats take name these."""
    formats: dict[str, list[str]] = {}
    for source, packages in kind.needs_of_source.items():
        for package in packages:
            formats.setdefault(package, []).append(f"{quote}{source}{quote}")
    more = (f"{quote}{each}{quote} (for {', '.join(of)})" for each, of in formats.items())
    return (*(f"{quote}{each}{quote}" for each in kind.needs.packages), *more)


def own_names() -> tuple[str, ...]:
    """The names of optcli's own passes."""
    return registry.names(__name__)


def find(name: str) -> type[Pass]:
    """The pass class of a name in optcli itself. Raises `UsageError` for an unknown name."""
    return registry.find(__name__, name, Pass, names())  # type: ignore[type-abstract]


@dataclass(frozen=True)
class Traits:
    """What planning must know of one configured pass, as plain data.

    Of a pass in a user's own file this is found out in a worker, so that planning never runs their
    code. Where the pass is not one of optcli's own, `reference` is `FILE:CLASS` or `module:CLASS` and
    `code` the digest of its source.
    """

    name: str
    options: dict[str, Any]
    accepts: tuple[Format, ...]
    produces: dict[Format, Format]
    code: str = ""
    needs: Needs = field(default_factory=Needs)
    uses: tuple[Role, ...] = ()
    tolerance: float | None = None
    device_bound: bool = False
    bound_to: dict[str, Any] = field(default_factory=dict)
    uses_batch_sizes: bool = False
    reads_preparation: bool = False
    reads_postprocess: bool = False
    reads_outputs: bool = False
    last: bool = False
    checks_source: bool = False
    reads_origin: bool = True
    reference: str | None = None
    imports_ahead: tuple[str, ...] = ()
    needs_of_source: dict[Format, tuple[str, ...]] = field(default_factory=dict)

    @staticmethod
    def of(configured: Pass, name: str, code: str = "", reference: str | None = None) -> Traits:
        """The traits of a configured pass."""
        return Traits(
            name=name,
            options=configured.model_dump(mode="json"),
            accepts=configured.accepts,
            produces={source: configured.produces(source) for source in configured.accepts},
            code=code,
            needs=configured.requires(),
            needs_of_source=dict(configured.needs_of_source),
            uses=configured.roles(),
            tolerance=configured.tolerance,
            device_bound=configured.device_bound,
            bound_to=configured.bound_to() if configured.device_bound else {},
            uses_batch_sizes=configured.uses_batch_sizes,
            reads_preparation=configured.reads_preparation,
            reads_postprocess=configured.reads_postprocess,
            reads_outputs=configured.reads_outputs,
            last=configured.last,
            checks_source=type(configured).check_source is not Pass.check_source,
            reads_origin=configured.reads_origin or reference is not None,
            reference=reference,
            imports_ahead=configured.imports_ahead,
        )

    def reading(self, source: Format) -> Traits:
        """The traits of the pass where it reads this format: `needs` has all that it then needs."""
        more = self.needs_of_source.get(source, ())
        needs = replace(self.needs, packages=(*self.needs.packages, *more))
        return replace(self, needs=needs, needs_of_source={})
