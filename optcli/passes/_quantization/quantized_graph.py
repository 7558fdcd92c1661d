"""Reading a graph with QuantizeLinear and DequantizeLinear: what is constant, and in which integers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from optcli.formats import onnx as onnx_format

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto, NodeProto, TensorProto

# What multiplies by weights or other activations, the work that TensorRT does in INT8 and FP8.
PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

PAIR = frozenset({"QuantizeLinear", "DequantizeLinear"})


class QuantizedGraph:
    """A model's nodes, subgraphs included, with who makes and who reads each tensor."""

    def __init__(self, model: ModelProto) -> None:
        graphs = list(onnx_format.graphs(model.graph))
        self.nodes: list[NodeProto] = [node for graph in graphs for node in graph.node]
        self.constants: dict[str, TensorProto] = {t.name: t for g in graphs for t in g.initializer}
        self.made_by: dict[str, NodeProto] = {}
        self.readers: dict[str, list[NodeProto]] = defaultdict(list)
        for node in self.nodes:
            values = [each.t for each in node.attribute if each.name == "value"]
            if node.op_type == "Constant" and values:
                self.constants[node.output[0]] = values[0]
            for name in node.output:
                self.made_by[name] = node
            for name in node.input:
                self.readers[name].append(node)

    def pairs(self) -> list[NodeProto]:
        """Every QuantizeLinear and DequantizeLinear."""
        return [node for node in self.nodes if node.op_type in PAIR]

    def array(self, name: str) -> np.ndarray | None:
        """The numbers of a constant; None where the tensor is computed, or there is none."""
        from onnx import numpy_helper

        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def integers(self, node: NodeProto) -> int:
        """The type (a `TensorProto.DataType`) that the node quantizes to or dequantizes from."""
        import onnx

        if len(node.input) > 2 and node.input[2]:
            zero = self.constants.get(node.input[2])
            if zero is not None:
                return int(zero.data_type)
        if node.op_type == "QuantizeLinear":
            return int(option(node, "output_dtype", 0)) or onnx.TensorProto.UINT8
        data = self.constants.get(node.input[0])
        if data is not None:
            return int(data.data_type)
        before = self.made_by.get(node.input[0])
        is_quantized = before is not None and before.op_type == "QuantizeLinear"
        return self.integers(before) if before is not None and is_quantized else onnx.TensorProto.UINT8

    def weight(self, node: NodeProto) -> TensorProto | None:
        """The constant that the node quantizes or dequantizes; None for activations."""
        before = self.made_by.get(node.input[0])
        if before is not None and before.op_type == "QuantizeLinear":
            return self.constants.get(before.input[0])
        return self.constants.get(node.input[0])

    def scales(self, node: NodeProto) -> int | None:
        """How many scales the node has; None where they are computed."""
        found = self.array(node.input[1])
        return None if found is None else int(found.size)

    def dequantized(self, name: str) -> NodeProto | None:
        """The DequantizeLinear that a tensor comes from, past what only moves values or casts them."""
        for _ in range(len(self.nodes)):
            node = self.made_by.get(name)
            if node is None or node.op_type == "DequantizeLinear":
                return node
            if node.op_type not in _HANDS_ON:
                return None
            name = node.input[0]
        return None


# TensorRT moves a DequantizeLinear behind these, so that what follows reads integers.
_HANDS_ON = frozenset(
    {"MaxPool", "Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Slice", "Split", "Gather"}
    | {"Cast", "Identity", "DepthToSpace", "SpaceToDepth"}
)


def option(node: NodeProto, name: str, default: Any) -> Any:
    """The value of a node's attribute, a number or numbers."""
    import onnx

    for attribute in node.attribute:
        if attribute.name == name:
            return onnx.helper.get_attribute_value(attribute)
    return default


def channel_axis(node: NodeProto, rank: int) -> int | None:
    """The axis of a product's second input that becomes the channels of its output.

    None where one scale for all is all there is: a transposed convolution in groups.
    """
    if node.op_type == "ConvTranspose":
        return 1 if option(node, "group", 1) == 1 else None
    if node.op_type == "Gemm":
        return 0 if option(node, "transB", 0) else 1
    return 0 if node.op_type == "Conv" else rank - 1
