"""Devices that are nodes of a Ray cluster, as places to measure on: docs/how-to/devices.md."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from optcli import environment
from optcli.artifact import NATIVE, Artifact
from optcli.environment import Missing
from optcli.errors import MissingError, StepError, UsageError, from_record
from optcli.files.digest import FileDigests
from optcli.measure import latency
from optcli.measure.latency import Measured
from optcli.measure.latency.messages import MeasureRequest
from optcli.measure.latency.shapes import ShapeComparison
from optcli.observer import Observer
from optcli.pipeline import keys, ray_session
from optcli.pipeline.devices import Device
from optcli.pipeline.on_ray import device_nodes, parcels, sharing
from optcli.pipeline.on_ray.cluster import Cluster
from optcli.pipeline.on_ray.device_messages import (
    DeviceAnswer,
    DeviceOrder,
    Look,
    Seen,
    Travelling,
    Wish,
)
from optcli.pipeline.on_ray.device_nodes import Held, LostError, Node
from optcli.pipeline.on_ray.maker import require
from optcli.pipeline.on_ray.messages import Contents
from optcli.pipeline.on_ray.parcels import UnreachableError
from optcli.pipeline.places import LatencyOrder, PairsOrder, SweepOrder
from optcli.pipeline.plan import Plan, PlannedVariant
from optcli.results import Sweep
from optcli.settings.devices import RayPlace
from optcli.store import Store, pausing

# How often a measurement begins again because the node was lost.
_TRIES = 3
# What measures: its code must be the same on the device, or the figures are another optcli's.
_MEASURES = tuple(f"measure/latency/{name}.py" for name in ("process", "measure", "sweep", "shapes"))


@contextmanager
def opened(
    address: str | None, plan: Plan, devices: Sequence[Device], store: Store, observer: Observer
) -> Iterator[dict[str, RayDevice]]:
    """Those of the devices that are nodes of a cluster, by name; each has said what it is.

    Ray is joined as long as the block runs, where there are any. Raises `UsageError` without `--ray`,
    `MissingError` where no cluster answers, or none of its nodes is the device and can measure.
    """
    far = [(each, each.name, each.ray) for each in devices]
    places = {name: ray for _, name, ray in far if name is not None and ray is not None}
    if not places:
        yield {}
        return
    address = _required(address, next(iter(places)))
    require(address, store)
    cluster = Cluster(address, observer.warned)
    reached = {name: RayDevice(name, ray, plan, store) for name, ray in places.items()}
    try:
        cluster.connect()
        for each in reached.values():
            each.choose(observer)
        yield reached
    finally:
        for each in reached.values():
            each.release()
        cluster.close()


def _required(address: str | None, device: str) -> str:
    if address is None:
        raise UsageError(
            f"the device {device!r} is a node of a Ray cluster, found no --ray",
            place=f"devices.{device}",
            hint="add --ray auto or --ray HOST:PORT, or measure here: --set 'latency.devices=[here]'",
        )
    if address == ray_session.LOCAL:
        raise UsageError(
            f"the device {device!r} is a node of a Ray cluster, found --ray local",
            place=f"devices.{device}",
            hint="name the cluster: --ray auto, or HOST:PORT of its head",
        )
    return address


class RayDevice:
    """A device of a cluster; a `Place`. The node is held from the first measurement to `release`."""

    is_here = False

    def __init__(self, name: str, ray: RayPlace, plan: Plan, store: Store) -> None:
        self._name, self._ray, self._store = name, ray, store
        self._look = _look(plan, store.digests)
        self._seen = Seen(node="", host="")
        self._node: Node | None = None
        self._held: Held | None = None

    @property
    def name(self) -> str:
        """As `Place` says."""
        return self._name

    def choose(self, observer: Observer) -> None:
        """Find a node that can measure. Raises `MissingError` where there is none."""
        unfit = []
        for node in device_nodes.fitting(self._name, self._ray, device_nodes.nodes()):
            try:
                seen = device_nodes.seen(self._name, node, self._look)
            except LostError as error:
                unfit.append(str(error))
                continue
            if not seen.unfit:
                self._node, self._seen = node, seen
                return
            unfit.append(f"{seen.host}: {'; '.join(seen.unfit)}")
        for each in unfit:
            observer.warned(self._name, f"not measured on {each}")
        raise MissingError(
            f"no node of the device can measure: {unfit[0]}",
            place=f"devices.{self._name}",
            hint="install the same optcli on it",
        )

    def environment(self, packages: Sequence[str]) -> dict[str, Any]:
        """As `Place` says."""
        here = self._seen.environment
        wanted = sorted(set(packages))
        return {**here, "versions": {name: here["versions"].get(name) for name in wanted}}

    def machine(self) -> dict[str, Any]:
        """As `Place` says."""
        return self._seen.machine

    @property
    def confinement(self) -> str:
        """How workers are confined there."""
        return self._seen.confinement

    def lacking(self, variant: str) -> tuple[Missing, ...]:
        """What a variant needs to be run and the device does not have."""
        return self._seen.lacks.get(variant, ())

    def compare(self, step: str, request: MeasureRequest, observer: Observer) -> ShapeComparison:
        """As `Place` says."""
        answer, _ = self._asked(
            step,
            observer,
            [request.artifact],
            request.feeds,
            lambda sent: DeviceOrder(step=step, travelling=sent, shapes=request),
        )
        if answer.comparison is None:
            raise _no_answer(self._name)
        return answer.comparison

    def measure(self, step: str, order: LatencyOrder, logs: Path, observer: Observer) -> Measured:
        """As `Place` says."""
        answer, samples = self._asked(
            step,
            observer,
            [each.artifact for each in order.candidates],
            order.feeds,
            lambda sent: DeviceOrder(step=step, travelling=sent, latency=order),
        )
        _keep(answer, logs, [each.name for each in order.candidates])
        return self._loaded(samples)

    def _loaded(self, samples: bytes) -> Measured:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "samples.npz")
            path.write_bytes(samples)
            try:
                return latency.load(path)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise _no_answer(self._name) from error

    def sweep(self, step: str, order: SweepOrder, log: Path, observer: Observer) -> Sweep:
        """As `Place` says."""
        answer, _ = self._asked(
            step,
            observer,
            [order.candidate.artifact],
            order.feeds,
            lambda sent: DeviceOrder(step=step, travelling=sent, sweep=order),
        )
        name = order.candidate.name
        if name in answer.logs:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(answer.logs[name])
        if answer.sweep is None:
            raise _no_answer(self._name)
        return answer.sweep

    @contextmanager
    def alone(self, step: str, observer: Observer) -> Iterator[None]:
        """As `Place` says."""
        try:
            yield  # the first measurement takes the node
        finally:
            self.release()

    def pairs(self, step: str, order: PairsOrder, logs: Path, observer: Observer) -> RayPairs:
        """As `Place` says."""
        return RayPairs(self, step, order, observer)

    def paired(
        self, step: str, order: PairsOrder, run: str, count: int, observer: Observer
    ) -> Measured:
        """`count` launch pairs in all of a run of this name. Raises `StepError`."""
        _, samples = self._asked(
            step,
            observer,
            [order.baseline.artifact, order.candidate.artifact],
            order.feeds,
            lambda sent: DeviceOrder(step=step, travelling=sent, pairs=order, run=run, count=count),
        )
        return self._loaded(samples)

    def release(self) -> None:
        """Let others measure there."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def _asked(
        self,
        step: str,
        observer: Observer,
        artifacts: Sequence[Artifact],
        feeds: Path | None,
        order_of: Callable[[Travelling], DeviceOrder],
    ) -> tuple[DeviceAnswer, bytes]:
        """The answer to an order; on another node, where one is lost. Raises `StepError`."""
        try:
            order = order_of(self._sent(artifacts, feeds))
        except (UnreachableError, OSError) as error:
            raise StepError(f"files do not reach the device {self._name}: {error}") from error
        for lost in range(_TRIES):
            try:
                answer, samples = self._carried_out(step, order, observer)
            except LostError as error:
                self._held = None
                observer.warned(step, f"{error}; it begins again")
                if lost + 1 < _TRIES:
                    before = self._seen.machine
                    self.choose(observer)
                    if self._seen.machine != before:
                        raise StepError(
                            f"the device {self._name} was lost, and another machine took its place",
                            hint="build again: it is measured there",
                        ) from error
                continue
            for message in answer.warned:
                observer.warned(step, message)
            if answer.unreachable:
                message = f"files do not reach the device {self._name}: {answer.unreachable}"
                raise StepError(message, hint="see whether it reaches the remote store")
            if answer.error is not None:
                raise from_record(answer.error)
            return answer, samples
        raise StepError(
            f"the device {self._name} was lost {_TRIES} times while it measured",
            hint="see whether the artifacts take more memory than it has",
        )

    def _carried_out(
        self, step: str, order: DeviceOrder, observer: Observer
    ) -> tuple[DeviceAnswer, bytes]:
        is_here = self._seen.machine == environment.machine()
        assert self._node is not None
        with pausing.paused() if is_here else nullcontext():
            if self._held is None:
                self._held = Held(
                    self._name, self._ray, self._node, lambda text: observer.warned(step, text)
                )
            if order.pairs is not None:  # whoever asks for pairs says how far they are
                return self._held.carry_out(order)
            observer.started(step)
            began = time.monotonic()
            answered = self._held.carry_out(order)
            observer.finished(step, time.monotonic() - began)
            return answered

    def _sent(self, artifacts: Sequence[Artifact], feeds: Path | None) -> Travelling:
        """How these files come to the node; they lie in the remote store afterwards."""
        remote = self._store.remote
        if remote is None:
            mark, content = sharing.mark_of(self._store)
            return Travelling(url=None, files={}, mark=str(mark), content=content)
        files: dict[str, Contents] = {
            str(each.path): _contents(each.path, self._store) for each in artifacts
        }
        if feeds is not None:
            about = (feeds.stat().st_size, self._store.digests.of(feeds))
            files[str(feeds.parent)] = {feeds.name: about}
        parcels.send(
            remote.connection,
            {
                Path(folder, name): about
                for folder, contents in files.items()
                for name, about in contents.items()
            },
        )
        return Travelling(url=remote.place.url, files=files)


class RayPairs:
    """Launch pairs on a device."""

    def __init__(self, device: RayDevice, step: str, order: PairsOrder, observer: Observer) -> None:
        self._device, self._step, self._order, self._observer = device, step, order, observer
        self._run, self._count = uuid.uuid4().hex, 0

    def measure(self, count: int) -> Measured:
        """Measure the next `count` pairs; gives all pairs so far. Raises `StepError`."""
        self._count += count
        return self._device.paired(self._step, self._order, self._run, self._count, self._observer)


def _contents(folder: Path, store: Store) -> Contents:
    """The files of an artifact, by name."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_size, store.digests.of(path))
        for path in paths
    }


def _look(plan: Plan, digests: FileDigests) -> Look:
    """What a node is asked for the variants of a plan."""
    code: dict[str, str] = {}
    for name in sorted({each.runner_name for each in plan.variants}):
        code |= keys.of_measurement(name, _MEASURES, digests)
    return Look(
        packages=tuple(plan.packages()),
        code=code,
        wishes={each.name: _wish(each) for each in plan.variants},
    )


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


def _no_answer(device: str) -> StepError:
    return StepError(
        f"the device {device} gave no answer", hint="all machines must run the same optcli"
    )
