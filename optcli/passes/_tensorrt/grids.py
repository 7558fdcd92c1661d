"""The grids that TensorRT quantizes to: signed and symmetric integers, or FP8, and weights on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optcli.formats import onnx as onnx_format
from optcli.passes._quantization.quantized_graph import QuantizedGraph, option

if TYPE_CHECKING:
    import numpy as np
    from onnx import GraphProto, ModelProto, NodeProto

# The largest number of FLOAT8E4M3FN, and of INT8 as TensorRT uses it for weights.
FP8_LARGEST = 448.0
INT8_LARGEST = 127


def make_signed(model: ModelProto) -> int:
    """Turn the grids of activations into symmetric ones of int8; returns how many were not.

    The largest value of the old grid is the largest of the new one: no value is clipped that was not,
    and steps are twice as wide where all values were on one side of zero.
    """
    import numpy as np
    from onnx import TensorProto

    graph = QuantizedGraph(model)
    changed = 0
    for node in graph.nodes:
        if node.op_type != "QuantizeLinear" or graph.weight(node) is not None:
            continue
        kind, scale = graph.integers(node), graph.array(node.input[1])
        zero = graph.array(node.input[2]) if len(node.input) > 2 else np.zeros(())
        if kind not in (TensorProto.UINT8, TensorProto.INT8) or scale is None or zero is None:
            continue
        low, high = (0, 255) if kind == TensorProto.UINT8 else (-128, 127)
        middle = zero.astype(np.float64)
        if kind == TensorProto.INT8 and not middle.any():
            continue
        largest = np.maximum(middle - low, high - middle) * scale
        _regrid(model.graph, graph, node, (largest / INT8_LARGEST).astype(scale.dtype), np.int8)
        changed += 1
    return changed


def make_fp8(model: ModelProto) -> int:
    """Turn grids of int8 into those of FLOAT8E4M3FN with the same largest value; returns how many.

    Weights must be in floating point (before a QuantizeLinear); `fold_weights` stores them. Needs
    opset 19.
    """
    import ml_dtypes

    graph = QuantizedGraph(model)
    nodes = [node for node in graph.nodes if node.op_type == "QuantizeLinear"]
    for node in nodes:
        scale = graph.array(node.input[1])
        if scale is not None:
            wider = (scale * (INT8_LARGEST / FP8_LARGEST)).astype(scale.dtype)
            _regrid(model.graph, graph, node, wider, ml_dtypes.float8_e4m3fn)
    return len(nodes)


def fit_scales_to_half(model: ModelProto) -> int:
    """Round scales up to numbers of fp16, and stored weights anew where that moves them; how many.

    Under strong typing scales have the type that the operators compute in. A scale below 6e-5 has few
    bits there: the weights would all be off by one factor.
    """
    import numpy as np
    from onnx import TensorProto, numpy_helper

    graph = QuantizedGraph(model)
    moved: dict[str, np.ndarray] = {}
    for name in dict.fromkeys(node.input[1] for node in graph.pairs()):
        tensor = graph.constants.get(name)
        if tensor is None or tensor.data_type != TensorProto.FLOAT:
            continue
        before = numpy_helper.to_array(tensor)
        half = np.maximum(before.astype(np.float16), np.float16(2**-24))
        half = np.where(half < before, np.nextafter(half, np.float16(np.inf)), half)
        tensor.CopyFrom(numpy_helper.from_array(half.astype(np.float32), name))
        if (half > before * 1.002).any():
            moved[name] = before
    fitted: set[str] = set()
    for node in graph.pairs():
        weights = graph.constants.get(node.input[0])
        scale = graph.array(node.input[1])
        if node.op_type != "DequantizeLinear" or weights is None or scale is None:
            continue
        if node.input[1] in moved and weights.name not in fitted:
            values = numpy_helper.to_array(weights).astype(np.float32)
            values = values * _along(moved[node.input[1]], node, values.ndim)
            made = _quantized(values, scale, node, graph)
            weights.CopyFrom(numpy_helper.from_array(made, weights.name))
            fitted.add(weights.name)
    return len(moved)


def _regrid(
    owner: GraphProto, graph: QuantizedGraph, node: NodeProto, scale: np.ndarray, kind: Any
) -> None:
    """Give a QuantizeLinear, and the DequantizeLinear behind it, another scale, zero point and type."""
    import numpy as np
    from onnx import numpy_helper

    names = [f"{node.output[0]}_{part}" for part in ("scale_symmetric", "zero")]
    names = [
        name if name not in graph.constants else f"{name}_{len(graph.constants)}" for name in names
    ]
    for name, values in zip(names, (scale, np.zeros(scale.shape, kind)), strict=True):
        owner.initializer.append(numpy_helper.from_array(np.asarray(values), name))
        graph.constants[name] = owner.initializer[-1]
    behind = [each for each in graph.readers[node.output[0]] if each.op_type == "DequantizeLinear"]
    for each in (node, *behind):
        each.input[:] = [each.input[0], *names]
    noted = [value for value in owner.value_info if value.name == node.output[0]]
    for value in noted:  # its type is another now
        owner.value_info.remove(value)


def fold_weights(model: ModelProto) -> int:
    """Store weights that QuantizeLinear would quantize as what comes out of it; returns how many."""
    return _exchange_weights(model, fold=True)


def unfold_weights(model: ModelProto) -> int:
    """Store quantized weights as floats before a QuantizeLinear: TensorRT 8 wants them so; how many.

    Exact: every number lies on its grid. Its parser refuses a DequantizeLinear of constants with "only
    activation types allowed as input to this layer" (NVIDIA/TensorRT issue 3360).
    """
    return _exchange_weights(model, fold=False)


def _exchange_weights(model: ModelProto, fold: bool) -> int:
    from onnx import helper, numpy_helper

    graph = QuantizedGraph(model)
    changed = 0
    for owner in onnx_format.graphs(model.graph):
        nodes: list[NodeProto] = []
        for node in list(owner.node):
            kind = "QuantizeLinear" if fold else "DequantizeLinear"
            values = graph.array(node.input[0]) if node.op_type == kind else None
            scale = None if values is None else graph.array(node.input[1])
            if values is None or scale is None:
                nodes.append(node)
                continue
            name = node.output[0] if fold else f"{node.input[0]}_floats"
            if fold:
                kept = _quantized(values, scale, node, graph)
            else:
                kept = (values.astype(scale.dtype) * _along(scale, node, values.ndim)).astype(
                    scale.dtype
                )
                quantized = f"{node.output[0]}_quantized"
                along = {"axis": option(node, "axis", 1)} if scale.size > 1 else {}
                grid = list(node.input[1:])
                nodes.append(
                    helper.make_node("QuantizeLinear", [name, *grid], [quantized], quantized, **along)
                )
                node.input[0] = quantized
                nodes.append(node)
            if name not in graph.constants:
                model.graph.initializer.append(numpy_helper.from_array(kept, name))
                graph.constants[name] = model.graph.initializer[-1]
            changed += 1
        del owner.node[:]
        owner.node.extend(nodes)
    remove_unread_constants(model)
    return changed


def _quantized(
    values: np.ndarray, scale: np.ndarray, node: NodeProto, graph: QuantizedGraph
) -> np.ndarray:
    """What a symmetric QuantizeLinear makes of its constant input."""
    import numpy as np
    from onnx import TensorProto, helper

    kind = graph.integers(node)
    steps = values.astype(np.float32) / _along(scale, node, values.ndim).astype(np.float32)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    if kind == TensorProto.FLOAT8E4M3FN:
        return steps.clip(-FP8_LARGEST, FP8_LARGEST).astype(dtype)
    limits = np.iinfo(dtype)
    return np.rint(steps).clip(limits.min, limits.max).astype(dtype)


def _along(scale: np.ndarray, node: NodeProto, rank: int) -> np.ndarray:
    """The scale, shaped to be multiplied with a tensor of that rank."""
    if scale.size == 1:
        return scale.reshape(())
    shape = [1] * rank
    shape[int(option(node, "axis", 1)) % rank] = scale.size
    return scale.reshape(shape)


def remove_unread_constants(model: ModelProto) -> None:
    """Take out initializers that no node reads and no graph gives out."""
    graphs = list(onnx_format.graphs(model.graph))
    read = {name for graph in graphs for node in graph.node for name in node.input}
    read |= {value.name for graph in graphs for value in graph.output}
    for graph in graphs:
        kept = [tensor for tensor in graph.initializer if tensor.name in read]
        if len(kept) < len(graph.initializer):
            del graph.initializer[:]
            graph.initializer.extend(kept)
