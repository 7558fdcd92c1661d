"""What all exporters share: a network with tensors in and tensors out, examples and dynamic shapes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from optcli.errors import StepError
from optcli.models.formats.torch_calls import Arguments, arguments, example_inputs, flatten_outputs
from optcli.passes import Job
from optcli.settings import SymbolRange, TensorSpec, batch_range, batched

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

# What the passes that trace name as `imports_ahead`: torch.export itself brings in Dynamo and SymPy.
IMPORTS_AHEAD = ("torch.export._trace",)

# How torch.export says that a size which should vary cannot.
_FIXED = re.compile(r"marked (\w+) as dynamic but your code specialized it to be a constant \((\d+)\)")
# How it says that code goes on by what tensors hold, and where that is.
_BY_VALUES = re.compile("data-dependent|dynamic control flow", re.IGNORECASE)
_CAUSED_BY = re.compile(r"(?:\(|# )(\S+?\.py):(\d+) in (\w+)")
_IN_STACK = re.compile(r'File "([^"]+)", line (\d+), in (\w+)')


class DependsOnValuesError(StepError):
    """The network goes on by what tensors hold; another way of tracing may take it."""


def flat(model: torch.nn.Module, inputs: Sequence[TensorSpec]) -> torch.nn.Module:
    """The network as a function of one tensor per input, in the recipe's order.

    It returns a tensor or a tuple of tensors, in the order of the artifact's output names. A network
    that is like that already comes back unchanged, so that its layers keep their names.
    """
    import torch

    call = arguments(model, inputs)
    names = tuple(spec.name for spec in inputs)
    with torch.no_grad(), plain_attention():
        # One sample is enough to see which types the outputs have.
        positional, keyword = call.split(dict(zip(names, example(inputs, small=True), strict=True)))
        outputs = model(*positional, **keyword)
    is_flat = isinstance(outputs, torch.Tensor) or (
        type(outputs) is tuple and all(isinstance(value, torch.Tensor) for value in outputs)
    )
    return model if is_flat and call.positional == names else _flat_class()(model, call, names)


def example(inputs: Sequence[TensorSpec], *, small: bool = False) -> tuple[torch.Tensor, ...]:
    """One tensor per input; each symbol has a size of its own, of 2 or more where its range allows it.

    torch.export takes a size of 0 or 1 for a constant, whatever else is declared, and equal sizes for
    one. `small` is for a batch that is computed: 1 sample, or as few as may be.
    """
    sized = _sized(inputs)
    first = batched(inputs)
    if small and first is not None:
        batch, least = first.batch_symbol, batch_range(inputs).min
        few = [
            spec.model_copy(update={"shape": tuple(least if s == batch else s for s in spec.shape)})
            for spec in inputs
        ]
        sized = _sized(few)
    feed = example_inputs(sized, batch_range(sized).opt)
    return tuple(feed[spec.name] for spec in sized)


def fixed(inputs: Sequence[TensorSpec], batch_size: int | None, format: str) -> list[TensorSpec]:
    """The inputs with a number for the batch, by default the smallest that the recipe has.

    `format` names what has fixed sizes. Raises `StepError` for other sizes that vary.
    """
    numbered = []
    for spec in inputs:
        sizes = {symbol: span.min for symbol, span in spec.ranges.items()}
        if spec.batch_symbol is not None and batch_size is not None:
            sizes[spec.batch_symbol] = batch_size
        for symbol in spec.symbols:
            if symbol != spec.batch_symbol and sizes[symbol] < spec.ranges[symbol].max:
                raise StepError(
                    f"a {format} file has fixed sizes, and {symbol} of {spec.name!r} varies",
                    hint=f"write a number in place of {symbol} under `inputs:`",
                )
        shape = tuple(sizes.get(s, s) if isinstance(s, str) else s for s in spec.shape)
        numbered.append(spec.model_copy(update={"shape": shape, "ranges": {}}))
    return numbered


def dynamic_shapes(inputs: Sequence[TensorSpec]) -> tuple[dict[int, Any], ...]:
    """Per input, the `torch.export.Dim` of each dimension that varies; equal symbols share one."""
    from torch.export import Dim

    dims = {
        symbol: Dim(symbol, min=span.min, max=span.max)
        for symbol, span in _ranges(inputs).items()
        if span.min < span.max
    }
    return tuple(
        {index: dims[size] for index, size in enumerate(spec.shape) if size in dims} for spec in inputs
    )


def trace(model: torch.nn.Module, job: Job, strict: bool) -> ExportedProgram:
    """Export what `flat` gave. Raises `StepError` where a symbol of the recipe cannot vary."""
    import torch
    from torch._dynamo.exc import UserError

    def export(shapes: tuple[Any, ...]) -> ExportedProgram:
        with torch.no_grad(), plain_attention(), following():
            return torch.export.export(
                model,
                example(job.inputs),
                # A network with `forward(*tensors)` has one parameter, whose shapes are one tuple.
                dynamic_shapes=(shapes,) if isinstance(model, _flat_class()) else shapes,
                strict=strict,
            )

    shapes = dynamic_shapes(job.inputs)
    try:
        return export(shapes)
    except Exception as error:
        match = _FIXED.search(str(error))
        if match is not None:
            raise _cannot_vary(match[1], int(match[2]), job) from error
        if not isinstance(error, UserError) or "Suggested fixes" not in str(error):
            raise
        return export(_refined(str(error), shapes, job))


def program_of(model: torch.nn.Module, samples: tuple[torch.Tensor, ...]) -> ExportedProgram:
    """A network as a program for tensors of these sizes."""
    import torch

    with torch.no_grad(), plain_attention(), following():
        return torch.export.export(model, samples, strict=False)


@contextmanager
def following() -> Iterator[None]:
    """While torch.export runs. Raises `DependsOnValuesError`."""
    try:
        yield
    except Exception as error:
        text = str(error)
        if not _BY_VALUES.search(text):
            raise
        places = _CAUSED_BY.findall(text)[:1] or _IN_STACK.findall(text)[-1:]
        where = [
            f"line {line} of {'/'.join(file.split('/')[-2:])}, in {function}"
            for file, line, function in places
        ]
        raise DependsOnValuesError(
            f"torch.export cannot follow the network{' at '.join(['', *where])}: "
            "what it does there depends on values that it computes",
            hint="a detector that chooses boxes itself goes through `export_onnx`; else write this "
            "without branches on values, or return it as it is and let `postprocess` do it",
        ) from error


@contextmanager
def plain_attention() -> Iterator[None]:
    """Without the fused attention of `nn.MultiheadAttention`, which exporters do not know."""
    import torch

    mha = torch.backends.mha
    before = mha.get_fastpath_enabled()
    mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        mha.set_fastpath_enabled(before)


def _refined(message: str, shapes: tuple[Any, ...], job: Job) -> tuple[Any, ...]:
    """The shapes as torch.export wants them: a multiple of something is fine, a constant is not."""
    from torch.export.dynamic_shapes import refine_dynamic_shapes_from_suggested_fixes

    message = message.split("\n\n")[0]
    refined = tuple(refine_dynamic_shapes_from_suggested_fixes(message, shapes))
    for before, after in zip(shapes, refined, strict=True):
        for index, dim in before.items():
            if isinstance(after[index], int):
                raise _cannot_vary(dim.__name__, after[index], job)
            if str(after[index]) != str(dim):
                job.warn(f"the network does not take every {dim.__name__}, only {after[index]}")
    return refined


def _cannot_vary(symbol: str, size: int, job: Job) -> StepError:
    span = _ranges(job.inputs)[symbol]
    return StepError(
        f"the network works with {symbol} = {size} only, wanted {span.min} to {span.max}",
        hint=f"write {size} instead of {symbol} under `inputs:`, or correct the network's forward()",
    )


def _ranges(inputs: Sequence[TensorSpec]) -> dict[str, SymbolRange]:
    """Every symbol and its range; the inputs that share a symbol share the range of the first."""
    ranges: dict[str, SymbolRange] = {}
    for spec in inputs:
        for symbol in spec.symbols:
            ranges.setdefault(symbol, spec.ranges[symbol])
    return ranges


def _sized(inputs: Sequence[TensorSpec]) -> list[TensorSpec]:
    """The specs with every symbol that varies pinned to a size that no other dimension has."""
    ranges = _ranges(inputs)
    used = {size for spec in inputs for size in spec.shape if isinstance(size, int)}
    sizes: dict[str, int] = {}
    for symbol, span in ranges.items():
        candidates = [span.opt, *range(max(2, span.min), span.max + 1)]
        free = [size for size in candidates if size >= 2 and size not in used]
        sizes[symbol] = free[0] if free else span.opt
        used.add(sizes[symbol])
    return [
        spec.model_copy(
            update={"shape": tuple(sizes.get(s, s) if isinstance(s, str) else s for s in spec.shape)}
        )
        for spec in inputs
    ]


@cache
def _flat_class() -> type[torch.nn.Module]:
    """The class of the wrapper, made at first use: a base class cannot be imported lazily."""
    import torch

    class Flat(torch.nn.Module):  # type: ignore[misc]
        """One tensor per input, by position, to a tensor or a tuple of tensors."""

        def __init__(self, model: torch.nn.Module, call: Arguments, names: tuple[str, ...]) -> None:
            super().__init__()
            self.model = model
            self._call = call
            self._names = names

        def forward(self, *tensors: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
            positional, keyword = self._call.split(dict(zip(self._names, tensors, strict=True)))
            outputs = tuple(flatten_outputs(self.model(*positional, **keyword)).values())
            return outputs[0] if len(outputs) == 1 else outputs

    return Flat
