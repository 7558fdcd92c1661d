"""ONNX graphs in half precision brought to fp32, for what computes with it and quantizes from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli.onnx_graphs.interface import graphs

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto


def widened(model: ModelProto) -> ModelProto:
    """The model with fp32 wherever it had fp16, but for its inputs and outputs: these are cast.

    Every number stays what it is; sums are rounded less. The model is changed in place.
    """
    from onnx import TensorProto

    for graph in graphs(model.graph):
        for tensor in graph.initializer:
            _widen(tensor)
        # Entries of fp16 tensors are dropped: whoever needs their types infers them again.
        kept = [value for value in graph.value_info if not _is_half(value.type)]
        del graph.value_info[:]
        graph.value_info.extend(kept)
        for node in graph.node:
            _widen_attributes(node)
        if graph is not model.graph:
            for value in (*graph.input, *graph.output):
                if _is_half(value.type):
                    value.type.tensor_type.elem_type = TensorProto.FLOAT
    _cast_ends(model.graph)
    return model


def _widen_attributes(node: NodeProto) -> None:
    from onnx import TensorProto

    for attribute in node.attribute:
        # Cast says `to`; what makes numbers (RandomNormal, EyeLike) says `dtype`.
        if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT16:
            attribute.i = TensorProto.FLOAT
        if attribute.HasField("t"):
            _widen(attribute.t)
        for tensor in attribute.tensors:
            _widen(tensor)


def _widen(tensor: TensorProto) -> None:
    import numpy as np
    from onnx import TensorProto, numpy_helper

    if tensor.data_type == TensorProto.FLOAT16:
        values = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _cast_ends(graph: GraphProto) -> None:
    """Cast fp16 inputs to fp32, and results to the fp16 outputs that the model promises."""
    from onnx import TensorProto

    weights = {tensor.name for tensor in graph.initializer}
    inputs = [v.name for v in graph.input if _is_half(v.type) and v.name not in weights]
    outputs = [v.name for v in graph.output if _is_half(v.type) and v.name not in inputs]
    inside = {name: f"{name}_fp32" for name in (*inputs, *outputs)}
    for node in (node for inner in graphs(graph) for node in inner.node):
        node.input[:] = [inside.get(name, name) for name in node.input]
        node.output[:] = [inside.get(name, name) for name in node.output]
    nodes = list(graph.node)
    before = [_cast(name, inside[name], TensorProto.FLOAT) for name in inputs]
    after = [_cast(inside[name], name, TensorProto.FLOAT16) for name in outputs]
    del graph.node[:]
    graph.node.extend([*before, *nodes, *after])


def _cast(source: str, result: str, kind: int) -> NodeProto:
    from onnx import helper

    return helper.make_node("Cast", [source], [result], f"{result}_cast", to=kind)


def _is_half(kind: TypeProto) -> bool:
    from onnx import TensorProto

    return bool(kind.tensor_type.elem_type == TensorProto.FLOAT16)
