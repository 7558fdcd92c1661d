"""Weights of two ONNX networks: dequantized beside floats, found through the layers that read them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from optcli.accuracy.layers.measured import weight_error
from optcli.accuracy.layers.onnx_graph import PRODUCTS, Graph, Pair, layer, name_of
from optcli.results.layers import LayerError

if TYPE_CHECKING:
    import numpy as np
    from onnx import NodeProto

# Where an integer layer has its weights, their scale and zero point.
_INTEGER_WEIGHTS = {"QLinearConv": (3, 4, 5), "QLinearMatMul": (3, 4, 5), "QGemm": (3, 4, 5)}


def errors(floats: Graph, child: Graph, pairs: Sequence[Pair]) -> Iterator[LayerError]:
    """One row for every layer whose weights both networks have, in the same shape."""
    import numpy as np

    ours = {pair.tensor for pair in pairs}
    theirs = {face for pair in pairs for face in pair.faces}
    for pair in pairs:
        one, other = layer(floats, pair.tensor, ours), layer(child, pair.root, theirs)
        if one is None or other is None or PRODUCTS.get(one.op_type) is None:
            continue
        wanted, found = _floats(floats, one), _values(child, other)
        if wanted is None or found is None:
            continue
        name, array = wanted
        array = _with_norm(floats, child, one, array)
        if array.shape != found.shape and array.shape == found.shape[::-1]:
            found = np.transpose(found)
        if array.shape == found.shape and array.ndim > 1:
            yield _row(name, name_of(one, other), one, array, found)


def _row(
    name: str, layer_name: str, node: NodeProto, wanted: np.ndarray, found: np.ndarray
) -> LayerError:
    transposed = any(each.name == "transB" and each.i for each in node.attribute)
    columns = node.op_type == "MatMul" or (node.op_type == "Gemm" and not transposed)
    axis = wanted.ndim - 1 if columns else 0
    return weight_error(name, layer_name, node.op_type, wanted, found, axis)


def _floats(graph: Graph, node: NodeProto) -> tuple[str, np.ndarray] | None:
    """Name and values of a layer's weights."""
    found = _constant(graph, node.input[1]) if len(node.input) > 1 else None
    return None if found is None else (node.input[1], found)


def _values(graph: Graph, node: NodeProto) -> np.ndarray | None:
    """A layer's weights as the numbers that it computes with."""
    if node.op_type in _INTEGER_WEIGHTS:
        arrays = [_constant(graph, node.input[place]) for place in _INTEGER_WEIGHTS[node.op_type]]
        if arrays[0] is None or arrays[1] is None:
            return None
        axis = 0 if node.op_type == "QLinearConv" else arrays[0].ndim - 1
        return _dequantized(arrays[0], arrays[1], arrays[2], axis)
    return _constant(graph, node.input[1]) if len(node.input) > 1 else None


def _constant(graph: Graph, name: str) -> np.ndarray | None:
    """Values of an initializer, a constant, or what is dequantized or cast from one."""
    import numpy as np
    from onnx import numpy_helper

    if name in graph.weights:
        return np.asarray(numpy_helper.to_array(graph.weights[name]))
    node = graph.nodes[graph.maker[name]] if name in graph.maker else None
    if node is None:
        return None
    if node.op_type == "Constant" and node.attribute and node.attribute[0].HasField("t"):
        return np.asarray(numpy_helper.to_array(node.attribute[0].t))
    if node.op_type in ("Identity", "Cast", "QuantizeLinear"):
        before = _constant(graph, node.input[0])
        return before if node.op_type != "QuantizeLinear" else _quantized(graph, node, before)
    if node.op_type != "DequantizeLinear":
        return None
    values = [_constant(graph, each) if each else None for each in node.input]
    if values[0] is None or values[1] is None:
        return None
    axis = next((each.i for each in node.attribute if each.name == "axis"), 1)
    return _dequantized(values[0], values[1], values[2] if len(values) > 2 else None, axis)


def _quantized(graph: Graph, node: NodeProto, values: np.ndarray | None) -> np.ndarray | None:
    """Float weights that the file quantizes when it is loaded."""
    import numpy as np

    scale, zero = (_constant(graph, each) for each in node.input[1:3])
    if values is None or scale is None or zero is None:
        return None
    axis = next((each.i for each in node.attribute if each.name == "axis"), 1)
    info = np.iinfo(zero.dtype)
    whole = np.rint(values / _along(scale, values.ndim, axis)) + _along(zero, values.ndim, axis)
    return np.asarray(np.clip(whole, info.min, info.max).astype(zero.dtype))


def _dequantized(
    values: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, axis: int
) -> np.ndarray | None:
    import numpy as np

    if scale.size > 1 and (scale.ndim > 1 or scale.size != values.shape[axis]):
        return None  # in blocks
    shifted = values.astype(np.float32)
    if zero is not None:
        shifted = shifted - _along(zero, values.ndim, axis).astype(np.float32)
    return np.asarray(shifted * _along(scale, values.ndim, axis))


def _along(array: np.ndarray, rank: int, axis: int) -> np.ndarray:
    """A scale or zero point in a shape that multiplies along `axis`."""
    if array.size == 1:
        return array.reshape(())
    shape = [1] * rank
    shape[axis] = array.size
    return array.reshape(shape)


def _with_norm(floats: Graph, child: Graph, node: NodeProto, weights: np.ndarray) -> np.ndarray:
    """Weights with the batch norm behind them folded in, where the child has folded it in."""
    import numpy as np

    behind = [floats.nodes[i] for i in floats.readers.get(node.output[0], ())]
    norms = any(each.op_type == "BatchNormalization" for each in child.nodes)
    if norms or node.op_type != "Conv" or [x.op_type for x in behind] != ["BatchNormalization"]:
        return weights
    gain, _, _, variance = (_constant(floats, name) for name in behind[0].input[1:5])
    if gain is None or variance is None:
        return weights
    epsilon = next((each.f for each in behind[0].attribute if each.name == "epsilon"), 1e-5)
    return np.asarray(weights * _along(gain / np.sqrt(variance + epsilon), weights.ndim, 0))
