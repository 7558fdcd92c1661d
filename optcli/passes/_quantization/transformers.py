"""Whether a network is a transformer: its layers hand on few large values, which INT8 must spare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli.models.onnx_graphs.graph import maker, read

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnx_ir import Value
    from openvino import Model, Node
    from torch.fx import GraphModule
    from torch.fx import Node as GraphNode

# What may stand between a softmax and the product: it changes no value of those that are kept.
_HANDED_ON_ONNX = {"Cast", "Dropout", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
_HANDED_ON_OPENVINO = {"Broadcast", "Convert", "Reshape", "Squeeze", "Unsqueeze"}
_HANDED_ON_TORCH = ("_to_copy", "clone", "dropout", "expand", "reshape", "squeeze", "to.", "view")
_PRODUCTS = ("MatMul", "Einsum")
_PRODUCTS_TORCH = ("matmul", "bmm", "einsum")


def in_onnx(model: ModelProto) -> bool:
    """Whether the model is a transformer: it multiplies by the shares of a softmax, or says as much."""
    return any(
        node.op_type in ("LayerNormalization", "Attention", "MultiHeadAttention")
        or (node.op_type in _PRODUCTS and any(_is_softmax(value) for value in node.inputs))
        for node in read(model).graph
    )


def _is_softmax(value: Value | None) -> bool:
    while node := maker(value, *_HANDED_ON_ONNX):
        value = node.inputs[0]
    return maker(value, "Softmax") is not None


def in_openvino(model: Model) -> bool:
    """Whether the model multiplies by the shares of a softmax."""
    return any(
        node.get_type_name() == "ScaledDotProductAttention"
        or (node.get_type_name() in _PRODUCTS and any(map(_hands_on_softmax, _sources(node))))
        for node in model.get_ops()
    )


def _sources(node: Node) -> list[Node]:
    return [each.get_source_output().get_node() for each in node.inputs()]


def _hands_on_softmax(node: Node) -> bool:
    while node.get_type_name() in _HANDED_ON_OPENVINO:
        node = _sources(node)[0]
    return bool(node.get_type_name() == "Softmax")


def in_graph(graph: GraphModule) -> bool:
    """Whether a graph multiplies by the shares of a softmax."""
    return any(
        "scaled_dot_product" in str(node.target)
        or ("softmax" in str(node.target) and _is_multiplied(node))
        for node in graph.graph.nodes
    )


def _is_multiplied(node: GraphNode) -> bool:
    for user in node.users:
        name = str(user.target)
        if any(word in name for word in _PRODUCTS_TORCH):
            return True
        if any(word in name for word in _HANDED_ON_TORCH) and _is_multiplied(user):
            return True
    return False
