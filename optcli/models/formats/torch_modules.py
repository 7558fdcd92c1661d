"""The methods of `nn.Module`, whatever a network calls its own attributes.

A network may have an attribute called `modules` or `parameters` (ESPNet keeps a list under that name);
then `network.modules()` does not call PyTorch's method. The functions here do: they take the method of
the network's class, which may be one of its own, or that of `nn.Module` where the class holds something
else under that name.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


def modules(network: nn.Module) -> Iterator[nn.Module]:
    """The network and all modules in it."""
    return (module for _, module in named_modules(network))


def named_modules(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules with their names, the network itself as the empty one."""
    yield from _called(network, "named_modules")


def children(network: nn.Module) -> Iterator[nn.Module]:
    """The modules directly in it."""
    return (module for _, module in _called(network, "named_children"))


def parameters(network: nn.Module) -> Iterator[nn.Parameter]:
    """All parameters."""
    return (value for _, value in named_parameters(network))


def named_parameters(network: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """All parameters with their names."""
    yield from _called(network, "named_parameters")


def buffers(network: nn.Module) -> Iterator[Tensor]:
    """All buffers."""
    return (value for _, value in named_buffers(network))


def named_buffers(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """All buffers with their names."""
    yield from _called(network, "named_buffers")


def evaluating(network: Any) -> Any:
    """The network in evaluation mode."""
    return _called(network, "eval")


def on(network: Any, device: torch.device | str) -> Any:
    """The network on a device."""
    return _called(network, "to", device)


def state(network: nn.Module) -> Any:
    """Its state dict."""
    return _called(network, "state_dict")


def _called(network: nn.Module, name: str, *arguments: Any) -> Any:
    from torch import nn

    own = getattr(type(network), name, None)
    method = own if inspect.isfunction(own) else getattr(nn.Module, name)
    return method(network, *arguments)
