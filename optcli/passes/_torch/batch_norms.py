"""Batch normalization in an exported program, folded into the convolutions before it.

ONNX exporters fold it at their end. Until then it is a third of the operators of most convolutional
networks, and takes part in each of their steps. What folding it first gains: benchmarks/README.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram
    from torch.fx import Node

_CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
# Of aten.convNd: the weight and the bias among its arguments.
_WEIGHT, _BIAS = 1, 2


def fold(program: ExportedProgram) -> int:
    """Fold what can be folded, in place; returns how many were.

    That is in FP32, behind a convolution that nobody else reads, whose weights nobody else reads. The
    network that was exported keeps its own weights.
    """
    targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs}
    graph, state = program.graph, program.state_dict
    folded = 0
    for node in list(graph.nodes):
        pair = _pair(node)
        if pair is None:
            continue
        names = [_name(each, targets, state) for each in pair.parameters]
        bias = next((each for each in (pair.bias, pair.shift, pair.mean) if _is_own(each)), None)
        if None in names or bias is None or not _is_own(pair.weight):
            continue
        _fold_weights(pair, targets, state, bias)
        arguments = [*pair.convolution.args, None][: max(len(pair.convolution.args), _BIAS + 1)]
        arguments[_BIAS] = bias
        pair.convolution.args = tuple(arguments)
        node.replace_all_uses_with(pair.convolution)
        graph.erase_node(node)
        folded += 1
    if folded:
        program.graph_module.recompile()
    return folded


@dataclass(frozen=True)
class _Pair:
    """A convolution and the normalization behind it, by their arguments; None: there is none."""

    convolution: Node
    weight: Node
    bias: Node | None
    scale: Node | None
    shift: Node | None
    mean: Node
    variance: Node
    epsilon: float

    @property
    def parameters(self) -> list[Node]:
        """Those arguments that hold numbers."""
        everything = (self.weight, self.bias, self.scale, self.shift, self.mean, self.variance)
        return [each for each in everything if each is not None]


def _pair(node: Node) -> _Pair | None:
    """The pair that ends in a node, where it is batch normalization that does not learn."""
    import torch

    aten = torch.ops.aten
    if node.op != "call_function" or node.target is not aten.batch_norm.default:
        return None
    arguments: tuple[Any, ...] = node.args
    data, scale, shift, mean, variance, training, _, epsilon, *_ = arguments
    packets = {getattr(aten, name) for name in _CONVOLUTIONS}
    is_convolution = (
        data.op == "call_function" and getattr(data.target, "overloadpacket", None) in packets
    )
    if training or mean is None or not is_convolution or len(data.users) != 1 or data.kwargs:
        return None
    if any(user.op == "output" for user in node.users):  # the program's signature names it
        return None
    bias = data.args[_BIAS] if len(data.args) > _BIAS else None
    return _Pair(data, data.args[_WEIGHT], bias, scale, shift, mean, variance, float(epsilon))


def _name(node: Node, targets: dict[str, str | None], state: dict[str, Any]) -> str | None:
    """The name of a parameter or buffer in FP32; None where the node is none."""
    import torch

    name = targets.get(node.name) if node.op == "placeholder" else None
    value = state.get(name) if name is not None else None
    return name if value is not None and value.dtype == torch.float32 else None


def _is_own(node: Node | None) -> bool:
    """Whether a parameter has one reader."""
    return node is not None and len(node.users) == 1


def _fold_weights(
    pair: _Pair, targets: dict[str, Any], state: dict[str, torch.Tensor], bias: Node
) -> None:
    """Give the convolution the weights and the bias that make the normalization needless."""
    import torch

    def value(node: Node | None, otherwise: float) -> torch.Tensor:
        if node is None:
            return torch.tensor(otherwise, dtype=torch.float64)
        return state[targets[node.name]].detach().double()

    with torch.no_grad():
        scale = value(pair.scale, 1.0) / torch.sqrt(value(pair.variance, 1.0) + pair.epsilon)
        shift = (value(pair.bias, 0.0) - value(pair.mean, 0.0)) * scale + value(pair.shift, 0.0)
        weight = state[targets[pair.weight.name]].detach()
        by_channel = scale.float().reshape(-1, *[1] * (weight.dim() - 1))
        state[targets[pair.weight.name]] = torch.nn.Parameter(weight * by_channel, requires_grad=False)
        state[targets[bias.name]] = torch.nn.Parameter(shift.float(), requires_grad=False)
