"""What all devices that are another machine share, however they are reached: docs/how-to/devices.md."""

from __future__ import annotations

import tempfile
import uuid
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from optcli import environment
from optcli.artifact import NATIVE, Artifact
from optcli.environment import Missing, Needs
from optcli.errors import StepError, from_record
from optcli.files.digest import FileDigests
from optcli.measure import latency
from optcli.measure.latency import LatencyOrder, Measured, SweepOrder
from optcli.measure.latency.messages import MeasureRequest
from optcli.measure.latency.shapes import ShapeComparison
from optcli.observer import Observer, timed
from optcli.pipeline import keys
from optcli.pipeline.plan import BuildPlan, PlannedVariant
from optcli.pipeline.remote_devices.messages import (
    Contents,
    DeviceAnswer,
    DeviceOrder,
    Look,
    Seen,
    Wish,
)
from optcli.results import Sweep
from optcli.store.locks import background_paused

# What measures: its code must be the same on the device, or the figures are another optcli's.
_MEASURES = tuple(f"measure/latency/{name}.py" for name in ("process", "measure", "sweep", "shapes"))


class RemoteDevice(ABC):
    """A device that is another machine; a `Place`. `look` is what it is asked about itself."""

    is_here = False

    def __init__(self, name: str, look: Look) -> None:
        self._name, self._look = name, look
        self._seen = Seen(node="", host="")

    @property
    def name(self) -> str:
        return self._name

    def environment(self, packages: Sequence[str]) -> dict[str, Any]:
        here = self._seen.environment
        wanted = sorted(set(packages))
        return {**here, "versions": {name: here["versions"].get(name) for name in wanted}}

    def machine(self) -> dict[str, Any]:
        return self._seen.machine

    def description(self, packages: Sequence[str]) -> dict[str, Any]:
        known = {"machine": self.machine(), "confinement": self._seen.confinement}
        return {**self.environment(packages), **known}

    def lacking(self, variant: str) -> tuple[Missing, ...]:
        """What a variant needs to be run and the device does not have."""
        return self._seen.lacks.get(variant, ())

    def compare(self, step: str, request: MeasureRequest, observer: Observer) -> ShapeComparison:
        with timed(observer, step):
            answer, _ = self._answer(DeviceOrder(step=step, shapes=request), request.feeds, observer)
            if answer.comparison is None:
                raise self._no_answer()
            return answer.comparison

    def measure(self, step: str, order: LatencyOrder, logs: Path, observer: Observer) -> Measured:
        with timed(observer, step) as failures:
            device_order = DeviceOrder(step=step, latency=order)
            answer, samples = self._answer(device_order, order.feeds, observer)
            _keep(answer, logs, [each.name for each in order.candidates])
            measured = self._loaded(samples)
            failures += latency.nothing_measured(measured, order)
            return measured

    def sweep(self, step: str, order: SweepOrder, log: Path, observer: Observer) -> Sweep:
        with timed(observer, step):
            answer, _ = self._answer(DeviceOrder(step=step, sweep=order), order.feeds, observer)
        name = order.candidate.name
        if name in answer.logs:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(answer.logs[name])
        if answer.sweep is None:
            raise self._no_answer()
        return answer.sweep

    @contextmanager
    def alone(self, step: str, observer: Observer) -> Iterator[None]:
        try:
            yield  # the first measurement takes the device
        finally:
            self.release()

    def pairs(self, step: str, order: LatencyOrder, logs: Path, observer: Observer) -> RemotePairs:
        return RemotePairs(self, step, order, observer)

    def paired(
        self, step: str, order: LatencyOrder, run: str, count: int, observer: Observer
    ) -> Measured:
        """`count` launch pairs in all of a run of this name. Raises `StepError`."""
        device_order = DeviceOrder(step=step, pairs=order, run=run, count=count)
        return self._loaded(self._answer(device_order, order.feeds, observer)[1])

    @abstractmethod
    def release(self) -> None:
        """Let others measure there."""

    @abstractmethod
    def _answer(
        self, order: DeviceOrder, feeds: Path | None, observer: Observer
    ) -> tuple[DeviceAnswer, bytes]:
        """The answer to an order, and raw samples. Raises `StepError`, and the measurement's error."""

    def _paused(self) -> AbstractContextManager[None]:
        """Nothing is done in the background meanwhile where the device is this very machine."""
        is_here = self._seen.machine == environment.machine()
        return background_paused() if is_here else nullcontext()

    def _require_answer(self, answer: DeviceAnswer, hint: str) -> None:
        """Raise the measurement's error, and `StepError` with a hint where files did not arrive."""
        if answer.unreachable:
            message = f"files do not reach the device {self._name}: {answer.unreachable}"
            raise StepError(message, hint=hint)
        if answer.error is not None:
            raise from_record(answer.error)

    def _loaded(self, samples: bytes) -> Measured:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "samples.npz")
            path.write_bytes(samples)
            try:
                return latency.load(path)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise self._no_answer() from error

    def _no_answer(self) -> StepError:
        return StepError(
            f"the device {self._name} gave no answer", hint="all machines must run the same optcli"
        )


