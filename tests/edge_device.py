"""A device `edge` that is not this machine, as far as anybody can tell: no cluster is needed for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from optcli import environment
from optcli.environment import Missing
from optcli.measure.latency import Measured
from optcli.observer import Observer
from optcli.pipeline.places import Here

# A recipe's section that names it.
DEVICES = "devices: {edge: {ray: {resources: {edge: 1}}}}\n"


class Edge(Here):
    """Measures as this machine does, under another description.

    `lacks` says by variant what is missing there; with `error` it does not measure. `measured` are the
    steps that it was asked for, each with the names of the candidates.
    """

    is_here, confinement = False, "not at all"

    def __init__(self) -> None:
        super().__init__("edge")
        self.identity, self.cores = "edge", 1
        self.flags: list[str] = environment.cpu()["flags"]
        self.lacks: dict[str, tuple[Missing, ...]] = {}
        self.error: Exception | None = None
        self.measured: list[tuple[str, list[str]]] = []
        self.released = 0

    def environment(self, packages: Sequence[str]) -> dict[str, Any]:
        found = environment.describe(packages)
        cpu = {"model": "Edge CPU", "machine": "x86_64", "flags": self.flags}
        return {**found, "cpu": cpu, "cores": self.cores}

    def machine(self) -> dict[str, Any]:
        return {**environment.machine(), "identity": self.identity}

    def lacking(self, variant: str) -> tuple[Missing, ...]:
        return self.lacks.get(variant, ())

    def measure(self, step: str, order: Any, logs: Any, observer: Observer) -> Measured:
        self.measured.append((step, [each.name for each in order.candidates]))
        if self.error is not None:
            raise self.error
        return super().measure(step, order, logs, observer)

    def release(self) -> None:
        self.released += 1


@contextmanager
def opened(device: Edge) -> Iterator[Mapping[str, Edge]]:
    """The devices of a cluster: this one alone."""
    yield {"edge": device}
