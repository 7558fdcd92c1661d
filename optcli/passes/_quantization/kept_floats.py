"""Keeping in floating point what was to stay there, whatever ONNX Runtime makes of the graph.

Where a Conv, ConvTranspose or Gemm with float weights stands between DequantizeLinear and
QuantizeLinear, ONNX Runtime (from 1.21) quantizes its weights as it loads the model, with one scale for
all channels (onnxruntime pull requests 22969 and 25673, `WeightBiasQuantization`). Layers that were
left out for their accuracy lose more of it so than if they had been quantized.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm"})


def keep_floats(model: ModelProto) -> int:
    """Give such operators a DequantizeLinear of their own, with the scale once per channel; how many.

    Exact: the scales are all the same. ONNX Runtime leaves alone what is not dequantized by one number.
    Needs opset 13, which brought scales per channel.
    """
    from onnx import helper

    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    made_by = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    nodes: list[NodeProto] = []
    changed = 0
    for node in list(graph.node):
        back = made_by.get(node.input[0]) if node.op_type in _PRODUCTS else None
        weight = constants.get(node.input[1]) if back is not None else None
        channels = _channels(node, weight) if weight is not None else None
        if back is not None and channels is not None and _is_one_number(back, constants):
            grid = [_repeated(graph, constants[name], channels) for name in back.input[1:]]
            floats = f"{node.name or node.output[0]}_input_floats"
            inputs = [back.input[0], *grid]
            nodes.append(helper.make_node("DequantizeLinear", inputs, [floats], floats, axis=1))
            node.input[0] = floats
            changed += 1
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    _remove_unread(graph, made_by)
    return changed


def _channels(node: NodeProto, weight: TensorProto) -> int | None:
    """How many channels (features) it reads along axis 1; None where it reads them along another."""
    options: dict[str, int] = {each.name: int(each.i) for each in node.attribute}
    if node.op_type == "Conv":
        return int(weight.dims[1]) * options.get("group", 1)
    if node.op_type == "ConvTranspose":
        return int(weight.dims[0])
    if options.get("transA"):
        return None
    return int(weight.dims[1 if options.get("transB") else 0])


def _is_one_number(back: NodeProto, constants: dict[str, TensorProto]) -> bool:
    grid = [constants.get(name) for name in back.input[1:]]
    return all(tensor is not None and list(tensor.dims) in ([], [1]) for tensor in grid)


def _repeated(graph: GraphProto, tensor: TensorProto, count: int) -> str:
    """The name of a tensor with one number so many times; added to the graph."""
    import numpy as np
    from onnx import numpy_helper

    name = f"{tensor.name}_{count}_times"
    if not any(each.name == name for each in graph.initializer):
        value = numpy_helper.to_array(tensor).reshape(-1)
        graph.initializer.append(numpy_helper.from_array(np.repeat(value, count), name))
    return name


def _remove_unread(graph: GraphProto, dequantized: dict[str, NodeProto]) -> None:
    """Take out what nobody reads any more: ONNX Runtime fuses only what has one reader."""
    read = {name for node in graph.node for name in node.input}
    read |= {value.name for value in graph.output}
    for name, node in dequantized.items():
        if name not in read:
            graph.node.remove(node)
