"""Weights of two ONNX networks: dequantized beside floats, found through the layers that read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from optcli.accuracy.layers.measured import weight_errors
from optcli.accuracy.layers.onnx_graph import Graph, Pair, layer, name_of
from optcli.onnx_graphs.operators import PRODUCT_OF, is_static, weight_position
from optcli.onnx_graphs.quantized import along, dequantize, numbers
from optcli.results.layers import LayerError

if TYPE_CHECKING:
    import numpy as np
    from onnx import NodeProto


def errors(floats: Graph, child: Graph, pairs: Sequence[Pair]) -> Iterator[LayerError]:
    """One row for every layer whose weights both networks have, in the same shape."""
    import numpy as np

    ours = {pair.tensor for pair in pairs}
    theirs = {face for pair in pairs for face in pair.faces}
    for pair in pairs:
        node, child_node = layer(floats, pair.tensor, ours), layer(child, pair.root, theirs)
        if node is None or child_node is None or node.op_type not in PRODUCT_OF:
            continue
        exact, quantized = _values(floats, node), _values(child, child_node)
        if exact is None or quantized is None:
            continue
        exact = _with_norm(floats, child, node, exact)
        if exact.shape != quantized.shape and exact.shape == quantized.shape[::-1]:
            quantized = np.transpose(quantized)
        transposed = any(each.name == "transB" and each.i for each in node.attribute)
        columns = node.op_type == "MatMul" or (node.op_type == "Gemm" and not transposed)
        axis = exact.ndim - 1 if columns else 0
        name, layer_name = node.input[weight_position(node.op_type)], name_of(node, child_node)
        yield from weight_errors(name, layer_name, node.op_type, exact, quantized, axis)


def _values(graph: Graph, node: NodeProto) -> np.ndarray | None:
    """A layer's weights as the numbers that it computes with; None where they are computed."""
    place = weight_position(node.op_type)
    weights, scale, zero = (
        numbers(graph.values.get(name)) for name in (*node.input, "", "", "")[place : place + 3]
    )
    if not is_static(node.op_type):
        return weights
    if weights is None or scale is None:
        return None
    return dequantize(weights, scale, zero, 0 if node.op_type == "QLinearConv" else -1)


def _with_norm(floats: Graph, child: Graph, node: NodeProto, weights: np.ndarray) -> np.ndarray:
    """Weights with the batch norm behind them folded in, where the child has folded it in."""
    import numpy as np

    behind = [floats.nodes[i] for i in floats.readers.get(node.output[0], ())]
    norms = any(each.op_type == "BatchNormalization" for each in child.nodes)
    if norms or node.op_type != "Conv" or [x.op_type for x in behind] != ["BatchNormalization"]:
        return weights
    gain, _, _, variance = (numbers(floats.values.get(name)) for name in behind[0].input[1:5])
    if gain is None or variance is None:
        return weights
    epsilon = next((each.f for each in behind[0].attribute if each.name == "epsilon"), 1e-5)
    return np.asarray(weights * along(gain / np.sqrt(variance + epsilon), weights.ndim, 0))
