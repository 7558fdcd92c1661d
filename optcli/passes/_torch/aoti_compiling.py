"""One program becomes a package of AOTInductor: for any batch size, for some sizes, or both."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.models.formats import aoti as aoti_format
from optcli.models.formats import torch_devices
from optcli.models.formats.aoti import ANY_SIZE, Models, Routes, name_of
from optcli.models.formats.torch_calls import example_inputs
from optcli.models.formats.weight_packing import PackedWeights, Packing, packed_each_call, packing
from optcli.passes import Job
from optcli.passes._torch.tracing import trace
from optcli.results.statistics import median_uncertainty
from optcli.settings import SymbolRange, TensorSpec, batch_range
from optcli.workers import memory

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_CALLS = 3

# Turns of two models, and how well the median of their ratios must be known, as a share of it.
_TURNS, _NEEDED = 12, 0.03

# What Inductor counts when it turns a quantized layer into a call of oneDNN's integer kernels.
_INTEGER_KERNELS = re.compile(r"q(conv|linear)\w*_lower_count")


@dataclass(frozen=True)
class Compiled:
    """A model of the package. `batch_size` None: it takes any. `packed` None: nothing was laid out."""

    batch_size: int | None
    files: Sequence[Any]
    seconds: float
    integer_kernels: int
    packed: Packing | None

    def to_record(self, size_bytes: int) -> dict[str, Any]:
        """Plain data for the artifact's facts."""
        record = {
            "batch_size": self.batch_size,
            "seconds": round(self.seconds, 1),
            "bytes": size_bytes,
        }
        if self.packed is not None and self.packed.layers + self.packed.left:
            record["packed_layers"] = self.packed.layers
            record["unpacked_layers"] = self.packed.left
        return record


