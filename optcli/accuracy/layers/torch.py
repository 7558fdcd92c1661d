"""Layer by layer in PyTorch: modules, or nodes of exported programs, that go by the same name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optcli.accuracy.layers.measured import MeasuredLayers, Sums, weight_errors
from optcli.artifact import Artifact, Format
from optcli.errors import StepError, raised_as
from optcli.models.formats import exported as exported_format
from optcli.models.formats import torch as torch_format
from optcli.models.formats import torch_calls, torch_modules
from optcli.results.outcomes import LayerError
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor
    from torch.fx import GraphModule, Node
    from torch.nn import Module

    Feed = Mapping[str, np.ndarray]
    Seen = dict[tuple[str, int], Tensor]


def compare(
    baseline: Artifact, child: Artifact, feeds: Sequence[Feed], inputs: Sequence[TensorSpec]
) -> MeasuredLayers:
    """Rows of activations and weights; `feeds` are batches of one shape, by names of `inputs`."""
    import torch

    floats, other = (torch_format.open(each.path) for each in (baseline, child))
    sums = Sums()
    names: dict[str, str] = {}
    with torch.no_grad():
        for feed in feeds:
            exact = _run(floats, inputs, feed, None)
            whole, own = _run(other, inputs, feed, None), _run(other, inputs, feed, exact)
            for (name, call), value in exact.items():
                tensor = name if not call else f"{name}#{call + 1}"
                reference, candidate = whole.get((name, call)), own.get((name, call))
                if reference is None or candidate is None:
                    continue
                arrays = [each.float().numpy() for each in (value, reference, candidate)]
                if sums.fits(tensor, arrays[0], arrays[1]):
                    sums.add(tensor, arrays[0], arrays[1], arrays[2])
                    names[tensor] = name
    modules = dict(torch_modules.named_modules(floats))
    rows = [sums.error(tensor, name, type(modules[name]).__name__) for tensor, name in names.items()]
    return sums.measured(rows, _weights(modules, dict(torch_modules.named_modules(other))))


def _run(model: Module, inputs: Sequence[TensorSpec], feed: Feed, exact: Seen | None) -> Seen:
    """What every innermost module gives; with `exact`, what is behind it gets that instead."""
    import torch

    seen: Seen = {}
    calls: dict[str, int] = {}

    def hook(name: str) -> Callable[..., Any]:
        def look(module: Module, given: Any, output: Any) -> Any:
            if not isinstance(output, torch.Tensor) or not output.is_floating_point():
                return None
            key = (name, calls.get(name, 0))
            calls[name] = key[1] + 1
            seen[key] = output.clone()
            replacement = exact.get(key) if exact is not None else None
            fits = replacement is not None and replacement.shape == output.shape
            return replacement.to(output.dtype).clone() if replacement is not None and fits else None

        return look

    with ExitStack() as hooks:
        for name, module in torch_modules.named_modules(model):
            # A module holds others that are called; quantized ones hold only their packed weights.
            held = (type(each).__name__ for each in torch_modules.children(module))
            innermost = hasattr(module, "weight") or all("Packed" in kind for kind in held)
            if innermost:
                hooks.callback(module.register_forward_hook(hook(name)).remove)
        call = torch_calls.arguments(model, inputs)
        positional, keyword = call.split({key: torch.from_numpy(array) for key, array in feed.items()})
        model(*positional, **keyword)
    return seen


def _weights(floats: Mapping[str, Module], child: Mapping[str, Module]) -> Iterator[LayerError]:
    for name, module in floats.items():
        exact = _values(module)
        quantized = _values(child[name]) if name in child and exact is not None else None
        yield from weight_errors(f"{name}.weight", name, type(module).__name__, exact, quantized)


def _values(module: Module) -> np.ndarray | None:
    """A module's weights as floats, whatever holds them."""
    import torch

    weight: Any = getattr(module, "weight", None)
    weight = weight() if callable(weight) and not isinstance(weight, torch.Tensor) else weight
    if not isinstance(weight, torch.Tensor):
        return None
    with suppress(RuntimeError, NotImplementedError, AttributeError):
        weight = weight.dequantize()
    with suppress(RuntimeError, NotImplementedError, TypeError):
        values: np.ndarray = weight.detach().float().numpy()
        return values
    return None