class RemotePairs:
    """Launch pairs on a device."""

    def __init__(
        self, device: RemoteDevice, step: str, order: LatencyOrder, observer: Observer
    ) -> None:
        self._device, self._step, self._order, self._observer = device, step, order, observer
        self._run, self._count = uuid.uuid4().hex, 0

    def measure(self, count: int) -> Measured:
        """Measure the next `count` pairs; gives all pairs so far. Raises `StepError`."""
        self._count += count
        return self._device.paired(self._step, self._order, self._run, self._count, self._observer)


def travelling_files(
    artifacts: Sequence[Artifact], feeds: Path | None, digests: FileDigests
) -> dict[str, Contents]:
    """The files of artifacts and samples, by the folder that they lie in here. Raises OSError."""
    files: dict[str, Contents] = {str(each.path): _contents(each.path, digests) for each in artifacts}
    if feeds is not None:
        files[str(feeds.parent)] = {feeds.name: (feeds.stat().st_size, digests.of(feeds))}
    return files


def _contents(folder: Path, digests: FileDigests) -> Contents:
    """The files of an artifact, by name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_size, digests.of(path)) for path in paths
    }


def look_for(plan: BuildPlan, digests: FileDigests) -> Look:
    """What a machine is asked for the variants of a plan."""
    return Look(
        packages=tuple(plan.packages()),
        code=_code([each.runner_name for each in plan.variants], digests),
        wishes={each.name: _wish(each) for each in plan.variants},
    )


def looking(needs: Mapping[str, Needs], runners: Collection[str]) -> Look:
    """What a machine is asked that measures files with these needs, in these runners."""
    packages = {package for each in needs.values() for package in each.packages}
    return Look(
        packages=tuple(sorted(packages)),
        code=_code(runners, FileDigests()),
        wishes={name: Wish(needs=each) for name, each in needs.items()},
    )


def _code(runners: Collection[str], digests: FileDigests) -> dict[str, str]:
    code: dict[str, str] = {}
    for name in sorted(set(runners)):
        code |= keys.of_measurement(name, _MEASURES, digests)
    return code


def _wish(variant: PlannedVariant) -> Wish:
    needs, last = variant.runner.requires(), variant.last
    if last.format in NATIVE and last.traits is not None and "device" in last.ingredients:
        return Wish(needs=needs, bound_to=last.ingredients["device"], traits=last.traits)
    return Wish(needs=needs)


def _keep(answer: DeviceAnswer, logs: Path, names: Collection[str]) -> None:
    """Leave what the measuring processes said where a build looks for it."""
    logs.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name in answer.logs:
            (logs / f"{name}.log").write_text(answer.logs[name])