class Compiling:
    """The models that have been compiled, by their names in the package.

    `sizes` are the batch sizes that matter: those of the recipe's latency, within the inputs' range.
    """

    def __init__(
        self, program: ExportedProgram, job: Job, settings: dict[str, Any], scratch: Path
    ) -> None:
        import torch

        self.job = job
        self.models: dict[str, Compiled] = {}
        self._program = program
        self._settings = settings
        self._device = torch_devices.require(job.device)
        span = batch_range(job.inputs)
        sizes = sorted(size for size in set(job.batch_sizes) if span.min <= size <= span.max)
        self.sizes = tuple(sizes) or (span.opt,)
        # The order of packed weights depends on the number of threads, too.
        torch.set_num_threads(job.threads)
        if self.on_cpu:
            memory.keep_freed()  # models are timed against each other here as the runner will run them
        else:
            torch_devices.prepare_compiling()
            torch_devices.make_driver_linkable(scratch)

    @property
    def on_cpu(self) -> bool:
        """Whether it is compiled for the CPU."""
        return self._device == torch_devices.CPU

    @property
    def packs(self) -> bool:
        """Whether weights can be laid out once and for all."""
        return self.on_cpu and bool(self._settings["freezing"])

    @property
    def varies(self) -> bool:
        """Whether there is more than one batch size."""
        span = batch_range(self.job.inputs)
        return span.min < span.max

    def any_size(self) -> None:
        """Compile the model for any batch size."""
        self.job.progress(None, "compiling" if not self.models else "compiling for any batch size")
        self.models[ANY_SIZE] = self._compiled(self._program, None)

    def one_size(self, batch_size: int) -> None:
        """Compile a model for one batch size."""
        self.job.progress(None, f"compiling for batch size {batch_size}")
        program = fixed(self._program, self.job, batch_size)
        self.models[name_of(batch_size)] = self._compiled(program, batch_size)

    def gain_of(self, batch_size: int) -> float | None:
        """How many times as fast its own model is as that for any size; None where it is not known."""
        return gain(self._opened(self.to_any_size()), batch_size, self.job)

    def drop(self, batch_size: int) -> None:
        """Leave the model of one batch size out of the package."""
        del self.models[name_of(batch_size)]

    @property
    def computes_integers(self) -> bool:
        """Whether quantized layers became integer code."""
        return any(each.integer_kernels for each in self.models.values())

    def only_fixed(self) -> Routes:
        """Routes without a model for any size: other batches are filled up, or cut into pieces."""
        return Routes(
            self._fixed, False, dict.fromkeys(self._fixed, 1), pieces=True, input=self._batched
        )

    def to_any_size(self) -> Routes:
        """Routes on which only the fixed sizes themselves go to their models."""
        return Routes(self._fixed, True, input=self._batched)

    def fastest(self) -> Routes:
        """Routes by the time that each way takes here."""
        if not self._fixed or not self.can_pad():
            return self.to_any_size()
        return measured(self._opened(self.to_any_size()), self.job)

    def can_pad(self) -> bool:
        """Whether batches can be filled up and cut."""
        return can_pad(self._program, self.job.inputs)

    def packs_each_call(self, routes: Routes) -> dict[str, dict[str, Any] | None]:
        """For every batch size that matters, the weights that each call packs again (`PackedWeights`).

        None for a size where that is not known; empty on a GPU.
        """
        if not self.on_cpu:
            return {}
        models = self._opened(routes)
        return {str(size): self._packs(models, size) for size in self.sizes}

    def write(self) -> dict[str, int]:
        """Write the package as far as it is; gives the bytes of each model."""
        aoti_format.write(self.job.out, {name: each.files for name, each in self.models.items()})
        return aoti_format.models(self.job.out)

    def _packs(self, models: Models, size: int) -> dict[str, Any] | None:
        import torch

        feed = example_inputs(self.job.inputs, size)
        tensors = [feed[spec.name] for spec in self.job.inputs]
        weights = (*self._program.state_dict.values(), *self._program.constants.values())
        with torch.inference_mode():
            packed = packed_each_call(lambda: models(*tensors), weights)
        packings = [each.packed for each in self.models.values() if each.packed is not None]
        if packed is None and any(each.layers + each.left for each in packings):
            return None
        return (packed or PackedWeights()).to_record()

    def _opened(self, routes: Routes) -> Models:
        return aoti_format.open(self.job.out, self._device, routes.to_record())

    def _packed_for(self, batch_size: int | None) -> tuple[int, ...]:
        """The sizes for which weights are laid out; the first decides where they cannot be left."""
        if batch_size is not None:
            return (batch_size,)
        span = batch_range(self.job.inputs)
        return tuple(dict.fromkeys((*self.sizes, span.opt, span.max)))

    @property
    def _fixed(self) -> tuple[int, ...]:
        sizes = (each.batch_size for each in self.models.values())
        return tuple(sorted(size for size in sizes if size is not None))

    @property
    def _batched(self) -> int:
        """The first input that has a batch."""
        return next(n for n, spec in enumerate(self.job.inputs) if spec.batch_symbol is not None)

    def _compiled(self, program: ExportedProgram, batch_size: int | None) -> Compiled:
        import torch
        from torch._dynamo.utils import counters

        if not self.on_cpu:
            from torch.export.passes import move_to_device_pass

            # Weights, constants and the devices in its graph.
            program = move_to_device_pass(program, self._device)
        positional, keyword = program.example_inputs
        counters["inductor"].clear()
        began = time.perf_counter()
        laying = packing(self.job.inputs, self._packed_for(batch_size)) if self.packs else nullcontext()
        with torch.no_grad(), laying as packed:
            files = torch._inductor.aot_compile(
                program.module(check_guards=False),
                positional,
                keyword,
                options={**self._settings, "aot_inductor.package": True},
            )
        counted = counters["inductor"].items()
        kernels = sum(count for name, count in counted if _INTEGER_KERNELS.fullmatch(name))
        return Compiled(batch_size, files, time.perf_counter() - began, int(kernels), packed)


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
        pieces = _seconds(Models(models.loaded, cut), beyond, job) < uncut_s
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
