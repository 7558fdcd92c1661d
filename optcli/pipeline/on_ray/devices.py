"""Devices that are nodes of a Ray cluster, as places to measure on: docs/how-to/devices.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from optcli.artifact import Artifact
from optcli.errors import MissingError, StepError, UsageError
from optcli.observer import Observer
from optcli.pipeline import ray_session
from optcli.pipeline.on_ray import device_nodes, parcels
from optcli.pipeline.on_ray.cluster import Cluster
from optcli.pipeline.on_ray.device_nodes import Held, NodeLostError, RayNode
from optcli.pipeline.on_ray.maker import require
from optcli.pipeline.plan import BuildPlan, Device
from optcli.pipeline.remote_devices.devices import RemoteDevice, look_for, travelling_files
from optcli.pipeline.remote_devices.messages import (
    DeviceAnswer,
    DeviceOrder,
    Travelling,
    UnreachableError,
)
from optcli.settings.devices import RayPlace
from optcli.store import Store

# How often a measurement begins again because the node was lost.
_TRIES = 3


@contextmanager
def opened(
    address: str | None, plan: BuildPlan, devices: Sequence[Device], store: Store, observer: Observer
) -> Iterator[dict[str, RayDevice]]:
    """Those of the devices that are nodes of a cluster, by name; each has said what it is.

    Ray is joined as long as the block runs, where there are any. Raises `UsageError` without `--ray`,
    `MissingError` where no cluster answers, or none of its nodes is the device and can measure.
    """
    remote = [(each, each.name, each.ray) for each in devices]
    places = {name: ray for _, name, ray in remote if name is not None and ray is not None}
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


class RayDevice(RemoteDevice):
    """A device of a cluster. The node is held from the first measurement to `release`."""

    def __init__(self, name: str, ray: RayPlace, plan: BuildPlan, store: Store) -> None:
        super().__init__(name, look_for(plan, store.digests))
        self._ray, self._store = ray, store
        self._node: RayNode | None = None
        self._held: Held | None = None

    def choose(self, observer: Observer) -> None:
        """Find a node that can measure. Raises `MissingError` where there is none."""
        unfit = []
        for node in device_nodes.fitting(self._name, self._ray, device_nodes.nodes()):
            try:
                seen = device_nodes.seen(self._name, node, self._look)
            except NodeLostError as error:
                unfit.append((str(error), "see that it runs and has memory free, and build again"))
                continue
            if not seen.unfit:
                self._node, self._seen = node, seen
                return
            unfit.append((f"{seen.host}: {'; '.join(seen.unfit)}", "install the same optcli on it"))
        for message, _ in unfit:
            observer.warned(self._name, f"not measured on {message}")
        message, hint = unfit[0]
        raise MissingError(
            f"no node of the device can measure: {message}", place=f"devices.{self._name}", hint=hint
        )

    def release(self) -> None:
        """Let others measure there."""
        if self._held is not None:
            self._held.release()
            self._held = None

    def _answer(
        self, order: DeviceOrder, feeds: Path | None, observer: Observer
    ) -> tuple[DeviceAnswer, bytes]:
        """The answer to an order; on another node, where one is lost. Raises `StepError`."""
        try:
            order = replace(order, travelling=self._sent(order.artifacts, feeds))
        except (UnreachableError, OSError) as error:
            raise StepError(f"files do not reach the device {self._name}: {error}") from error
        for lost in range(_TRIES):
            try:
                answer, samples = self._carried_out(order, observer)
            except NodeLostError as error:
                self._held = None
                observer.warned(order.step, f"{error}; it begins again")
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
                observer.warned(order.step, message)
            self._require_answer(answer, "see whether it reaches the remote store")
            return answer, samples
        raise StepError(
            f"the device {self._name} was lost {_TRIES} times while it measured",
            hint="see whether the artifacts take more memory than it has",
        )

    def _carried_out(self, order: DeviceOrder, observer: Observer) -> tuple[DeviceAnswer, bytes]:
        assert self._node is not None
        if self._held is None:
            warn = partial(observer.warned, order.step)
            self._held = Held(self._name, self._ray, self._node, warn)
        with self._paused():
            return self._held.carry_out(order)

    def _sent(self, artifacts: Sequence[Artifact], feeds: Path | None) -> Travelling:
        """How these files come to the node; they lie in the remote store afterwards."""
        remote = self._store.remote
        if remote is None:
            mark, content = parcels.mark_of(self._store)
            return Travelling(url=None, files={}, mark=str(mark), content=content)
        files = travelling_files(artifacts, feeds, self._store.digests)
        parcels.send(
            remote.connection,
            {
                Path(folder, name): about
                for folder, contents in files.items()
                for name, about in contents.items()
            },
        )
        return Travelling(url=remote.place.url, files=files)
