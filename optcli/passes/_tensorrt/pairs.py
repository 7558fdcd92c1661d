"""Where TensorRT wants pairs of QuantizeLinear and DequantizeLinear: before products with weights.

In front of anything else they only round once more, and between a convolution and the addition behind
it they keep TensorRT from fusing the two. NVIDIA's documentation: "Q/DQ Layer-Placement
Recommendations".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli.passes._quantization.integer_chains import MOVES_VALUES
from optcli.passes._quantization.quantized_graph import PRODUCTS, QuantizedGraph

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto


def keep_pairs_before_products(model: ModelProto) -> int:
    """Take pairs out that no product with weights reads, past what moves values; returns how many.

    A pair that one does read is shared: a shortcut past the convolution is read as integers, too.
    """
    graph = QuantizedGraph(model)
    given_out = {value.name for value in model.graph.output}
    removed = 0
    for back in [node for node in model.graph.node if node.op_type == "DequantizeLinear"]:
        there = graph.made_by.get(back.input[0])
        if there is None or there.op_type != "QuantizeLinear" or graph.weight(back) is not None:
            continue
        floats = back.output[0]
        if floats in given_out or _leads_to_product(graph, floats):
            continue
        for reader in graph.readers[floats]:
            reader.input[:] = [there.input[0] if name == floats else name for name in reader.input]
            graph.readers[there.input[0]].append(reader)
        removed += 1
    _remove_unread(model)
    return removed


def _leads_to_product(graph: QuantizedGraph, name: str) -> bool:
    for reader in graph.readers[name]:
        if reader.op_type in PRODUCTS and _has_weights(graph, reader):
            return True
        moved = reader.op_type in MOVES_VALUES and reader.input[0] == name
        if (moved or reader.op_type == "Concat") and _leads_to_product(graph, reader.output[0]):
            return True
    return False


def _has_weights(graph: QuantizedGraph, node: NodeProto) -> bool:
    for name in node.input[:2]:
        back = graph.dequantized(name)
        if name in graph.constants or (back is not None and graph.weight(back) is not None):
            return True
    return False


def _remove_unread(model: ModelProto) -> None:
    """Take out pairs that nobody reads any more."""
    given_out = {value.name for value in model.graph.output}
    for kind in ("DequantizeLinear", "QuantizeLinear"):
        read = {name for node in QuantizedGraph(model).nodes for name in node.input} | given_out
        idle = [n for n in model.graph.node if n.op_type == kind and n.output[0] not in read]
        for node in idle:
            model.graph.node.remove(node)
