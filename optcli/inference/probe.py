"""How fast a variant answers by batch size, and what its outputs look like: asked before the run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from optcli import runners
from optcli.artifact import Artifact
from optcli.inspection.findings import Tensor
from optcli.latency.feeds import make
from optcli.latency.memory import high_water_bytes
from optcli.settings import TensorSpec
from optcli.workers import Channel

_WARM_UP, _SECONDS, _MOST_CALLS = 3, 0.6, 200
# Copies begin to compute up to a second after each other.
_COPY_S, _LEAST_CALLS, _APART_S = 4.0, 6, 1e-3


@dataclass(frozen=True)
class ProbeRequest:
    """An artifact with its runner, and the batch sizes to try, ascending."""

    artifact: Artifact
    runner: str
    options: dict[str, Any]
    inputs: tuple[TensorSpec, ...]
    batch_sizes: tuple[int, ...]
    seed: int


@dataclass(frozen=True)
class Probed:
    """Outputs of the smallest batch with their sizes, and images a second by batch size."""

    outputs: tuple[Tensor, ...]
    images_per_s: dict[int, float]


def probe(request: ProbeRequest, channel: Channel) -> Probed:
    """Run random batches of each size for about a second. Raises as runners do."""
    kind = runners.find(request.runner)
    rates: dict[int, float] = {}
    outputs: tuple[Tensor, ...] = ()
    with kind.model_validate(request.options).open(request.artifact, request.inputs) as runner:
        for size in request.batch_sizes:
            feed = make(request.inputs, None, [size], request.seed)[size][0]
            results = runner.run(feed)
            outputs = outputs or tuple(
                Tensor(name=name, dtype=str(array.dtype), shape=array.shape)
                for name, array in results.items()
            )
            for _ in range(_WARM_UP):
                runner.run(feed)
            calls, began = 0, time.perf_counter()
            while calls < _MOST_CALLS and time.perf_counter() - began < _SECONDS:
                runner.run(feed)
                calls += 1
            rates[size] = calls * size / (time.perf_counter() - began)
    return Probed(outputs, rates)


@dataclass(frozen=True)
class Timed:
    """What one of several copies that compute at the same time tells.

    `ends` are seconds of the machine's monotonic clock, each after so many `calls`.
    """

    ends: tuple[float, ...]
    calls: int
    memory_bytes: int


def repeat(request: ProbeRequest, channel: Channel) -> Timed:
    """Call the model with the one batch size again and again for some seconds. Raises as runners do."""
    kind = runners.find(request.runner)
    (size,) = request.batch_sizes
    with kind.model_validate(request.options).open(request.artifact, request.inputs) as runner:
        feed = make(request.inputs, None, [size], request.seed)[size][0]
        for _ in range(_WARM_UP):
            began = time.monotonic()
            runner.run(feed)
        # A small model makes a million calls: not each of them is noted.
        calls = max(1, int(_APART_S / max(time.monotonic() - began, 1e-9)))
        ends = [time.monotonic()]
        while len(ends) <= _LEAST_CALLS or ends[-1] - ends[0] < _COPY_S:
            for _ in range(calls):
                runner.run(feed)
            ends.append(time.monotonic())
    return Timed(tuple(ends), calls, high_water_bytes())
