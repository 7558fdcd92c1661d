"""The processes of one machine that carry out steps: forked from a server, or started afresh."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from optcli.pipeline.messages import News, StepRequest
from optcli.pipeline.orders import Order
from optcli.workers import Child, ForkServer, Listener, early, environment_of_steps, spawn


class StepWorkers:
    """Starts a worker for each request; the fork server starts with the first that is forked."""

    def __init__(
        self,
        threads: int,
        timeout_s: float,
        preload: Callable[[], Sequence[str]],
        hear: Callable[[str, News], None],
    ) -> None:
        """`preload` names what the fork server imports, `hear` is told a step's label and its news."""
        self._threads, self._timeout_s = threads, timeout_s
        self.preload, self._hear = preload, hear
        self._server: ForkServer | None = None
        self._starting = threading.Lock()
        self._running: set[Child] = set()
        self._stopped = False

    def carry_out(self, order: Order, request: StepRequest, log: Path) -> Any:
        """What the order's function gives for this request, in a worker that ends with it."""
        call = order.call
        temporary: Path | None = getattr(request, "temporary", None)
        writable = (request.out, temporary) if temporary else (request.out,)
        options: dict[str, Any] = {"log": log, "confined": writable if order.confined else None}
        if order.forked_after is None:
            child = spawn(call.function, request, environment=self._environment(), **options)
        else:
            child = self._fork_server().start(
                call.function, request, after=order.forked_after, **options
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

    def _fork_server(self) -> ForkServer:
        with self._starting:
            if self._server is None:
                modules, environment = list(dict.fromkeys(self.preload())), self._environment()
                self._server = early.taken(environment) or ForkServer(modules, environment)
                self._server.import_also(modules)
            return self._server

    def _environment(self) -> dict[str, str]:
        return environment_of_steps(self._threads)