_PRODUCTS = frozenset({"conv1d", "conv2d", "conv3d", "convolution", "conv_transpose2d", "linear"})
_NORMS = ("batch_norm", "_native_batch_norm_legit_no_training", "getitem")
_PREFIXES = ("L['self'].", "L__self__")


@dataclass(frozen=True)
class _NodePair:
    """A node of the float program, the child's, and those that quantize and dequantize it."""

    name: str
    floats: Node
    root: Node
    chain: tuple[Node, ...]

    @property
    def out(self) -> Node:
        return next((x for x in reversed(self.chain) if _operator(x).startswith("deq")), self.root)


def compare_exported(
    baseline: Artifact, child: Artifact, feeds: Sequence[Feed], inputs: Sequence[TensorSpec]
) -> MeasuredLayers:
    """Rows of activations and weights; `feeds` are batches of one shape, in the order of `inputs`."""
    import torch

    quantized = _program(child, inputs, feeds[0])
    floats = _program(baseline, inputs, feeds[0])
    pairs = _pairs(floats, quantized)
    sums = Sums()
    weights: list[LayerError] = []
    with torch.no_grad():
        for feed in feeds:
            # Its own inputs, in the order of the program's.
            values = [torch.from_numpy(array) for array in feed.values()]
            exact = _run_program(floats, values, {})
            whole = _run_program(quantized, values, {})
            pairs = [pair for pair in pairs if _fits(pair, exact, whole, sums)]
            own = _run_program(
                quantized, values, {pair.root: exact[pair.floats] for pair in pairs}, pairs
            )
            weights = weights or list(_program_weights(pairs, exact, whole))
            for pair in pairs:
                arrays = (_array(exact[pair.floats]), _array(whole[pair.out]), _array(own[pair.out]))
                sums.add(pair.name, *arrays, _bounds(pair))
    rows = [
        sums.error(pair.name, _layer(pair.floats), _kind(pair.floats))
        for pair in pairs
        if pair.name in sums
    ]
    return sums.measured(rows, weights)


def _program(artifact: Artifact, inputs: Sequence[TensorSpec], feed: Feed) -> GraphModule:
    """The graph of an artifact; a network in Python is exported at once."""
    import torch

    if artifact.format == Format.EXPORTED:
        program: Any = exported_format.open(artifact.path, trust=artifact.trusted).module()
        return program
    model = torch_format.open(artifact.path)
    call = torch_calls.arguments(model, inputs)
    positional, keyword = call.split({name: torch.from_numpy(array) for name, array in feed.items()})
    hint = "put export before the pass that quantizes"
    with raised_as(StepError, "the float network cannot be exported to be compared", hint=hint):
        return torch.export.export(model, positional, keyword).module()


def _pairs(floats: GraphModule, child: GraphModule) -> list[_NodePair]:
    """Nodes of the same name, in the child's order."""
    reference = {node.name: node for node in child.graph.nodes}
    pairs = []
    for node in floats.graph.nodes:
        if node.op in ("placeholder", "call_function") and node.name in reference:
            root = reference[node.name]
            whole = [x for x in root.users if _operator(x).startswith("quantize_per_")]
            readers = [x for quantize in whole for x in quantize.users]
            back = [x for x in readers if _operator(x).startswith("dequantize_per_")]
            stands_for = _behind_norm(node, reference)
            pairs.append(_NodePair(stands_for.name, stands_for, root, (*whole, *back)))
    return pairs


def _behind_norm(node: Node, reference: Mapping[str, Node]) -> Node:
    """The batch norm behind a layer where the child has none: it was folded into the weights."""
    users = list(node.users)
    while len(users) == 1 and _operator(users[0]) in _NORMS and users[0].name not in reference:
        node, users = users[0], list(users[0].users)
    return node


