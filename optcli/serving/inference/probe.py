"""How fast a variant answers by batch size, and what its outputs look like: asked before the run."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from optcli import runners
from optcli.artifact import Artifact
from optcli.measure.latency.feeds import make
from optcli.measure.latency.memory import high_water_bytes
from optcli.scaffold.inspection.findings import Tensor
from optcli.settings import TensorSpec
from optcli.workers import Channel

_WARM_UP, _SECONDS, _MOST_CALLS = 3, 0.6, 200


@dataclass(frozen=True)
class ProbeRequest:
    """An artifact with its runner, and the batch sizes to try, ascending; `timed`: for their speed."""

    artifact: Artifact
    runner: str
    options: dict[str, Any]
    inputs: tuple[TensorSpec, ...]
    batch_sizes: tuple[int, ...]
    seed: int
    timed: bool


@dataclass(frozen=True)
class Probed:
    """Outputs of the smallest batch with their sizes, images a second by batch size, and the memory."""

    outputs: tuple[Tensor, ...]
    images_per_s: dict[int, float]
    memory_bytes: int


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
            if not request.timed:
                continue
            for _ in range(_WARM_UP):
                runner.run(feed)
            calls, began = 0, time.perf_counter()
            while calls < _MOST_CALLS and time.perf_counter() - began < _SECONDS:
                runner.run(feed)
                calls += 1
            rates[size] = calls * size / (time.perf_counter() - began)
    return Probed(outputs, rates, high_water_bytes())
