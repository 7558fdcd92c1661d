"""Programs whose batch size is a number, made from one whose batch varies; and what goes to which."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from optcli.models.formats.aoti_models import Models, Routes
from optcli.models.formats.torch_calls import example_inputs
from optcli.passes import Job
from optcli.passes._torch.tracing import trace
from optcli.results.statistics import median_uncertainty
from optcli.settings import SymbolRange, TensorSpec, batch_range

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_CALLS = 3
# Turns of two models, and how well the median of their ratios must be known, as a share of it.
_TURNS, _NEEDED = 12, 0.03


def fixed(program: ExportedProgram, job: Job, batch_size: int) -> ExportedProgram:
    """The program for one batch size; other sizes vary as before."""
    span = SymbolRange(min=batch_size, opt=batch_size, max=batch_size)
    inputs = tuple(
        spec.model_copy(update={"ranges": {**spec.ranges, spec.batch_symbol: span}})
        if spec.batch_symbol
        else spec
        for spec in job.inputs
    )
    return trace(program.module(check_guards=False), replace(job, inputs=inputs), strict=False)


def can_pad(program: ExportedProgram, inputs: Sequence[TensorSpec]) -> bool:
    """Whether a batch can be filled up, or cut into pieces, and its outputs cut and joined again.

    That is where the batch is the first size of every input and of every output, and no other.
    """
    symbols = {spec.batch_symbol for spec in inputs}
    if len(symbols) > 1 or None in symbols:
        return False
    if any(spec.shape.count(str(spec.batch_symbol)) > 1 for spec in inputs):
        return False
    nodes = {node.name: node for node in program.graph.nodes}
    signature = program.graph_signature
    batch = str(nodes[signature.user_inputs[0]].meta["val"].shape[0])
    for name in signature.user_outputs:
        value = nodes[name].meta["val"] if name in nodes else None
        sizes = [str(size) for size in getattr(value, "shape", ())]
        # A number inside says that the batch is elsewhere too: 2 * s0 in a flattened output.
        if not sizes or sizes[0] != batch or any(batch in size for size in sizes[1:]):
            return False
    return True


def gain(models: Models, batch_size: int, job: Job) -> float | None:
    """How many times as fast the model of one size is as the one for any size, at that size.

    The median over turns of both; None where they do not tell it, because other work disturbed them.
    """
    both = (models.any_size_only(), models)
    for model in both:
        _seconds(model, batch_size, job)
    ratios = []
    for number in range(_TURNS):
        order = both if number % 2 else both[::-1]
        seconds = {id(model): _seconds(model, batch_size, job) for model in order}
        ratios.append(seconds[id(both[0])] / seconds[id(both[1])])
    return statistics.median(ratios) if median_uncertainty(ratios) <= _NEEDED else None


def measured(models: Models, job: Job) -> Routes:
    """Which batch goes to which model: by the time that each takes here, once.

    Between two fixed sizes a batch is filled up to the larger one from where that is faster than the
    model for any size; above the largest it goes in pieces, or to the model for any size.
    """
    span, routes = batch_range(job.inputs), models.routes
    padded_from: dict[int, int] = {}
    below = span.min - 1
    for size in routes.fixed:
        low, high = below + 1, size
        own = _seconds(models, size, job) if low < high else 0.0
        while low < high:  # the smallest batch that the model for any size is slower at
            middle = (low + high) // 2
            if _seconds(models.any_size_only(), middle, job) > own:
                high = middle
            else:
                low = middle + 1
        padded_from[size] = low
        below = size
    largest = routes.fixed[-1]
    beyond = min(2 * largest, span.max)
    pieces = False
    if beyond > largest:
        cut = replace(routes, padded_from=padded_from, pieces=True)
        uncut_s = _seconds(models.any_size_only(), beyond, job)
        pieces = _seconds(models.routed(cut), beyond, job) < uncut_s
    return replace(routes, padded_from=padded_from, pieces=pieces)


def _seconds(call: Callable[..., object], batch_size: int, job: Job) -> float:
    """The median time of a call."""
    import torch

    feed = example_inputs(job.inputs, batch_size)
    tensors = [feed[spec.name] for spec in job.inputs]
    times_s = []
    with torch.inference_mode():
        for number in range(_CALLS + 1):
            start = time.perf_counter()
            call(*tensors)
            if number:
                times_s.append(time.perf_counter() - start)
    return statistics.median(times_s)
