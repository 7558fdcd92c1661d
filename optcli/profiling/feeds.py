"""The inputs of profiled calls, and how long it takes to get them: read, decode, prepare."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from optcli import data
from optcli.data import DataSettings
from optcli.errors import InputError, raised_as
from optcli.latency.feeds import make
from optcli.profiling.record import StageTime
from optcli.sample import Batch, collate
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    from optcli.profiling.profiler import Feed
    from optcli.sample import Sample

_BATCHES = 8
_MOST_SAMPLES = 64
_MOST_S = 5.0


@dataclass(frozen=True)
class Feeds:
    """Batches to go through in turn, and the stages that made them; random ones have none.

    `samples` are the same batches with ids, targets and what preparing did to each sample.
    """

    batches: Sequence[Feed]
    samples: Sequence[Batch] = ()
    stages: tuple[StageTime, ...] = ()
    notes: tuple[str, ...] = ()


def random(inputs: Sequence[TensorSpec], batch_size: int, seed: int) -> Feeds:
    """Batches of random values, as latency is measured with."""
    return Feeds(make(inputs, None, [batch_size], seed)[batch_size])


def real(settings: DataSettings, folder: Path, inputs: Sequence[TensorSpec], batch_size: int) -> Feeds:
    """Batches of real samples, spread over a role of the recipe's data, each sample timed.

    Up to 64 samples, or as many as five seconds allow. Raises `InputError`.
    """
    dataset = data.open(settings, folder, inputs)
    if not len(dataset):
        raise InputError(
            "the data are empty", place=settings.source, hint="check its `split` and `samples`"
        )
    count = min(len(dataset), max(batch_size, min(_MOST_SAMPLES, _BATCHES * batch_size), _BATCHES))
    samples: list[Sample] = []
    read_ms: list[float] = []
    prepare_ms: list[float] = []
    began = time.perf_counter()
    for index in range(count):
        start = time.perf_counter_ns()
        item = dataset.read(index * len(dataset) // count)
        decoded = time.perf_counter_ns()
        samples.append(dataset.prepared(item))
        stop = time.perf_counter_ns()
        read_ms.append((decoded - start) / 1e6)
        prepare_ms.append((stop - decoded) / 1e6)
        if time.perf_counter() - began > _MOST_S:
            break
    batches, stack_ms = _stacked(samples, batch_size, settings.source)
    stages = (
        StageTime(name="read", time_ms=median(read_ms) * batch_size, samples=len(samples)),
        StageTime(
            name="prepare",
            time_ms=median(prepare_ms) * batch_size + median(stack_ms),
            samples=len(samples),
        ),
    )
    return Feeds([dict(batch.inputs) for batch in batches], batches, stages)


def _stacked(samples: Sequence[Sample], batch_size: int, place: str) -> tuple[list[Batch], list[float]]:
    """Batches, beginning again at the end where samples are few, and the milliseconds of each."""
    batches: list[Batch] = []
    times_ms = []
    for turn in range(max(1, min(_BATCHES, len(samples) // batch_size))):
        chosen = [samples[(turn * batch_size + row) % len(samples)] for row in range(batch_size)]
        start = time.perf_counter_ns()
        message = "samples of different sizes do not make a batch"
        hint = "resize or crop them under `prepare:`, or profile at --batch-size 1"
        with raised_as(InputError, message, of=ValueError, reason=str, place=place, hint=hint):
            batches.append(collate(chosen))
        times_ms.append((time.perf_counter_ns() - start) / 1e6)
    return batches, times_ms
