"""Keeping integers integers in a quantized ONNX graph, as ONNX Runtime wants to see it.

ONNX Runtime runs an operator on integers only where each of its inputs comes from DequantizeLinear and
its output goes into QuantizeLinear. NNCF leaves the pair out behind operators that only move values
(Concat, MaxPool, Reshape ...), and everything behind them falls back to floating point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from optcli.onnx_graphs.graph import constant, maker, remove_unread
from optcli.onnx_graphs.operators import MOVES_VALUES

if TYPE_CHECKING:
    from onnx_ir import Model, Node, Value

    Grid = Sequence[Value | None]

_MOVES_VALUES = MOVES_VALUES | {"Concat"}
# What computes on integers, or passes them on to what does.
_COMPUTES = _MOVES_VALUES | {"Conv", "Gemm", "MatMul", "Add", "Mul"}


def close_integer_chains(model: Model) -> int:
    """Put the missing pairs behind operators that only move values; returns how many.

    Exact: a value that lies on a grid is not changed by being quantized to that same grid again.
    """
    import onnx_ir

    grids: dict[Value | None, Grid] = {}
    added = 0
    for node in list(model.graph):
        if node.op_type == "DequantizeLinear" and _is_one_scale(node):
            grids[node.outputs[0]] = node.inputs[1:]
            continue
        grid, moved = _common_grid(node, grids), node.outputs[0]
        uses = moved.uses()
        if grid is None or moved.is_graph_output():
            continue
        if not any(reader.op_type in _COMPUTES for reader, _ in uses):
            continue
        value: Value = moved
        pair: list[Node] = []
        for operator, name in (("Quantize", "integers"), ("Dequantize", "floats")):
            output = onnx_ir.Value(name=f"{moved.name}_{name}")
            inputs = [value, *grid]
            pair.append(onnx_ir.node(f"{operator}Linear", inputs, outputs=[output], name=output.name))
            value = output
        for reader, position in uses:
            reader.replace_input_with(position, value)
        model.graph.insert_after(node, pair)
        grids[value] = grid
        added += 1
    return added


def _is_one_scale(node: Node) -> bool:
    """Whether activations, not weights, are dequantized, all with one scale."""
    scale = constant(node.inputs[1])
    return constant(node.inputs[0]) is None and scale is not None and list(scale.shape) in ([], [1])


def _common_grid(node: Node, grids: dict[Value | None, Grid]) -> Grid | None:
    """Scale and zero point that all values of the node share, if it only moves them."""
    if node.op_type not in _MOVES_VALUES or node.domain or len(node.outputs) != 1:
        return None
    values = node.inputs if node.op_type == "Concat" else node.inputs[:1]
    input_grids = [grids[value] for value in values if value in grids]
    contents = [_contents(grid) for grid in input_grids]
    same = len(input_grids) == len(values) and None not in contents and len({*contents}) == 1
    return input_grids[0] if same else None


def _contents(grid: Grid) -> tuple[tuple[int, bytes], ...] | None:
    tensors = [constant(value) for value in grid]
    parts = tuple((tensor.dtype, tensor.tobytes()) for tensor in tensors if tensor is not None)
    return parts if len(parts) == len(grid) else None


def leave_softmax_in_floats(model: Model) -> int:
    """Take the pair before Softmax out where its result is quantized too; returns how many.

    ONNX Runtime would make one integer operator of them, which gives nothing but zeros where its inputs
    have a small range, as those of attention that looks everywhere alike.
    """
    changed = 0
    for node in model.graph:
        readers = [reader.op_type for reader in node.outputs[0].consumers()]
        if node.op_type not in ("Softmax", "LogSoftmax") or "QuantizeLinear" not in readers:
            continue
        back = maker(node.inputs[0], "DequantizeLinear")
        there = maker(back.inputs[0], "QuantizeLinear") if back is not None else None
        if back is not None and there is not None:
            node.replace_input_with(0, there.inputs[0])
            remove_unread(back)
            changed += 1
    return changed
