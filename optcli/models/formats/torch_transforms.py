"""The transforms of a network that can be repeated: its `model.json` has a record of each.

- `prune`: channels go, by a trace of what depends on what. Torch-Pruning
  (https://github.com/VainF/Torch-Pruning, "DepGraph: Towards Any Structural Pruning", CVPR 2023) traces
  the network and removes coupled channels together. Its history names the root layer and the channels
  of every removal, so that a fresh network is cut to the same shape.
- `remove_blocks`: whole blocks go; what stands in their place passes the first input on. The other
  modules keep their names, so that weights, patterns and a teacher still fit.
- `quantize`: linear layers are replaced. A record names them:

      {name: quantize, engine: torchao | eager, kind: dynamic | weights, modules: [...],
       per_channel: bool, group_size: int | null}

  torchao keeps a weight as a tensor class of its own; importing it tells
  `torch.load(weights_only=True)` which of its classes are plain data. The eager engine replaces whole
  modules.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from optcli.errors import InputError, MissingError, raised_as
from optcli.models.formats import torch_modules
from optcli.models.formats.torch_calls import arguments, example_inputs, flatten_outputs
from optcli.settings import TensorSpec, batch_range

if TYPE_CHECKING:
    import torch
    from torch_pruning import DependencyGraph

# No group of a network that can be followed comes near: a flattened 7x7x512 has 25,088.
_MOST_AT_ONCE = 1 << 20
_MOST_INDICES = 1 << 24

REMOVE_BLOCKS = "remove_blocks"

QUANTIZE = "quantize"
Engine = Literal["torchao", "eager"]


def prune(model: torch.nn.Module, record: dict[str, Any]) -> torch.nn.Module:
    """Cut a network as a record says, in place: its `history`, traced with its `inputs`."""
    inputs = [TensorSpec.model_validate(spec) for spec in record["inputs"]]
    with traceable(model):
        trace(model, inputs).load_pruning_history([list(step) for step in record["history"]])
    return model


def trace(model: torch.nn.Module, inputs: Sequence[TensorSpec]) -> DependencyGraph:
    """Which channels depend on which. To be called, and its result used, inside `traceable`.

    Torch-Pruning does not follow channels through a shuffle. So the graph ends where channels are
    divided into groups, as at an output, and starts again behind it: both sides keep their channels.
    """
    import torch_pruning

    call = arguments(model, inputs)
    size = min(2, batch_range(inputs).max) if inputs else 2
    ends: list[torch.Tensor] = []

    def forward(network: torch.nn.Module, feed: dict[str, torch.Tensor]) -> Any:
        positional, keyword = call.split(feed)
        with _ending_at_shuffles(ends):
            return network(*positional, **keyword)

    def outputs(output: Any) -> list[torch.Tensor]:
        values = [*ends, *flatten_outputs(output).values()]
        # The product gives every output a node of its own, by which its layers are recognized.
        return [value * 1 for value in values if value.grad_fn is not None]

    return torch_pruning.DependencyGraph().build_dependency(
        model,
        example_inputs=example_inputs(inputs, size),
        forward_fn=forward,
        output_transform=outputs,
        verbose=False,
    )


def _ending_at_shuffles(ends: list[torch.Tensor]) -> AbstractContextManager[Any]:
    """Divide the autograd graph of a network at shuffles of channels; appends what goes into these."""
    import torch
    from torch.overrides import TorchFunctionMode

    shuffles = {torch.channel_shuffle, torch.pixel_shuffle, torch.pixel_unshuffle}
    views = {
        *(torch.Tensor.view, torch.Tensor.reshape, torch.reshape),
        *(torch.Tensor.unflatten, torch.unflatten),
    }

    def divides_channels(before: Sequence[int], after: Sequence[int]) -> bool:
        """Whether images [N, C, H, W] became [N, groups, C / groups, ...]."""
        if len(before) != 4 or len(after) < 4 or before[0] != after[0]:
            return False
        return 1 < after[1] < before[1] == after[1] * after[2]

    class Mode(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            value = func(*args, **(kwargs or {}))
            if func not in shuffles | views or not args or args[0].grad_fn is None:
                return value
            if func in views and not divides_channels(args[0].shape, value.shape):
                return value
            ends.append(args[0])
            # No leaf: what follows may change it in place.
            return func(args[0].detach().requires_grad_() * 1, *args[1:], **(kwargs or {}))

    return Mode()


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

    Shifted windows (Swin) do that: channels are multiplied at every reshape, and it takes hours. And
    let a concatenation be whose parts have no known channels, as of anchors: Torch-Pruning adds None.
    """
    from torch_pruning.dependency import index_mapping
    from torch_pruning.dependency.group import Group

    add, concatenated = Group.add_dep, index_mapping.update_concat_index_mapping

    def bounded(group: Group, dep: Any, idxs: list[Any]) -> None:
        group.followed = getattr(group, "followed", 0) + len(idxs)
        if len(idxs) > _channels(dep.target.module) or group.followed > _MOST_INDICES:
            raise EntangledError(f"{dep.target} would lose {len(idxs)} channels")
        add(group, dep, idxs)

    def known(graph: Any, node: Any) -> None:
        with suppress(TypeError):
            concatenated(graph, node)

    Group.add_dep, index_mapping.update_concat_index_mapping = bounded, known
    try:
        yield
    finally:
        Group.add_dep, index_mapping.update_concat_index_mapping = add, concatenated


