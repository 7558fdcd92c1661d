"""A process beside a pass: works out what the parent computes meanwhile, then compares the child.

A pass that runs Python code for seconds, as exporters do, uses one core and leaves the others free.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from optcli.artifact import Artifact
from optcli.errors import OptcliError, from_record
from optcli.passes import Pass
from optcli.pipeline import check
from optcli.pipeline.check import ParentComparison
from optcli.pipeline.messages import PassRequest
from optcli.workers import channel, libraries, messages
from optcli.workers.lifetime import ForkedCopy, can_fork

# Memory that must be free, in sizes of the parent: its weights, what it computes, and as much again
# for the pass.
_PARENTS = 8


class ComparisonProcess:
    """Compares what a pass writes with its parent, which it has run before the pass is done."""

    def __init__(self, request: PassRequest, tolerance: float, runtime: tuple[str, ...] = ()) -> None:
        """`runtime` names the packages by which the child will run, where that is known."""
        serve = partial(_serve, request=request, tolerance=tolerance, runtime=runtime)
        self._process = ForkedCopy(serve)
        self._asked = self._lost = False

    def begin(self, child: Artifact) -> None:
        """Have a child compared, which lies there in full."""
        if self._asked:  # what it says would be of another child
            self._lost = True
        self._asked = True
        try:
            channel.send(self._process.connection, {"child": messages.to_record(child)})
        except OSError:
            self._lost = True

    def result(self) -> dict[str, Any] | None:
        """What `ParentComparison.of` gives or raises; None where this process could not find out."""
        record = None if self._lost else channel.receive(self._process.connection)
        self._asked = False
        if record is None:
            self._lost = True
            return None
        if "error" in record:
            raise from_record(record["error"])
        checked: dict[str, Any] = record["checked"]
        return checked

    def close(self) -> None:
        """End the process."""
        self._process.close()


@contextmanager
def comparing(request: PassRequest, attempts: Sequence[Pass]) -> Iterator[ComparisonProcess | None]:
    """A process that compares what the attempts of a pass write; None where there is no use in one."""
    tolerance = attempts[0].tolerance
    if tolerance is None or not attempts[0].computes_on_one_core or not _has_room(request):
        yield None
        return
    try:
        child = attempts[0].produces(request.parent.format)
        process = ComparisonProcess(request, tolerance, check.packages_for(child))
    except OSError:  # the system makes no more processes
        yield None
        return
    try:
        yield process
    finally:
        process.close()


def _has_room(request: PassRequest) -> bool:
    """Whether a core and memory are free for it beside the pass."""
    wanted_bytes = _PARENTS * request.parent.size_bytes
    return request.threads > 1 and can_fork() and request.free_bytes >= wanted_bytes


def _serve(
    connection: Connection, request: PassRequest, tolerance: float, runtime: tuple[str, ...]
) -> None:
    """What the process does. An error that is no finding ends it: then the worker compares."""
    inputs, beside_the_pass = request.inputs, request.threads - 1
    with ParentComparison(
        request.parent, inputs, request.probe, tolerance, beside_the_pass
    ) as comparison:
        comparison.prepare()
        with suppress(ImportError):  # whoever opens the child says so
            libraries.bring_in(runtime)
        while (record := channel.receive(connection)) is not None:
            child = messages.read(Artifact, record["child"])
            try:
                answer: dict[str, Any] = {"checked": comparison.of(child, request.threads)}
            except OptcliError as error:
                traceback.print_exc()
                answer = {"error": error.to_record()}
            channel.send(connection, answer)
