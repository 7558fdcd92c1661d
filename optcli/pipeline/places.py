"""Where artifacts are measured and evaluated: on this machine, or on another one that says what it is.

What measures takes a `Place` and asks it for all that depends on the machine. So results are kept under
the facts of the machine that gave them.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from optcli import environment, runners, workers
from optcli.artifact import Artifact
from optcli.environment import Missing
from optcli.measure import latency
from optcli.measure.latency import LatencyOrder, Measured, SweepOrder
from optcli.measure.latency.messages import MeasureRequest
from optcli.measure.latency.shapes import ShapeComparison
from optcli.observer import Observer, timed
from optcli.results import Sweep
from optcli.runners import Runner
from optcli.store import Store, locks
from optcli.store.locks import held
from optcli.workers import confinement

if TYPE_CHECKING:
    from optcli import accuracy

_COMPARING_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class EvaluationOrder:
    """What other machines must know of an evaluation to do parts of it with the same result.

    `ingredients` are those of its key, `samples` is the key of the samples, `references` name the
    user's code that judges. `scratch` is a folder for what is tried.
    """

    step: str
    key: str
    artifact: Artifact
    runner: Runner
    threads: int
    ingredients: Mapping[str, Any]
    samples: str
    references: tuple[str, ...]
    log: Path
    scratch: Path
    timeout_s: float


class Nodes(Protocol):
    """Machines that evaluate parts of sample sets."""

    def evaluating(self, order: EvaluationOrder) -> accuracy.Elsewhere | None:
        """Those that do; None where there are none."""


class PairMeasurement(Protocol):
    """Launch pairs of two artifacts: `latency.LaunchPairs`, or the same on another machine."""

    def measure(self, count: int) -> Measured:
        """Measure the next `count` pairs; gives all pairs so far. Raises `OptcliError`."""


class Place(Protocol):
    """A machine that measures, one thing at a time. `is_here`: it is the one that runs optcli."""

    is_here: bool

    @property
    def name(self) -> str | None:
        """What the recipe calls the machine; None where it asks for no device."""

    def environment(self, packages: Sequence[str]) -> dict[str, Any]:
        """What makes two runs comparable, with the versions of these packages there."""

    def machine(self) -> dict[str, Any]:
        """What decides how fast the machine is."""

    def description(self, packages: Sequence[str]) -> dict[str, Any]:
        """What a report says of the machine, with the versions of these packages there."""

    def compare(self, step: str, request: MeasureRequest, observer: Observer) -> ShapeComparison:
        """Static shapes against dynamic ones. Raises `OptcliError` where it could not be done."""

    def measure(self, step: str, order: LatencyOrder, logs: Path, observer: Observer) -> Measured:
        """What `latency.measure` gives. Raises `OptcliError` where the machine cannot be reached."""

    def sweep(self, step: str, order: SweepOrder, log: Path, observer: Observer) -> Sweep:
        """What `latency.sweep` gives. Raises `OptcliError` where it could not be done."""

    def lacking(self, variant: str) -> tuple[Missing, ...]:
        """What a variant of the plan needs to be run, beside what it needs on this machine."""

    def alone(self, step: str, observer: Observer) -> AbstractContextManager[None]:
        """Measure alone there as long as the block runs: for `pairs`, which take no lock themselves."""

    def pairs(self, step: str, order: LatencyOrder, logs: Path, observer: Observer) -> PairMeasurement:
        """Launch pairs of a baseline and a candidate, as `latency.LaunchPairs` takes them."""


class Here:
    """The machine that runs optcli."""

    is_here = True

    def __init__(self, name: str | None = None) -> None:
        self.name = name

    def environment(self, packages: Sequence[str]) -> dict[str, Any]:
        return environment.describe(packages)

    def machine(self) -> dict[str, Any]:
        return environment.machine()

    def description(self, packages: Sequence[str]) -> dict[str, Any]:
        walls = str(confinement.available())
        return {**self.environment(packages), "machine": self.machine(), "confinement": walls}

    def compare(self, step: str, request: MeasureRequest, observer: Observer) -> ShapeComparison:
        options = runners.find(request.runner).model_validate(request.options)
        with holding_measurement_lock(step, observer), timed(observer, step):
            return workers.run(
                "optcli.measure.latency.shapes:compare",
                request,
                ShapeComparison,
                environment=options.environment(),
                timeout_s=_COMPARING_TIMEOUT_S,
                confined=() if request.artifact.foreign else None,
            )

    def measure(self, step: str, order: LatencyOrder, logs: Path, observer: Observer) -> Measured:
        with holding_measurement_lock(step, observer):
            return latency.measure(order, logs, observer)

    def sweep(self, step: str, order: SweepOrder, log: Path, observer: Observer) -> Sweep:
        with holding_measurement_lock(step, observer):
            return latency.sweep(order, log, observer)

    def lacking(self, variant: str) -> tuple[Missing, ...]:
        return ()

    def alone(self, step: str, observer: Observer) -> AbstractContextManager[None]:
        return holding_measurement_lock(step, observer)

    def pairs(self, step: str, order: LatencyOrder, logs: Path, observer: Observer) -> PairMeasurement:
        return latency.LaunchPairs(order, logs, observer)


HERE = Here()


@dataclass(frozen=True)
class MeasuringContext:
    """What the measurements of one build share: artifacts by variant, a file of samples, the place.

    Without `feeds` inputs are random. With `remeasure` nothing is taken from the store.
    """

    artifacts: Mapping[str, Artifact]
    store: Store
    feeds: Path | None
    observer: Observer
    remeasure: bool = False
    place: Place = HERE


@contextmanager
def holding_measurement_lock(step: str, observer: Observer) -> Iterator[None]:
    """Be the only build of this user that measures on this machine; waits, and says so.

    Uploads to a remote store wait as long as the block runs: they would take a core.
    """
    waiting = "another build is measuring on this machine; waiting for it"
    with (
        held(measurement_lock_path(), waiting=lambda: observer.warned(step, waiting)),
        locks.background_paused(),
    ):
        yield


def measurement_lock_path() -> Path:
    """The lock file: a measurement holds it while it runs."""
    return Path(tempfile.gettempdir()) / f"optcli-measuring-{getattr(os, 'getuid', int)()}.lock"
