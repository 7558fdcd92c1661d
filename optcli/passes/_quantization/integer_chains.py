"""Keeping integers integers in a quantized ONNX graph, as ONNX Runtime wants to see it.

ONNX Runtime runs an operator on integers only where each of its inputs comes from DequantizeLinear and
its output goes into QuantizeLinear. NNCF leaves the pair out behind operators that only move values
(Concat, MaxPool, Reshape ...), and everything behind them falls back to floating point.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

# Each output value is one of the input values; the further inputs of the last ones are not data.
MOVES_VALUES = frozenset(
    {"Concat", "MaxPool", "Slice", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Gather"}
)


def close_integer_chains(model: ModelProto) -> int:
    """Put the missing pairs behind operators that only move values; returns how many.

    Exact: a value that lies on a grid is not changed by being quantized to that same grid again.
    """
    from onnx import helper

    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    outputs = {value.name for value in graph.output}
    readers: dict[str, list[NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            readers[name].append(node)
    grids: dict[str, tuple[str, ...]] = {}
    nodes: list[NodeProto] = []
    added = 0
    for node in list(graph.node):
        nodes.append(node)
        if node.op_type == "DequantizeLinear" and _is_one_scale(node, weights):
            grids[node.output[0]] = tuple(node.input[1:])
            continue
        grid = _common_grid(node, grids, weights)
        behind = readers[node.output[0]] if grid else []
        if not grid or node.output[0] in outputs or not _wanted(behind):
            continue
        moved = node.output[0]
        integers, floats = f"{moved}_integers", f"{moved}_floats"
        nodes.append(helper.make_node("QuantizeLinear", [moved, *grid], [integers], integers))
        nodes.append(helper.make_node("DequantizeLinear", [integers, *grid], [floats], floats))
        for reader in behind:
            reader.input[:] = [floats if name == moved else name for name in reader.input]
        readers[floats], grids[floats] = behind, grid
        added += 1
    del graph.node[:]
    graph.node.extend(nodes)
    return added


def _is_one_scale(node: NodeProto, weights: dict[str, TensorProto]) -> bool:
    """Whether activations, not weights, are dequantized, all with one scale."""
    scale = weights.get(node.input[1])
    return node.input[0] not in weights and scale is not None and list(scale.dims) in ([], [1])


def _common_grid(
    node: NodeProto, grids: dict[str, tuple[str, ...]], weights: dict[str, TensorProto]
) -> tuple[str, ...] | None:
    """Scale and zero point that all values of the node share, if it only moves them."""
    if node.op_type not in MOVES_VALUES or node.domain or len(node.output) != 1:
        return None
    data = node.input if node.op_type == "Concat" else node.input[:1]
    found = [grids.get(name) for name in data]
    first = found[0]
    if first is None:
        return None
    wanted = _values(first, weights)
    same = all(grid is not None and _values(grid, weights) == wanted for grid in found)
    return first if same else None


def _values(grid: tuple[str, ...], weights: dict[str, TensorProto]) -> list[tuple[int, bytes]] | None:
    from onnx import numpy_helper

    if not all(name in weights for name in grid):
        return None
    tensors = [weights[name] for name in grid]
    return [(tensor.data_type, numpy_helper.to_array(tensor).tobytes()) for tensor in tensors]


def _wanted(readers: list[NodeProto]) -> bool:
    """Whether somebody behind would compute on integers, or passes them on."""
    computes = MOVES_VALUES | {"Conv", "Gemm", "MatMul", "Add", "Mul"}
    return any(reader.op_type in computes for reader in readers)


def leave_softmax_in_floats(model: ModelProto) -> int:
    """Take the pair before Softmax out where its result is quantized too; returns how many.

    ONNX Runtime would make one integer operator of them, which gives nothing but zeros where its inputs
    have a small range, as those of attention that looks everywhere alike.
    """
    graph = model.graph
    made_by = {name: node for node in graph.node for name in node.output}
    quantized = {node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    changed = 0
    for node in graph.node:
        if node.op_type not in ("Softmax", "LogSoftmax") or node.output[0] not in quantized:
            continue
        back = made_by.get(node.input[0])
        there = made_by.get(back.input[0]) if back and back.op_type == "DequantizeLinear" else None
        if there is not None and there.op_type == "QuantizeLinear":
            node.input[0] = there.input[0]
            changed += 1
    return changed
