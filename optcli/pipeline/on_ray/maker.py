"""Makes the artifacts of passes on the nodes of a Ray cluster, and everything else on this machine."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from optcli.errors import StepError, UsageError, from_record
from optcli.observer import Observer
from optcli.pipeline import ray_session
from optcli.pipeline.local_maker import LocalMaker, StepWorkers, begun_log
from optcli.pipeline.messages import Order, PassRequest, StepRequest
from optcli.pipeline.on_ray import parcels
from optcli.pipeline.on_ray.cluster import Cluster, NoNodeError, Resources
from optcli.pipeline.on_ray.messages import NodeAnswer, NodeOrder, Shipped
from optcli.pipeline.plan import BuildPlan
from optcli.pipeline.remote_devices.messages import Contents, UnreachableError
from optcli.store import Store, disk
from optcli.workers import messages

_PLACE = "--ray"
# Of one process alone, so that no other machine can read what is written there.
_OF_ONE_PROCESS = ("memory",)
# A process with the libraries, and copies of a network's weights and activations in it.
LEAST_BYTES, COPIES = 1 << 30, 4


def require(address: str, store: Store) -> None:
    """Raise `MissingError` and `UsageError` where a build with this `--ray` could not work at all."""
    ray_session.require(address, _PLACE)
    place = store.remote_place
    if address == ray_session.LOCAL or place is None:
        return
    if place.read_only:
        raise UsageError(
            "results travel through the remote store, and --remote-readonly forbids writing there",
            place=_PLACE,
            hint="--ray local needs no remote store",
        )
    if place.protocol in _OF_ONE_PROCESS:
        raise UsageError(
            f"other machines cannot read {place.shown}, wanted a store that machines share",
            place=_PLACE,
            hint="--remote-store s3://bucket/prefix",
        )


class RayMaker:
    """A `Maker` whose passes run on nodes of a cluster.

    Where the nodes see the store of this machine, as `local` does, they work in it. Otherwise files
    travel through the remote store. What no node can make is made here.
    """

    def __init__(
        self,
        address: str,
        plan: BuildPlan,
        store: Store,
        workers: StepWorkers,
        observer: Observer,
        timeout_s: float,
        jobs_here: int,
    ) -> None:
        """At most `jobs_here` steps run on this machine itself at once."""
        self._plan, self._store, self._observer = plan, store, observer
        self._workers, self._timeout_s = workers, timeout_s
        self._cluster = Cluster(address, observer.warned)
        self._remote = store.remote if address != ray_session.LOCAL else None
        self._joins = address != ray_session.LOCAL
        self._here = threading.Semaphore(jobs_here)
        self._local = LocalMaker(store, workers)
        self._in_place = LocalMaker(store, workers, self._carried_out_in_place)

    @cached_property
    def _preload(self) -> tuple[str, ...]:
        """The same for all steps, so that a node keeps its fork server from one to the next."""
        return tuple(self._workers.preload())

    def open(self) -> None:
        """Join the cluster where a pass is to be made, and see that its nodes have a store to share.

        Raises `MissingError` where no cluster answers, `UsageError` where nodes see neither this store
        nor a remote one. Ray of this machine alone starts with the first pass.
        """
        steps = self._plan.steps().values()
        passes = [step.key for step in steps if step.parent is not None and not step.only_checks]
        if not self._joins or all(self._store.peek("artifact", key) for key in passes):
            return
        try:
            self._cluster.connect()
            if self._remote is None:
                shared = parcels.shared_with(self._store, Path())
                self._cluster.require_sight(shared.mark, shared.content)
        except BaseException:
            self.close()
            raise

    def make(self, order: Order, work: Path) -> dict[str, Any]:
        if order.kind != "artifact" or not isinstance(order.call.request, PassRequest):
            return self._made_here(order, work)
        if self._remote is None:
            return self._in_place.make(order, work)
        try:
            return self._made_on_node(order, order.call.request, work)
        except (NoNodeError, UnreachableError, OSError) as error:
            self._observer.warned(order.label, f"{error}; it is made on this machine")
            disk.remove(work)
            work.mkdir()
            return self._made_here(order, work)

    def stop(self) -> None:
        """End what runs, here and on nodes."""
        self._workers.stop()
        self._cluster.stop()

    def close(self) -> None:
        """Leave the cluster and end the workers."""
        self._cluster.close()
        self._workers.close()

    def _made_here(self, order: Order, work: Path) -> dict[str, Any]:
        with self._here:
            return self._local.make(order, work)

    # In a store that the nodes see

    def _carried_out_in_place(self, order: Order, request: StepRequest, log: Path) -> Any:
        """A node writes into the folder that this machine has made, or into a new one at each try."""
        assert isinstance(request, PassRequest)
        work, tries = request.out, [request]

        def order_of(lost: int) -> NodeOrder:
            while len(tries) <= lost:  # what was lost may still write for a moment
                tries.append(_afresh(request, len(tries)))
            shared = parcels.shared_with(self._store, log)
            return replace(self._node_order(order), request=tries[lost], shared=shared)

        try:
            answer = self._cluster.call(order.label, self._resources(order), order_of)
        except NoNodeError as error:
            self._observer.warned(order.label, f"{error}; it is made on this machine")
            tries.append(_afresh(request, len(tries)))
            with self._here:
                given = self._workers.carry_out(order, tries[-1], log)
        else:
            given = messages.read(order.call.gives, self._heard(order, answer))
        if tries[-1].out != work:
            disk.remove(work)
            tries[-1].out.rename(work)
        return given

    # Through a remote store

    def _made_on_node(self, order: Order, request: PassRequest, work: Path) -> dict[str, Any]:
        """Raises `NoNodeError` and `UnreachableError` where it has to be made here."""
        remote = self._remote
        assert remote is not None
        log = begun_log(self._store, order)
        own = filter(None, [request.traits.reference])
        project = parcels.project_of(request.folder, request.data, own, self._store.digests)
        parts = {name: entry.contents for name, entry in order.entries.items()}
        files = {
            entry.path / name: about
            for entry in order.entries.values()
            for name, about in entry.contents.items()
        }
        probe: Contents = {}
        if request.probe is not None:
            about = (request.probe.stat().st_size, self._store.digests.of(request.probe))
            probe, files[request.probe] = {request.probe.name: about}, about
        files |= project.to_send()
        parcels.send(remote.connection, files)
        shipped = Shipped(
            url=remote.place.url,
            parent=parts["parent"],
            origin=parts["origin"],
            probe=probe,
            project=project.contents(),
        )
        sent = replace(request, data=project.data)
        node_order = replace(self._node_order(order), request=sent, shipped=shipped)
        answer = self._cluster.call(order.label, self._resources(order), lambda _: node_order)
        if answer.log:
            log.write_text(answer.log)
        record = self._heard(order, answer)
        parcels.receive(remote, answer.contents, work)
        return record

    # Both

    def _heard(self, order: Order, answer: NodeAnswer) -> dict[str, Any]:
        """What the order's function gave. Raises the error of the step, and `UnreachableError`."""
        for news in answer.news:
            if news.warned is not None:
                self._observer.warned(order.label, news.warned)
        raise_failure(answer)
        if answer.result is None:
            raise StepError("a node gave no answer", hint="all machines must run the same optcli")
        return answer.result

    def _node_order(self, order: Order) -> NodeOrder:
        request = order.call.request
        assert isinstance(request, PassRequest)
        plan = self._plan
        roles = {role: plan.role_keys[role] for role in request.data}
        return NodeOrder(
            key=order.key,
            label=order.label,
            function=order.call.function,
            request=request,
            ingredients=order.ingredients,
            made_of={role: plan.data_roles[key] for role, key in roles.items()},
            samples=dict(order.samples),
            forked_after=order.forked_after,
            preload=self._preload,
            confined=order.confined,
            threads=plan.threads,
            timeout_s=self._timeout_s,
        )

    def _resources(self, order: Order) -> Resources:
        """What the pass says it needs, else a guess: all threads to train, one core for the rest."""
        request = order.call.request
        assert isinstance(request, PassRequest)
        needs, trains = request.traits.needs, "training" in request.traits.uses
        guess = LEAST_BYTES + COPIES * request.parent.size_bytes
        return Resources(
            cores=needs.cores or (self._plan.threads if trains else 1),
            memory_bytes=needs.memory_bytes or guess,
            gpus=1 if needs.gpu else 0,
        )


def raise_failure(answer: NodeAnswer) -> None:
    """Raise what went wrong on a node: `UnreachableError`, or the error of what it did."""
    if answer.unreachable:
        raise UnreachableError(f"{answer.host}: {answer.unreachable}")
    if answer.error is not None:
        error = from_record(answer.error)
        error.hint = "; ".join(filter(None, (error.hint, f"it ran on {answer.host}")))
        raise error


def _afresh(request: PassRequest, number: int) -> PassRequest:
    """The request with empty folders of its own."""
    bench = request.out.parent.parent
    out, temporary = bench / f"files-{number}", bench / f"temporary-{number}"
    for folder in (out, temporary):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    return replace(request, out=out, temporary=temporary, keep=None)
