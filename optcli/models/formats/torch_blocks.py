"""Removing whole blocks of a network: what stands in their place passes the first input on.

The other modules keep their names, so that weights, patterns and a teacher still fit. An exporter sees
no operator where the block was.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from optcli.errors import InputError

if TYPE_CHECKING:
    import torch

NAME = "remove_blocks"


def record(blocks: Sequence[str]) -> dict[str, Any]:
    """The record of a network without these modules."""
    return {"name": NAME, "blocks": list(blocks)}


def apply(model: torch.nn.Module, record: dict[str, Any]) -> torch.nn.Module:
    """Remove the `blocks` of a record, in place. Raises `InputError` for one that is not there."""
    for name in record["blocks"]:
        try:
            replace(model, name, passing(model.get_submodule(name)))
        except AttributeError as error:
            raise InputError(
                f"the artifact was made without the block {name!r}, and the network has no such module",
                hint="the network's code was changed since: build again",
            ) from error
    return model


def replace(model: torch.nn.Module, name: str, module: torch.nn.Module) -> None:
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
