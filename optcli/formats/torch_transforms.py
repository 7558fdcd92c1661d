"""What can be done to a network after it was built, so that its weights fit: name to function.

A record is plain JSON data with its `name`. Applying the same record to the same network always
gives the same network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from optcli.errors import InputError
from optcli.formats import (
    torch_blocks,
    torch_compiled,
    torch_modules,
    torch_pruning,
    torch_quantized,
)

if TYPE_CHECKING:
    import torch

Transform = Callable[["torch.nn.Module", dict[str, Any]], "torch.nn.Module"]


def _unchanged(model: torch.nn.Module, record: dict[str, Any]) -> torch.nn.Module:
    """A record about how the network is called, which whoever runs it reads."""
    return model


def _channels_last(model: torch.nn.Module, record: dict[str, Any]) -> torch.nn.Module:
    import torch

    converted: torch.nn.Module = model.to(memory_format=torch.channels_last)
    for module in torch_modules.modules(converted):
        # With one channel both layouts are the same numbers: Inductor takes the output for the other
        # one than the convolution makes, and reads it in the wrong order.
        if isinstance(module, torch.nn.Conv2d) and module.in_channels == 1:
            module.weight.data = module.weight.detach().clone(memory_format=torch.contiguous_format)
    return converted


TABLE: dict[str, Transform] = {
    "prune": torch_pruning.apply,
    torch_blocks.NAME: torch_blocks.apply,
    "channels_last": _channels_last,
    "autocast": _unchanged,
    torch_compiled.NAME: _unchanged,
    torch_quantized.NAME: torch_quantized.apply,
}


def apply(model: torch.nn.Module, record: dict[str, Any]) -> torch.nn.Module:
    """The network after one transform. Raises `InputError` for a name that is not in the table."""
    transform = TABLE.get(record["name"])
    if transform is None:
        raise InputError(
            f"the artifact needs a transform {record['name']!r} that this optcli does not know",
            hint="it was written by a newer optcli: update, or build again",
        )
    return transform(model, record)
