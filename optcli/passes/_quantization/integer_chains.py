"""Integers that stay integers, and floats that stay floats, in a quantized graph in ONNX Runtime.

ONNX Runtime runs an operator on integers only where each of its inputs comes from DequantizeLinear and
its output goes into QuantizeLinear. NNCF leaves the pair out behind operators that only move values
(Concat, MaxPool, Reshape ...), and everything behind them falls back to floating point.

Where a Conv, ConvTranspose or Gemm with float weights stands between DequantizeLinear and
QuantizeLinear, ONNX Runtime (from 1.21) quantizes its weights as it loads the model, with one scale for
all channels (onnxruntime pull requests 22969 and 25673, `WeightBiasQuantization`). Layers that were
left out for their accuracy lose more of it so than if they had been quantized: see `keep_floats`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from optcli.models.onnx_graphs.graph import (
    add_initializer,
    argument,
    constant,
    maker,
    remove_unread,
    remove_unread_initializers,
)
from optcli.models.onnx_graphs.operators import MOVES_VALUES, PAIR, PRODUCTS

if TYPE_CHECKING:
    from onnx_ir import Model, Node, Value

    Grid = Sequence[Value | None]
    from onnx_ir import TensorProtocol

_MOVES_VALUES = MOVES_VALUES | {"Concat"}
# What computes on integers, or passes them on to what does.
_COMPUTES = _MOVES_VALUES | {"Conv", "Gemm", "MatMul", "Add", "Mul"}
# What it computes on integers only where the output is quantized too.
_FILLED = frozenset({"Conv", "Sigmoid", "Mul", "Add", "LeakyRelu"})
# What quantizes, or is computed together with the convolution before.
_QUANTIZES_OR_LIMITS = frozenset({"QuantizeLinear", "Relu", "Clip", "BatchNormalization"})

# ONNX Runtime's WeightBiasQuantization looks at these alone.
_PRODUCTS = PRODUCTS - {"MatMul"}


def close_integer_chains(model: Model) -> int:
    """Put the missing pairs behind operators that only move values; returns how many.

    Exact: a value that lies on a grid is not changed by being quantized to that same grid again.
    """
    grids: dict[Value | None, Grid] = {}
    added = 0
    for node in list(model.graph):
        if node.op_type == "DequantizeLinear" and _is_one_scale(node):
            grids[node.outputs[0]] = node.inputs[1:]
            continue
        grid, moved = _common_grid(node, grids), node.outputs[0]
        if grid is None or moved.is_graph_output():
            continue
        if not any(reader.op_type in _COMPUTES for reader in moved.consumers()):
            continue
        grids[_add_pair(model, moved, grid)] = grid
        added += 1
    return added


def _add_pair(model: Model, value: Value, grid: Grid) -> Value:
    """Quantize a value and dequantize it again, for all that read it; returns what they read now."""
    import onnx_ir

    uses, node = value.uses(), value.producer()
    assert node is not None
    pair: list[Node] = []
    current = value
    for operator, name in (("Quantize", "integers"), ("Dequantize", "floats")):
        output = onnx_ir.Value(name=f"{value.name}_{name}")
        inputs = [current, *grid]
        pair.append(onnx_ir.node(f"{operator}Linear", inputs, outputs=[output], name=output.name))
        current = output
    for reader, position in uses:
        reader.replace_input_with(position, current)
    model.graph.insert_after(node, pair)
    return current


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


def make_unsigned(model: Model) -> int:
    """Turn int8 activations into uint8 ones of the same values, their zero points moved; how many.

    ONNX Runtime does so itself as it loads a model on x86, but not in graphs where int8 and uint8 meet:
    these run in floating point. Exact.
    """
    import numpy as np
    from onnx_ir import DataType

    unsigned: dict[Value | None, Value] = {}
    changed = 0
    for node in model.graph:
        point = argument(node, 2) if node.op_type in PAIR else None
        tensor = constant(point)
        if point is None or tensor is None or tensor.numpy().dtype != np.int8:
            continue
        if node.op_type == "DequantizeLinear" and maker(node.inputs[0], "QuantizeLinear") is None:
            continue  # weights, and integers that the model had before
        if point not in unsigned:
            moved = (tensor.numpy().astype(np.int16) + 128).astype(np.uint8)
            unsigned[point] = add_initializer(model.graph, f"{point.name}_unsigned", moved)
        node.replace_input_with(2, unsigned[point])
        if node.op_type == "QuantizeLinear":
            node.outputs[0].dtype = DataType.UINT8
            changed += 1
    remove_unread_initializers(model)
    return changed


def gaps(model: Model, ignored: Collection[str]) -> list[str]:
    """Names of values in floating point whose makers ONNX Runtime could compute on integers, in order.

    NNCF leaves activation functions such as x · sigmoid(x) in floating point, for OpenVINO, which
    computes them with the convolution before. ONNX Runtime computes a convolution on integers only
    where its output is quantized too, else more slowly than in the float model. `ignored` names nodes
    that stay in floating point, with what they read.
    """
    quantized = {node.outputs[0] for node in model.graph if node.op_type == "DequantizeLinear"}
    names = []
    for node in model.graph:
        if node.op_type not in _FILLED or not quantized.issuperset(node.inputs[:2]):
            continue
        gives = node.outputs[0]
        readers = [*gives.consumers()]
        if gives.is_graph_output() or any(
            reader.name in ignored or reader.op_type in _QUANTIZES_OR_LIMITS for reader in readers
        ):
            continue
        if readers and node.name not in ignored:
            quantized.add(gives)
            names.append(str(gives.name))
    return names


def fill_gaps(model: Model, ranges: Mapping[str, tuple[float, float]]) -> None:
    """Quantize the values of these ranges to uint8."""
    import numpy as np

    values = {str(node.outputs[0].name): node.outputs[0] for node in model.graph}
    for name, (least, most) in ranges.items():
        low, high = min(least, 0.0), max(most, 0.0)
        scale = np.array((high - low) / 255 or 1.0, np.float32)
        zero = np.clip(np.round(-low / scale), 0, 255).astype(np.uint8)
        grid = [
            add_initializer(model.graph, f"{name}_scale", scale),
            add_initializer(model.graph, f"{name}_zero_point", zero),
        ]
        _add_pair(model, values[name], grid)


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


def keep_floats(model: Model) -> int:
    """Give such operators a DequantizeLinear of their own, with the scale once per channel; how many.

    Exact: the scales are all the same. ONNX Runtime leaves alone what is not dequantized by one number.
    Needs opset 13, which brought scales per channel. What joins channels (Concat) is read before it is
    rounded: OpenVINO (2026.4) does not open a model with scales per channel behind it.
    """
    import numpy as np
    import onnx_ir

    changed = 0
    for node in list(model.graph):
        back = maker(node.inputs[0], "DequantizeLinear") if node.op_type in _PRODUCTS else None
        weight = constant(node.inputs[1]) if back is not None else None
        channels = _channels(node, weight) if weight is not None else None
        grid = [constant(value) for value in back.inputs[1:]] if back is not None else []
        tensors = [tensor for tensor in grid if tensor is not None and list(tensor.shape) in ([], [1])]
        if back is None or channels is None or len(tensors) < len(grid):
            continue
        rounding = maker(back.inputs[0], "QuantizeLinear")
        if rounding is not None and maker(rounding.inputs[0], "Concat") is not None:
            node.replace_input_with(0, rounding.inputs[0])
            remove_unread(back)
            remove_unread(rounding)
            changed += 1
            continue
        repeated = [
            add_initializer(
                model.graph, f"{tensor.name}_{channels}_times", np.repeat(tensor.numpy(), channels)
            )
            for tensor in tensors
        ]
        floats = onnx_ir.Value(name=f"{node.name or node.outputs[0].name}_input_floats")
        inputs = [back.inputs[0], *repeated]
        model.graph.insert_before(
            node,
            onnx_ir.node("DequantizeLinear", inputs, {"axis": 1}, outputs=[floats], name=floats.name),
        )
        node.replace_input_with(0, floats)
        remove_unread(back)  # ONNX Runtime fuses only what has one reader
        changed += 1
    if changed:
        remove_unread_initializers(model)
    return changed


def _channels(node: Node, weight: TensorProtocol) -> int | None:
    """How many channels (features) it reads along axis 1; None where it reads them along another."""
    dims, attributes = weight.shape.numpy(), node.attributes
    if node.op_type == "Conv":
        return dims[1] * attributes.get_int("group", 1)
    if node.op_type == "ConvTranspose":
        return dims[0]
    if attributes.get_int("transA", 0):
        return None
    return dims[1 if attributes.get_int("transB", 0) else 0]