def _channels(module: Any) -> int:
    """The most channels that a layer can have, by its weights; very many for an operation."""
    import torch

    if not isinstance(module, torch.nn.Module):
        return _MOST_AT_ONCE
    sizes = [size for value in torch_modules.parameters(module) for size in value.shape]
    return max(*sizes, getattr(module, "in_channels", 0)) if sizes else _MOST_AT_ONCE


def record_of_blocks(blocks: Sequence[str]) -> dict[str, Any]:
    """The record of a network without these modules."""
    return {"name": REMOVE_BLOCKS, "blocks": list(blocks)}


def remove_blocks(model: torch.nn.Module, record: dict[str, Any]) -> torch.nn.Module:
    """Remove the `blocks` of a record, in place. Raises `InputError` for one that is not there."""
    for name in record["blocks"]:
        try:
            replace_module(model, name, passing(model.get_submodule(name)))
        except AttributeError as error:
            raise InputError(
                f"the artifact was made without the block {name!r}, and the network has no such module",
                hint="the network's code was changed since: build again",
            ) from error
    return model


def replace_module(model: torch.nn.Module, name: str, module: torch.nn.Module) -> None:
    """Put a module in another's place. Raises `AttributeError` where there is none of that name."""
    model.get_submodule(name)
    parent, _, child = name.rpartition(".")
    model.get_submodule(parent)._modules[child] = module


def passing(block: torch.nn.Module) -> torch.nn.Module:
    """What stands in the place of a block: its first argument is its output, others are not used."""
    import torch

    if len(inspect.signature(block.forward).parameters) == 1:
        return torch.nn.Identity().train(block.training)
    return _passing_class()().train(block.training)


@cache
def _passing_class() -> type[torch.nn.Module]:
    """The class for blocks of several arguments, made at first use: see the imports."""
    import torch

    class Passing(torch.nn.Module):  # type: ignore[misc]
        """Gives its first argument back; masks and the like are taken and not used."""

        def forward(self, x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            return x

    return Passing


def quantize(model: torch.nn.Module, record: dict[str, Any]) -> torch.nn.Module:
    """Quantize the layers that a record names, in place. Raises `MissingError` without torchao."""
    names = set(record["modules"])
    if record["engine"] == "eager":
        return _eager(model, names, record["per_channel"])
    message = "the network is quantized with torchao, which cannot be imported"
    hint = "pip install torchao"
    with raised_as(MissingError, message, of=ImportError, hint=hint):
        from torchao.quantization import quantize_
    quantize_(model, _configuration(record), filter_fn=lambda _, name: name in names)
    return model


def linear_layers(model: torch.nn.Module, engine: Engine) -> list[str]:
    """The names of the layers that an engine can quantize.

    Left out are the projections of `nn.MultiheadAttention`, whose weights its forward() reads itself;
    the eager engine also leaves `nn.TransformerEncoderLayer`, which does the same.
    """
    import torch

    fused = [
        name
        for name, module in torch_modules.named_modules(model)
        if engine == "eager" and isinstance(module, torch.nn.TransformerEncoderLayer)
    ]
    return [
        name
        for name, module in torch_modules.named_modules(model)
        if type(module) is torch.nn.Linear and not any(name.startswith(f"{each}.") for each in fused)
    ]


def quantized_precision(model: torch.nn.Module) -> str | None:
    """`int8`, `int8-dynamic` or `int8-weights` for a quantized network, None for every other."""
    kinds = set(_kinds(model))
    for kind in ("int8", "int8-dynamic", "int8-weights"):
        if kind in kinds:
            return kind
    return None


def _kinds(model: torch.nn.Module) -> Iterator[str]:
    for module in torch_modules.modules(model):
        if type(module).__module__.startswith("torch.ao.nn.quantized.dynamic"):
            yield "int8-dynamic"
        # An exported program: its graph says what it quantizes, and when.
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            if "quantized_decomposed.quantize_per_tensor.default" in str(node.target):
                yield "int8"
            if "quantized_decomposed.choose_qparams" in str(node.target):
                yield "int8-dynamic"
    for value in torch_modules.parameters(model):
        if type(value).__name__ == "Int8Tensor":
            activations = getattr(value, "act_quant_kwargs", None)
            yield "int8-weights" if activations is None else "int8-dynamic"


def _configuration(record: dict[str, Any]) -> Any:
    from torchao.quantization import (
        Int8DynamicActivationInt8WeightConfig,
        Int8WeightOnlyConfig,
        PerGroup,
        PerRow,
        PerTensor,
    )

    scales = PerRow() if record["per_channel"] else PerTensor()
    if record["kind"] == "dynamic":
        # Left alone it changes settings of the compiler for the whole process.
        return Int8DynamicActivationInt8WeightConfig(granularity=scales, set_inductor_config=False)
    if record["group_size"] is not None:
        scales = PerGroup(record["group_size"])
    return Int8WeightOnlyConfig(granularity=scales, set_inductor_config=False)


def _eager(model: torch.nn.Module, names: set[str], per_channel: bool) -> torch.nn.Module:
    import torch
    from torch.ao import quantization

    config = (
        quantization.per_channel_dynamic_qconfig
        if per_channel
        else quantization.default_dynamic_qconfig
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is deprecated is said where it is chosen
        return quantization.quantize_dynamic(
            model, dict.fromkeys(sorted(names), config), dtype=torch.qint8, inplace=True
        )
