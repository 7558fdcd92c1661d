"""Where TensorRT wants pairs of QuantizeLinear and DequantizeLinear: before products with weights.

In front of anything else they only round once more, and between a convolution and the addition behind
it they keep TensorRT from fusing the two. NVIDIA's documentation: "Q/DQ Layer-Placement
Recommendations".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli.models.onnx_graphs.graph import constant, maker, remove_unread
from optcli.models.onnx_graphs.operators import MOVES_VALUES, PRODUCTS
from optcli.models.onnx_graphs.quantized import dequantizer, weight

if TYPE_CHECKING:
    from onnx_ir import Model, Node, Value


def keep_pairs_before_products(model: Model) -> int:
    """Take pairs out that no product with weights reads, past what moves values; returns how many.

    A pair that one does read is shared: a shortcut past the convolution is read as integers, too.
    """
    removed = 0
    for back in [node for node in model.graph if node.op_type == "DequantizeLinear"]:
        there, floats = maker(back.inputs[0], "QuantizeLinear"), back.outputs[0]
        if there is None or there.inputs[0] is None or weight(back) is not None:
            continue
        if floats.is_graph_output() or _leads_to_product(floats):
            continue
        floats.replace_all_uses_with(there.inputs[0])
        for node in (back, there):
            remove_unread(node)
        removed += 1
    return removed


def _leads_to_product(value: Value) -> bool:
    for reader, position in value.uses():
        if reader.op_type in PRODUCTS and _has_weights(reader):
            return True
        moves = reader.op_type == "Concat" or (reader.op_type in MOVES_VALUES and position == 0)
        if moves and any(_leads_to_product(output) for output in reader.outputs):
            return True
    return False


def _has_weights(node: Node) -> bool:
    backs = [dequantizer(value) for value in node.inputs[:2]]
    constants = [constant(value) for value in node.inputs[:2]]
    constants += [weight(back) for back in backs if back is not None]
    return any(tensor is not None for tensor in constants)