def _run_program(
    graph: GraphModule,
    values: Sequence[Any],
    exact: Mapping[Node, Any],
    pairs: Sequence[_NodePair] = (),
) -> dict[Node, Any]:
    """All values of a run. Nodes in `exact` and their chains are read as what is given there."""
    import torch

    faces = {face: pair.root for pair in pairs for face in (pair.root, *pair.chain)}
    inner = {(pair.root, node) for pair in pairs for node in pair.chain}
    inner |= {(a, b) for pair in pairs for a in pair.chain for b in pair.chain}
    computed: dict[Node, Any] = {}

    class Run(torch.fx.Interpreter):  # type: ignore[misc]
        def map_nodes_to_values(self, args: Any, n: Node) -> Any:
            def value(node: Node) -> Any:
                root = faces.get(node)
                # Integers go on as they are: what reads them knows no floats.
                is_integer = _operator(node).startswith("quantize_per_")
                as_it_is = root is None or is_integer or (node, n) in inner
                read = self.env[node] if as_it_is else exact[root]
                # What it was is compared afterwards: relu_ and its like write into what they read.
                in_place = n.op == "call_function" and _operator(n).endswith("_")
                return read.clone() if in_place and isinstance(read, torch.Tensor) else read

            return torch.fx.node.map_arg(args, value)

        def run_node(self, n: Node) -> Any:
            computed[n] = super().run_node(n)
            return computed[n]

    Run(graph).run(*values)
    return computed


def _fits(pair: _NodePair, exact: Mapping[Node, Any], whole: Mapping[Node, Any], sums: Sums) -> bool:
    import torch

    values = exact[pair.floats], whole[pair.out]
    if not all(isinstance(value, torch.Tensor) for value in values):
        return False
    return sums.fits(pair.name, *(_array(value) for value in values))


def _array(value: Tensor) -> np.ndarray:
    array: np.ndarray = value.float().numpy() if value.is_floating_point() else value.numpy()
    return array


def _bounds(pair: _NodePair) -> tuple[float, float] | None:
    """The values that a tensor's integers can stand for, a step wider."""
    for node in pair.chain:
        numbers = node.args[1:5]
        if all(isinstance(each, int | float) for each in numbers):
            scale, zero, low, high = (float(each) for each in numbers)
            return (low - zero - 1) * scale, (high - zero + 1) * scale
    return None


def _program_weights(
    pairs: Sequence[_NodePair], exact: Mapping[Node, Any], whole: Mapping[Node, Any]
) -> Iterator[LayerError]:
    """Weights as both programs compute with them; not where a batch norm was folded in."""
    import torch

    for pair in pairs:
        if _operator(pair.floats) not in _PRODUCTS or _operator(pair.root) != _operator(pair.floats):
            continue
        node, child_node = pair.floats.args[1], pair.root.args[1]
        exact_value, child_value = exact.get(node), whole.get(child_node)
        if isinstance(exact_value, torch.Tensor) and isinstance(child_value, torch.Tensor):
            with suppress(RuntimeError, NotImplementedError):  # a tensor of a library's own kind
                arrays = [x.detach().float().numpy() for x in (exact_value, child_value)]
                name, kind = str(getattr(node, "target", node)), _kind(pair.floats)
                yield from weight_errors(name, _layer(pair.floats), kind, *arrays)


def _operator(node: Node) -> str:
    packet = getattr(node.target, "overloadpacket", None)
    return str(getattr(packet or node.target, "__name__", node.target))


def _kind(node: Node) -> str:
    return "input" if node.op == "placeholder" else _operator(node)


def _layer(node: Node) -> str:
    """The module that a node comes from, as the network names it; else the node's own name."""
    if node.op == "placeholder":
        return ""
    name = next((str(path) for path, _ in reversed(node.meta.get("nn_module_stack", {}).values())), "")
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name if name and name != "L['self']" else node.name
