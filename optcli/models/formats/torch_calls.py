"""Calling a network: which input goes where, and what its outputs are called."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from optcli.settings import TensorSpec, image_size

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

_SHORT = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}


@dataclass(frozen=True)
class Arguments:
    """How the recipe's inputs become the arguments of `forward`: some by position, the rest by name."""

    positional: tuple[str, ...]
    keyword: tuple[str, ...] = ()

    @property
    def order(self) -> tuple[str, ...]:
        """All input names in the order of the call."""
        return (*self.positional, *self.keyword)

    def split(self, feed: Mapping[str, T]) -> tuple[tuple[T, ...], dict[str, T]]:
        """Positional and keyword arguments made from values by input name."""
        positional = tuple(feed[name] for name in self.positional)
        return positional, {name: feed[name] for name in self.keyword}


def arguments(model: torch.nn.Module, inputs: Sequence[TensorSpec]) -> Arguments:
    """How to call the network: by name if every input is a parameter of `forward`, else in order.

    Inputs bound by name are passed by position as far as they are the leading parameters, which is
    what exporters like best.
    """
    names = [spec.name for spec in inputs]
    try:
        parameters = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return Arguments(tuple(names))
    bindable = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    kinds = {name: parameter.kind for name, parameter in parameters.items()}
    if not all(kinds.get(name) in bindable for name in names):
        return Arguments(tuple(names))
    by_name = [name for name, kind in kinds.items() if kind is inspect.Parameter.KEYWORD_ONLY]
    return bound(names, list(kinds), by_name)


def bound(names: Sequence[str], parameters: Sequence[str], by_name: Sequence[str] = ()) -> Arguments:
    """The call of a function with these parameters; those in `by_name` cannot be given by position."""
    if not set(names) <= set(parameters):
        return Arguments(tuple(names))
    leading: list[str] = []
    for name in parameters:
        if name not in names or name in by_name:
            break
        leading.append(name)
    rest = tuple(name for name in parameters if name in names and name not in leading)
    return Arguments(tuple(leading), rest)


def example_inputs(
    inputs: Sequence[TensorSpec], batch_size: int, seed: int = 0
) -> dict[str, torch.Tensor]:
    """Random inputs of a batch size: normal values for floats, 0 or 1 for whole numbers.

    Those that have a value have it; images are then as large as the input.
    """
    import torch

    generator = torch.Generator().manual_seed(seed)
    feed: dict[str, torch.Tensor] = {}
    for spec in inputs:
        dtype, shape = getattr(torch, spec.dtype), spec.concrete(batch_size)
        if spec.value is not None:
            feed[spec.name] = torch.tensor(spec.filled(batch_size, image_size(inputs)))
        elif dtype.is_floating_point:
            feed[spec.name] = torch.randn(shape, generator=generator).to(dtype)
        else:
            feed[spec.name] = torch.randint(0, 2, shape, generator=generator).to(dtype)
    return feed


def channels_last(value: torch.Tensor) -> torch.Tensor:
    """An image with its channels last in memory; any other tensor as it is."""
    import torch

    return value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value


def short(dtype: torch.dtype) -> str:
    """The short name of an element type: `fp32` for torch.float32; its own name for other types."""
    name = str(dtype).removeprefix("torch.")
    return _SHORT.get(name, name)


def flatten_outputs(outputs: Any) -> dict[str, torch.Tensor]:
    """The tensors among a network's outputs by name, in order.

    A single tensor is `output`; dicts, named tuples and dataclasses give their keys; tuples and lists
    `output_0`, `output_1`, ...; what is nested is joined with `.`. Other values (None, numbers) are
    left out, and keep their number.
    """
    import torch

    if isinstance(outputs, torch.Tensor):
        return {"output": outputs}
    return dict(_named(outputs, ""))


def _named(value: Any, name: str) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    if isinstance(value, torch.Tensor):
        yield name, value
        return
    dot = f"{name}." if name else ""
    if isinstance(value, Mapping):
        items = [(f"{dot}{key}", item) for key, item in value.items()]
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        items = [(f"{dot}{key}", item) for key, item in zip(value._fields, value, strict=True)]
    elif dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        items = [(f"{dot}{field.name}", getattr(value, field.name)) for field in fields]
    elif isinstance(value, tuple | list):
        prefix = dot or "output_"
        items = [(f"{prefix}{index}", item) for index, item in enumerate(value)]
    else:
        return
    for key, item in items:
        yield from _named(item, key)
