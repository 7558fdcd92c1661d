"""Whether a network is a transformer: its layers hand on few large values, which INT8 must spare."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli.onnx_graphs.graph import maker, read

if TYPE_CHECKING:
    from onnx import ModelProto
    from openvino import Model
    from torch.fx import GraphModule


def in_onnx(model: ModelProto) -> bool:
    """Whether the model is a transformer: it multiplies by the shares of a softmax, or says as much."""
    return any(
        node.op_type in ("LayerNormalization", "Attention", "MultiHeadAttention")
        or (node.op_type == "MatMul" and any(maker(value, "Softmax") for value in node.inputs))
        for node in read(model).graph
    )


def in_openvino(model: Model) -> bool:
    """Whether the model multiplies by the shares of a softmax."""
    return any(
        node.get_type_name() == "ScaledDotProductAttention"
        or (
            node.get_type_name() == "MatMul"
            and any(
                s.get_source_output().get_node().get_type_name() == "Softmax" for s in node.inputs()
            )
        )
        for node in model.get_ops()
    )


def in_graph(graph: GraphModule) -> bool:
    """Whether a graph multiplies by the shares of a softmax."""
    for node in graph.graph.nodes:
        name = str(node.target)
        if "scaled_dot_product" in name:
            return True
        if "softmax" in name and any(
            word in str(user.target) for user in node.users for word in ("matmul", "bmm", "einsum")
        ):
            return True
    return False
