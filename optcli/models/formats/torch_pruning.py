"""Structured pruning that can be repeated: which channels go, found by tracing what depends on what.

Torch-Pruning (https://github.com/VainF/Torch-Pruning, "DepGraph: Towards Any Structural Pruning",
CVPR 2023) traces the network and removes coupled channels together. Its history names the root layer
and the channels of every removal, so that a fresh network is cut to the same shape.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from optcli.models.formats import torch_modules
from optcli.models.formats.torch_calls import arguments, example_inputs, flatten_outputs
from optcli.settings import TensorSpec, batch_range

if TYPE_CHECKING:
    import torch
    from torch_pruning import DependencyGraph


# No group of a network that can be followed comes near: a flattened 7x7x512 has 25,088.
_MOST_AT_ONCE = 1 << 20
_MOST_INDICES = 1 << 24


def apply(model: torch.nn.Module, record: dict[str, Any]) -> torch.nn.Module:
    """Cut a network as a record says, in place: its `history`, traced with its `inputs`."""
    inputs = [TensorSpec.model_validate(spec) for spec in record["inputs"]]
    with traceable(model):
        trace(model, inputs).load_pruning_history([list(step) for step in record["history"]])
    return model


def trace(model: torch.nn.Module, inputs: Sequence[TensorSpec]) -> DependencyGraph:
    """Which channels depend on which. To be called, and its result used, inside `traceable`."""
    import torch_pruning

    call = arguments(model, inputs)
    size = min(2, batch_range(inputs).max) if inputs else 2

    def forward(network: torch.nn.Module, feed: dict[str, torch.Tensor]) -> Any:
        positional, keyword = call.split(feed)
        return network(*positional, **keyword)

    def outputs(output: Any) -> list[torch.Tensor]:
        # The product gives every output a node of its own, by which its layers are recognized.
        return [value * 1 for value in flatten_outputs(output).values() if value.grad_fn is not None]

    return torch_pruning.DependencyGraph().build_dependency(
        model,
        example_inputs=example_inputs(inputs, size),
        forward_fn=forward,
        output_transform=outputs,
        verbose=False,
    )


class EntangledError(Exception):
    """Torch-Pruning has lost its way in a group of layers: it wants more channels than there are."""


@contextmanager
def traceable(model: torch.nn.Module) -> Iterator[None]:
    """Gradients on for every parameter, which tracing follows; Torch-Pruning's warnings kept quiet.

    Inside, a group that Torch-Pruning would follow for ever raises `EntangledError`.
    """
    import torch

    frozen = {name for name, value in torch_modules.named_parameters(model) if not value.requires_grad}
    for value in torch_modules.parameters(model):
        if value.is_floating_point():
            value.requires_grad_(True)
    with torch.enable_grad(), warnings.catch_warnings(), _bounded():
        warnings.simplefilter("ignore")
        yield
    for name, value in torch_modules.named_parameters(model):
        value.requires_grad_(name not in frozen)


@contextmanager
def _bounded() -> Iterator[None]:
    """Stop where a layer is to lose more channels than it has.

    Shifted windows (Swin) do that: channels are multiplied at every reshape, and it takes hours.
    """
    from torch_pruning.dependency.group import Group

    add = Group.add_dep

    def bounded(group: Group, dep: Any, idxs: list[Any]) -> None:
        group.followed = getattr(group, "followed", 0) + len(idxs)
        if len(idxs) > _channels(dep.target.module) or group.followed > _MOST_INDICES:
            raise EntangledError(f"{dep.target} would lose {len(idxs)} channels")
        add(group, dep, idxs)

    Group.add_dep = bounded
    try:
        yield
    finally:
        Group.add_dep = add


def _channels(module: Any) -> int:
    """The most channels that a layer can have, by its weights; very many for an operation."""
    import torch

    if not isinstance(module, torch.nn.Module):
        return _MOST_AT_ONCE
    sizes = [size for value in torch_modules.parameters(module) for size in value.shape]
    return max(*sizes, getattr(module, "in_channels", 0)) if sizes else _MOST_AT_ONCE
