"""Quantized networks in PyTorch: their linear layers are replaced, the same way each time.

A record of the transform `quantize` names the layers, so that a network built anew gets the same ones:

    {name: quantize, engine: torchao | eager, kind: dynamic | weights, modules: [...],
     per_channel: bool, group_size: int | null}

torchao keeps a weight as a tensor class of its own; importing it tells `torch.load(weights_only=True)`
which of its classes are plain data. The eager engine replaces whole modules.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

from optcli.errors import MissingError, raised_as
from optcli.models.formats import torch_modules

if TYPE_CHECKING:
    import torch

NAME = "quantize"
Engine = Literal["torchao", "eager"]


def apply(model: torch.nn.Module, record: dict[str, Any]) -> torch.nn.Module:
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


def precision(model: torch.nn.Module) -> str | None:
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
