"""Which operators of a model compute on quantized values."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import ModelProto
    from openvino import Model

# OpenVINO's operators that hand quantized values on as they are.
_MOVES_VALUES = frozenset(
    {"Concat", "MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "StridedSlice", "Slice"}
    | {"Split", "VariadicSplit", "Gather", "Relu"}
)


def in_onnx(model: ModelProto) -> dict[str, str]:
    """Types by name of the operators that read a quantized tensor; what has no name gets a number."""
    dequantized = {n.output[0] for n in model.graph.node if n.op_type == "DequantizeLinear"}
    return {
        node.name or f"#{number}": node.op_type
        for number, node in enumerate(model.graph.node)
        if node.op_type != "QuantizeLinear" and dequantized.intersection(node.input)
    }


def in_openvino(model: Model) -> dict[str, str]:
    """Types by name of those that read a quantized tensor, at once or past pooling and the like."""
    quantized: set[str] = set()
    found: dict[str, str] = {}
    for node in model.get_ordered_ops():
        kind, name = node.get_type_name(), node.get_friendly_name()
        sources = [port.get_source_output().get_node().get_friendly_name() for port in node.inputs()]
        reads = any(source in quantized for source in sources)
        if kind == "FakeQuantize" or (reads and kind in _MOVES_VALUES):
            quantized.add(name)
        elif reads and kind != "Result":
            found[name] = kind
    return found
