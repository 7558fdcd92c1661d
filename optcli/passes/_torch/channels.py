"""Which channels to remove: the choice that `prune` makes in a traced network."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optcli.errors import StepError
from optcli.models.formats import torch_modules
from optcli.passes._torch.networks import matching

if TYPE_CHECKING:
    import torch
    from torch_pruning import DependencyGraph


@dataclass(frozen=True)
class Criteria:
    """Which channels are to go: the options of `prune` of the same names."""

    ratio: float
    importance: str
    global_ranking: bool
    round_to: int
    max_ratio: float
    keep: Sequence[str]


@dataclass(frozen=True)
class ChannelSelection:
    """`picked`: what is cut of every group that loses channels.

    `groups` counts all groups of coupled layers, `kept` those that must not be touched. `lost` names
    the modules of those of them that Torch-Pruning cannot follow.
    """

    picked: list[ChannelCut]
    groups: int
    kept: int
    lost: list[str]


@dataclass(frozen=True)
class ChannelCut:
    """The output channels that a module loses, with what depends on them; `layers` lose some as well.

    `layers` are convolutions and linear layers.
    """

    module: str
    channels: list[int]
    layers: list[str]


@dataclass(frozen=True)
class _Group:
    """Coupled layers, with the importance of each channel that may go on its own.

    Where layers are divided (grouped convolutions, group norms), or a channel stands beside what is
    made of it (GhostNet), the same channel goes from each of the `parts`, and `scores` has one value
    for all of them.
    """

    root: str
    scores: torch.Tensor
    parts: int
    layers: list[str]

    def indices(self, count: int) -> list[int]:
        """The channels of the root that go when `count` of each part do."""
        import torch

        picked = torch.argsort(self.scores, stable=True)[:count]
        size = len(self.scores)
        return sorted(int(index) + part * size for part in range(self.parts) for index in picked)


def choose(model: torch.nn.Module, graph: DependencyGraph, criteria: Criteria) -> ChannelSelection:
    """The channels to remove. Raises `StepError` for a pattern in `keep` that matches nothing."""
    import torch

    kept_modules = _excluded(model, criteria.keep)
    cautious = any(_is_attention(module) for module in torch_modules.modules(model))
    groups: list[_Group] = []
    total = remaining = 0
    lost: list[str] = []
    score = _importance(criteria.importance)
    with torch.no_grad():
        for name, group in _groups(graph):
            total += 1
            if group is None or _must_stay(group, graph, kept_modules, cautious):
                remaining += 1
                lost += [name] if group is None else []
                continue
            try:
                scores = score(group)
                described = None if scores is None else _described(group, graph, scores)
            except Exception:  # its map of channels does not fit the layers, as behind `chunk`
                remaining += 1
                lost.append(name)
                continue
            if described is not None:
                groups.append(described)
                if not bool(torch.isfinite(described.scores).all()):
                    raise _no_number(described, criteria.importance)
    if not groups and criteria.importance == "batchnorm" and total > remaining:
        raise StepError(
            "the network has no batch norm to rank its channels by", hint="importance: magnitude"
        )
    picked = [
        ChannelCut(group.root, group.indices(count), group.layers)
        for group, count in zip(groups, _counts(groups, criteria), strict=True)
        if count > 0
    ]
    return ChannelSelection(picked, total, remaining, lost)


def _no_number(group: _Group, importance: str) -> StepError:
    return StepError(
        f"the {importance} importance of the channels of {', '.join(group.layers[:2])} is no number: "
        "their weights, or the gradients of the loss, are all zero",
        hint="use trained weights, or set `importance: random`, which needs none",
    )


def _groups(graph: DependencyGraph) -> Iterator[tuple[str, Any]]:
    """Every group of coupled layers, by a module of it, with all its channels.

    None in its place where it cannot be followed.
    """
    from torch_pruning import ops

    seen: set[Any] = set()
    for module in list(graph.module2node):
        if module in seen or not isinstance(module, (ops.TORCH_CONV, ops.TORCH_LINEAR)):
            continue
        pruner = graph.get_pruner_of_module(module)
        count = pruner.get_out_channels(module) if pruner is not None else None
        if count is None:
            continue
        try:
            group = graph.get_pruning_group(module, pruner.prune_out_channels, list(range(count)))
        except Exception:  # an `EntangledError`, or whatever goes wrong within Torch-Pruning
            yield graph._module2name[module], None
            continue
        seen.update(d.target.module for d, _ in group if graph.is_out_channel_pruning_fn(d.handler))
        yield graph._module2name[module], group


def _counts(groups: Sequence[_Group], criteria: Criteria) -> list[int]:
    """How many channels each part of each group loses."""
    import torch

    if not groups:
        return []
    raw = [len(group.scores) * criteria.ratio for group in groups]
    if criteria.global_ranking:
        ranked = torch.cat([group.scores for group in groups]).sort().values
        threshold = ranked[max(0, round(len(ranked) * criteria.ratio) - 1)]
        raw = [float((group.scores <= threshold).sum()) for group in groups]
    return [_rounded(n, group, criteria) for n, group in zip(raw, groups, strict=True)]


def _rounded(count: float, group: _Group, criteria: Criteria) -> int:
    """The nearest count that leaves a multiple of `round_to`, within `max_ratio`."""
    size = len(group.scores)
    step = criteria.round_to // math.gcd(criteria.round_to, group.parts)
    least = max(step, math.ceil(size * (1 - criteria.max_ratio) / step) * step)
    left = max(least, math.floor((size - count) / step + 0.5) * step)
    return max(0, size - left)


def _importance(name: str) -> Any:
    from torch_pruning import importance

    kinds = {
        "magnitude": importance.GroupMagnitudeImportance,
        "taylor": importance.GroupTaylorImportance,
        "batchnorm": importance.BNScaleImportance,
        "random": importance.RandomImportance,
    }
    return kinds[name]()


def _described(group: Any, graph: DependencyGraph, scores: torch.Tensor) -> _Group:
    parts, layers = _copies(group, graph, len(scores)), []
    for dep, _ in group:
        module, out = dep.target.module, graph.is_out_channel_pruning_fn(dep.handler)
        parts = max(parts, _parts(module, graph, out))
        if out and hasattr(module, "weight") and getattr(module.weight, "ndim", 0) > 1:
            layers.append(graph._module2name[module])
    if parts > 1 and len(scores) % parts == 0:
        scores = scores.view(parts, -1).mean(0)
    root = graph._module2name[group[0].dep.target.module]
    return _Group(root, scores, parts, sorted(set(layers)))


def _copies(group: Any, graph: DependencyGraph, width: int) -> int:
    """Into how many equal parts a layer is divided of which channels go together, by its first one."""
    first = group[0].dep
    with_it = graph.get_pruning_group(first.target.module, first.handler, [0])
    also = {
        index
        for dep, indices in with_it
        if dep.target.module is first.target.module and graph.is_out_channel_pruning_fn(dep.handler)
        for index in indices
    }
    return len(also) if sorted(also) == list(range(0, width, max(1, width // len(also)))) else 1


def _parts(module: Any, graph: DependencyGraph, out: bool) -> int:
    """Into how many equal parts a layer divides its channels; a depthwise convolution into none."""
    pruner = graph.get_pruner_of_module(module)
    if pruner is None or not hasattr(module, "named_parameters"):
        return 1
    if getattr(module, "groups", 1) == getattr(module, "out_channels", None):
        return 1
    count = pruner.get_out_channel_groups(module) if out else pruner.get_in_channel_groups(module)
    return int(count)


def _must_stay(group: Any, graph: DependencyGraph, protected: set[Any], cautious: bool) -> bool:
    """Whether a group reaches an output, holds a module to keep, or has a width that is fixed."""
    from torch import nn
    from torch_pruning import ops

    for dep, _ in group:
        module = dep.target.module
        if dep.target.type == ops.OPTYPE.OUTPUT or _pads_channels(dep.target):
            return True
        if module in protected and graph.is_out_channel_pruning_fn(dep.handler):
            return True
        if cautious and isinstance(module, nn.LayerNorm | nn.MultiheadAttention | nn.Parameter):
            return True
    return False


def _pads_channels(node: Any) -> bool:
    """Whether zeros are added to the channels (shortcuts of CIFAR ResNets): the tracing misses it."""
    pad = getattr(node.grad_fn, "_saved_pad", ())
    return len(pad) >= 6 and any(size != 0 for size in pad[4:6])


def _is_attention(module: Any) -> bool:
    """An attention reads its width as heads times size, which a removed channel would shift.

    The innermost module with `num_heads` is meant: the blocks around it often carry that number too.
    """
    from torch import nn

    if isinstance(module, nn.MultiheadAttention):
        return True
    inner = (part for part in torch_modules.modules(module) if part is not module)
    return isinstance(getattr(module, "num_heads", None), int) and not any(map(_is_attention, inner))


def _excluded(model: torch.nn.Module, patterns: Sequence[str]) -> set[Any]:
    """The modules that `keep` names, those inside them, and the layers inside attentions."""
    named = dict(torch_modules.named_modules(model))
    protected: set[Any] = set()
    for name in matching(patterns, filter(None, named), "keep"):
        protected.update(torch_modules.modules(named[name]))
    for module in named.values():
        if _is_attention(module) and module is not model:
            protected.update(torch_modules.modules(module))
    return protected
