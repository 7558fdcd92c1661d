"""Smaller learning rates for layers that read large values, such as pixels of 0 to 255.

A step of AdamW is as long for every weight, so it moves the outputs of a layer in proportion to the
values that it reads. Layers that read more than usual have a share of the learning rate that makes up
for it: without that, a few steps ruin the first layer of a detector that takes pixels as they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optcli.models.formats import torch_modules

if TYPE_CHECKING:
    import torch

    from optcli.passes._torch.examples import Examples
    from optcli.passes._torch.learning import Call

# The root mean square of what layers of normalized networks read at most.
_USUAL = 4.0


def rate_shares(model: torch.nn.Module, call: Call, batch: Examples) -> dict[int, float]:
    """The share of the learning rate, below 1, of weights by their `id`; of all others it is 1.

    `call` runs the network, which is left in evaluation mode, on a batch.
    """
    import torch

    shares: dict[int, float] = {}

    def look(layer: Any, given: Any) -> None:
        values = given[0]
        if isinstance(values, torch.Tensor) and values.is_floating_point():
            size = float(values.float().square().mean().sqrt())
            if size > _USUAL:
                share = min(_USUAL / size, shares.get(id(layer.weight), 1.0))
                shares[id(layer.weight)] = share

    kinds = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)
    layers = [each for each in torch_modules.modules(model) if isinstance(each, kinds)]
    torch_modules.evaluating(model)
    hooks = [each.register_forward_pre_hook(look) for each in layers]
    try:
        with torch.no_grad():
            call(batch)
    finally:
        for hook in hooks:
            hook.remove()
    return shares


def groups(values: list[torch.nn.Parameter], shares: dict[int, float]) -> list[dict[str, Any]]:
    """The parameters as an optimizer takes them, those of a share in a group of their own."""
    by_share: dict[float, list[torch.nn.Parameter]] = {}
    for value in values:
        by_share.setdefault(shares.get(id(value), 1.0), []).append(value)
    return [{"params": each, "share": share} for share, each in by_share.items()]
