"""Makes results in worker processes of this machine."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from optcli.artifact import Artifact
from optcli.errors import StepError
from optcli.pipeline.inputs import Inputs
from optcli.pipeline.logs import log_of
from optcli.pipeline.messages import News, PassRequest, StepRequest
from optcli.pipeline.orders import Order
from optcli.pipeline.prepared import Prepared, Roles
from optcli.store import Store, disk
from optcli.workers import Child, ForkServer, Listener, messages, spawn


class LocalMaker:
    """Carries out each order in a process of its own, forked from a server or started afresh."""

    def __init__(
        self,
        store: Store,
        threads: int,
        timeout_s: float,
        preload: Callable[[], Sequence[str]],
        hear: Callable[[str, News], None],
    ) -> None:
        """`preload` names what the fork server imports, `hear` is told a step's label and its news."""
        self.store = store
        self._threads, self._timeout_s = threads, timeout_s
        self._preload, self._hear = preload, hear
        self._server: ForkServer | None = None
        self._starting = threading.Lock()
        self._running: set[Child] = set()
        self._stopped = False

    def make(self, order: Order, work: Path) -> dict[str, Any]:
        """As `Maker` says. Copies of its inputs go to the worker; one that it changed is put back."""
        log = log_of(self.store, order.key)
        log.unlink(missing_ok=True)
        request = order.call.request
        with suppress(OSError):
            log.parent.mkdir(parents=True, exist_ok=True)
            record = {"function": order.call.function, "message": messages.to_record(request)}
            log.with_name("call.json").write_text(json.dumps(record, indent=1))
        temporary = work.parent.parent / "temporary"
        with disk.failures(self.store.root):
            temporary.mkdir()
        inputs = self._inputs_of(order, work)
        sets = self._samples_of(order, work.parent.parent / "prepared")
        # Not in the recorded call: whoever repeats a step begins at its beginning.
        if isinstance(request, PassRequest):
            request = replace(
                request,
                parent=inputs.artifacts["parent"],
                origin=inputs.artifacts["origin"],
                prepared=sets.kept(),
                keep=sets.keep if sets.sets else None,
                temporary=temporary,
                # Where it is confined nothing can be kept.
                scratch=None if order.confined else self.store.scratch_folder("artifact", order.key),
                cache=None if order.confined else self.store.cache_folder(),
            )
        with inputs.named_as_kept():
            answer = self._carried_out(order, replace(request, out=work), log)
        inputs.check()
        sets.take()
        self._see_that_the_store_kept(order, inputs)
        return dict(messages.to_record(answer))

    def stop(self) -> None:
        """End the workers, those that are being started among them."""
        self._stopped = True
        for child in list(self._running):
            child.kill()

    def close(self) -> None:
        """End the workers and the fork server."""
        for child in list(self._running):
            child.kill()
        if self._server is not None:
            self._server.close()

    def _carried_out(self, order: Order, request: StepRequest, log: Path) -> Any:
        """What the order's function gives for this request, in a worker that ends with it."""
        call = order.call
        writable = (request.out, *filter(None, [getattr(request, "temporary", None)]))
        around: dict[str, Any] = {"log": log, "confined": writable if order.confined else None}
        if order.forked_after is None:
            child = spawn(call.function, request, environment=self._environment(), **around)
        else:
            child = self._fork_server().start(
                call.function, request, after=order.forked_after, **around
            )
        self._running.add(child)
        try:
            with child:
                if self._stopped:  # while it was started: whoever ended the others has not seen it
                    child.kill()
                listener = Listener(News, partial(self._hear, order.label))
                return child.result(call.gives, self._timeout_s, listener)
        finally:
            self._running.discard(child)

    def _samples_of(self, order: Order, keep: Path) -> Roles:
        """The samples that a pass reads, as far as others may share them."""
        keys, inputs = order.samples, order.call.request.inputs
        return Roles({role: Prepared(self.store, key, inputs) for role, key in keys.items()}, keep)

    def _see_that_the_store_kept(self, order: Order, inputs: Inputs) -> None:
        """Put back what a step has changed of its inputs in the store, and blame the step."""
        for name, entry in order.entries.items():
            kind, key = entry.kind, entry.key
            if self.store.sound(kind, key) is None:
                with self.store.lock(kind, key):
                    self.store.discard(kind, key)
                    with self.store.work(kind, key) as work:
                        shutil.copytree(inputs.artifacts[name].path, work, dirs_exist_ok=True)
                        self.store.put(kind, key, work, entry.record, entry.ingredients)
                raise StepError(
                    f"it changed files of its input in the store ({key[:12]}); put back",
                    hint="write into `job.out` only",
                )

    def _inputs_of(self, order: Order, work: Path) -> Inputs:
        """Copies of the artifacts that a request names, beside the folder that it writes into."""
        request = order.call.request
        named: dict[str, Artifact] = {}
        if isinstance(request, PassRequest):
            named = {"parent": request.parent, "origin": request.origin}
        for entry in order.entries.values():
            if self.store.sound(entry.kind, entry.key) is None:
                raise StepError(
                    f"its input {entry.key[:12]} in the store was changed while the build ran",
                    hint="build again; a pass of this recipe writes into the store",
                )
        with disk.failures(self.store.root):
            return Inputs(named, work.parent.parent / "inputs")

    def _fork_server(self) -> ForkServer:
        with self._starting:
            if self._server is None:
                self._server = ForkServer(list(dict.fromkeys(self._preload())), self._environment())
            return self._server

    def _environment(self) -> dict[str, str]:
        count = str(self._threads)
        return {
            "OMP_NUM_THREADS": count,
            "MKL_NUM_THREADS": count,
            "OPENBLAS_NUM_THREADS": count,
            "OMP_WAIT_POLICY": "PASSIVE",  # as runners have it: a busy machine costs less
            "GOMP_SPINCOUNT": "10000",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
