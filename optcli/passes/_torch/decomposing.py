"""Keeps the exporter to ONNX from tracing a program again in which it has nothing to decompose.

`torch.onnx.export` decomposes the operators that it has no translation for, and traces the whole
program anew for that. Of such operators, usual networks have in-place ones, pooling to one value and
batch normalization. Here these are rewritten one by one. If every operator then has a translation, the
exporter takes the program as it is; else it traces the program as ever.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch._ops import OpOverload
    from torch.export import ExportedProgram
    from torch.fx import Node

# Operators whose results are memory of their own: whoever overwrites one changes nothing else.
_FRESH = frozenset(
    (
        *("add", "avg_pool2d", "batch_norm", "cat", "conv1d", "conv2d", "conv3d", "div", "group_norm"),
        *("hardsigmoid", "hardswish", "layer_norm", "leaky_relu", "linear", "matmul", "max_pool2d"),
        *("mean", "mul", "relu", "sigmoid", "silu", "sub"),
    )
)
# The exporter has a way of its own to decompose these.
_RECURRENT = ("gru", "lstm", "rnn_")
# The exporter leaves these out.
_CHECKS = frozenset(
    ("_assert_async", "_assert_scalar", "_assert_tensor_metadata", "sym_constrain_range_for_size")
)
# Of aten.batch_norm.
_ARGUMENTS = 9


@contextmanager
def only_where_needed() -> Iterator[None]:
    """Have `torch.onnx.export` decompose no program within the block that needs none of it.

    The program that is exported is changed by that.
    """
    try:
        from torch.onnx._internal.exporter import _fx_passes
        from torch.onnx._internal.exporter._decomp import get_onnx_implemented_overloads

        usual: Callable[..., Any] = _fx_passes.decompose_with_registry
    except (ImportError, AttributeError):  # another version of PyTorch: it does what it does
        yield
        return

    def decompose(program: ExportedProgram, registry: Any) -> ExportedProgram:
        simplify(program)
        if is_translatable(program, set(get_onnx_implemented_overloads(registry))):
            return program
        decomposed: ExportedProgram = usual(program, registry)
        return decomposed

    _fx_passes.decompose_with_registry = decompose
    try:
        yield
    finally:
        _fx_passes.decompose_with_registry = usual


def is_translatable(program: ExportedProgram, translated: set[Any]) -> bool:
    """Whether every operator is among those translated, and none of them changes its inputs."""
    from torch.export.graph_signature import OutputKind

    outputs = program.graph_signature.output_specs
    if any(spec.kind != OutputKind.USER_OUTPUT for spec in outputs):
        return False
    for node in program.graph.nodes:
        name = _name(node)
        if node.op in ("placeholder", "output") or name in _CHECKS:
            continue
        if node.op != "call_function" or node.target not in translated or name.startswith(_RECURRENT):
            return False
        schema = getattr(node.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            return False
    return True


def simplify(program: ExportedProgram) -> None:
    """Rewrite pooling to one value, batch normalization, and in-place operators on unread values.

    Such a value has no other reader, and its memory is its own.
    """
    for node in list(program.graph.nodes):
        if node.op != "call_function":
            continue
        _pool_as_mean(node)
        _normalize_without_training(node)
        functional = _functional(node)
        if functional is not None:
            node.target = functional
            if not any(user.op == "output" for user in node.users):  # the signature names these
                node._rename(_name(node))
    program.graph_module.recompile()


def _pool_as_mean(node: Node) -> None:
    """As PyTorch's decomposition has it."""
    import torch

    aten = torch.ops.aten
    if node.target is aten.adaptive_avg_pool2d.default and list(node.args[1]) == [1, 1]:
        node.target = aten.mean.dim
        node.args = (node.args[0], [-1, -2], True)


def _normalize_without_training(node: Node) -> None:
    """As tracing has it: an operator with three results, of which the first is wanted."""
    import torch

    aten = torch.ops.aten
    if node.target is not aten.batch_norm.default or len(node.args) != _ARGUMENTS or node.kwargs:
        return
    data, scale, shift, mean, variance, training, momentum, epsilon, _ = node.args
    if training or mean is None or variance is None:
        return
    with node.graph.inserting_before(node):
        normalized = node.graph.call_function(
            aten._native_batch_norm_legit_no_training.default,
            (data, scale, shift, mean, variance, momentum, epsilon),
        )
    value = node.meta["val"]
    normalized.meta = {**node.meta, "val": (value, value.new_empty(0), value.new_empty(0))}
    node.target, node.args = operator.getitem, (normalized, 0)


def _functional(node: Node) -> OpOverload | None:
    """The operator that gives what an in-place one does, where that may take its place."""
    import torch

    schema = getattr(node.target, "_schema", None)
    name = _name(node)
    if schema is None or not schema.is_mutable or not name.endswith("_") or name.startswith("_"):
        return None
    packet = getattr(torch.ops.aten, name[:-1], None)
    functional: OpOverload | None = getattr(packet, node.target._overloadname, None)
    if functional is None or functional._schema.is_mutable:
        return None
    arguments = (functional._schema.arguments, schema.arguments)
    alike = [str(each.type) for each in arguments[0]] == [str(each.type) for each in arguments[1]]
    data = node.args[0]
    if not alike or not isinstance(data, torch.fx.Node):
        return None
    if name == "dropout_" and node.args[2] is False:  # it changes nothing
        return functional
    types = {each.meta["val"].dtype for each in (node, *node.all_input_nodes) if _is_tensor(each)}
    own = data.op == "call_function" and _is_fresh(data) and len(data.users) == 1
    # Of several types the functional operator may give another than the one that is overwritten.
    return functional if own and len(types) == 1 else None


def _is_tensor(node: Node) -> bool:
    import torch

    return isinstance(node.meta.get("val"), torch.Tensor)


def _is_fresh(node: Node) -> bool:
    """Whether the result of an operator is memory of its own."""
    if node.target is operator.getitem:
        return _name(node.args[0]) == "_native_batch_norm_legit_no_training"
    return _name(node) in _FRESH


def _name(node: Node) -> str:
    """Of an operator of PyTorch's own, such as `relu_`; empty for others."""
    namespace, _, name = getattr(getattr(node.target, "_schema", None), "name", "").partition("::")
    return name if namespace == "aten" else ""
