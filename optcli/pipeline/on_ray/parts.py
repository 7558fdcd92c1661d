"""Parts of sample sets that nodes of a Ray cluster evaluate; this machine joins what they leave."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from optcli.accuracy.evaluation import EvaluationRequest
from optcli.errors import OptcliError, StepError
from optcli.observer import Observer
from optcli.pipeline.on_ray import parcels
from optcli.pipeline.on_ray.cluster import Cluster, NoNodeError, Resources
from optcli.pipeline.on_ray.maker import COPIES, LEAST_BYTES, raise_failure
from optcli.pipeline.on_ray.messages import NodeAnswer, NodePart, ShippedPart
from optcli.pipeline.on_ray.parcels import Project
from optcli.pipeline.places import EvaluationOrder
from optcli.pipeline.remote_devices.messages import Contents, UnreachableError
from optcli.store import Store, disk

# More would spend their time on opening the model.
_MOST_PARTS = 16


class RayNodes:
    """The nodes of a cluster that evaluate. It is joined for the first evaluation, and kept."""

    def __init__(self, address: str, store: Store, observer: Observer) -> None:
        self._store, self._observer = store, observer
        self._cluster = Cluster(address, observer.warned)
        self._joined: bool | None = None

    def evaluating(self, order: EvaluationOrder) -> RayParts | None:
        """Those that have room for a part; None where there are none, which the observer hears."""
        if self._joined is None:
            self._joined = self._joins(order.step)
        parts = min(_MOST_PARTS, self._cluster.room_for(order.threads)) if self._joined else 0
        return RayParts(order, self._cluster, self._store, self._observer, parts) if parts else None

    def close(self) -> None:
        """Leave the cluster."""
        self._cluster.close()

    def _joins(self, step: str) -> bool:
        try:
            self._cluster.connect()
            if self._store.remote is None:
                shared = parcels.shared_with(self._store, Path())
                self._cluster.require_sight(shared.mark, shared.content)
        except OptcliError as error:
            self._observer.warned(step, f"{error.message}; samples are evaluated on this machine")
            return False
        return True


@dataclass
class RayParts:
    """The parts of one evaluation: `Elsewhere` of the room `accuracy`."""

    order: EvaluationOrder
    cluster: Cluster
    store: Store
    observer: Observer
    parts: int
    _sending: threading.Lock = field(default_factory=threading.Lock)
    _sent: tuple[Project, ShippedPart] | None = None
    _done: int = 0

    def carry_out(self, request: EvaluationRequest) -> bool:
        try:
            if self.store.remote is None:
                self._in_place(request)
            else:
                self._shipped(request)
        except (NoNodeError, UnreachableError, OSError) as error:
            self.observer.warned(self.order.step, f"{error}; it is evaluated on this machine")
            return False
        with self._sending:
            self._done += 1
            share = self._done / self.parts
        self.observer.progress(self.order.step, share, f"{self._done} of {self.parts} parts")
        return True

    def stop(self) -> None:
        """End what runs on nodes."""
        self.cluster.stop()

    def _in_place(self, request: EvaluationRequest) -> None:
        """In a store that the nodes see: each try writes into a folder of its own."""
        tries: list[EvaluationRequest] = []
        shared = parcels.shared_with(self.store, self.order.log)

        def order_of(lost: int) -> NodePart:
            while len(tries) <= lost:  # what was lost may still write for a moment
                out = self.order.scratch / f"part-{request.job}-{len(tries)}"
                out.mkdir()
                tries.append(replace(request, out=out, keep=None))
            return replace(self._part(tries[lost]), shared=shared)

        self._answer(order_of)
        _moved(tries[-1].out, request)

    def _shipped(self, request: EvaluationRequest) -> None:
        """Through the remote store."""
        remote = self.store.remote
        assert remote is not None
        with self._sending:
            if self._sent is None:
                self._sent = self._send(request)
        project, shipped = self._sent
        there = replace(request, data=project.data["evaluation"], prepared=None, keep=None)
        part = replace(self._part(there), shipped=shipped)
        answer = self._answer(lambda _: part)
        if answer.log:
            self.order.log.parent.mkdir(parents=True, exist_ok=True)
            with self._sending, self.order.log.open("a", encoding="utf-8") as log:
                log.write(answer.log)
        out = self.order.scratch / f"part-{request.job}"
        out.mkdir(exist_ok=True)
        parcels.receive(remote, answer.contents, out)
        _moved(out, request)

    def _send(self, request: EvaluationRequest) -> tuple[Project, ShippedPart]:
        """Raises `UnreachableError`."""
        remote, order = self.store.remote, self.order
        assert remote is not None
        entry = self.store.peek("artifact", order.artifact.key)
        if entry is None:
            raise UnreachableError("the store no longer has the artifact")
        project = parcels.project_of(
            request.folder, {"evaluation": request.data}, order.references, self.store.digests
        )
        files = {entry.path / name: about for name, about in entry.contents.items()}
        parcels.send(remote.connection, files | project.to_send())
        contents: Contents = dict(entry.contents)
        return project, ShippedPart(url=remote.place.url, artifact=contents, project=project.contents())

    def _part(self, request: EvaluationRequest) -> NodePart:
        order = self.order
        return NodePart(
            key=order.key,
            request=request,
            ingredients=dict(order.ingredients),
            samples=order.samples,
            references=order.references,
            timeout_s=order.timeout_s,
        )

    def _answer(self, order_of: Any) -> NodeAnswer:
        """Raises `NoNodeError`, `UnreachableError` and the error of the evaluation."""
        resources = Resources(
            cores=self.order.threads,
            memory_bytes=LEAST_BYTES + COPIES * self.order.artifact.size_bytes,
            gpus=0,
        )
        answer = self.cluster.call(self.order.step, resources, order_of)
        raise_failure(answer)
        if answer.result is None:
            raise StepError("a node gave no answer", hint="all machines must run the same optcli")
        return answer


def _moved(made: Path, request: EvaluationRequest) -> None:
    """Put a part where whoever joins the parts looks for it."""
    name = f"part-{request.job}"
    disk.remove(request.out / name)
    (made / name).rename(request.out / name)
