"""Which operators of a model compute on quantized values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from optcli.models.formats import openvino as openvino_format
from optcli.models.onnx_graphs.graph import maker, read

if TYPE_CHECKING:
    from onnx import ModelProto
    from openvino import Model


def in_onnx(model: ModelProto) -> dict[str, str]:
    """Types by name of the operators that read a quantized tensor; what has no name gets a number."""
    return {
        node.name or f"#{number}": node.op_type
        for number, node in enumerate(read(model).graph)
        if node.op_type != "QuantizeLinear"
        and any(maker(value, "DequantizeLinear") is not None for value in node.inputs)
    }


def in_openvino(model: Model) -> dict[str, str]:
    """Types by name of those that read a quantized tensor, at once or past pooling and the like."""
    quantized: set[str] = set()
    operators: dict[str, str] = {}
    for node in model.get_ordered_ops():
        kind, name = node.get_type_name(), node.get_friendly_name()
        sources = [port.get_source_output().get_node().get_friendly_name() for port in node.inputs()]
        reads = any(source in quantized for source in sources)
        if kind == "FakeQuantize" or (reads and kind in openvino_format.MOVES_VALUES):
            quantized.add(name)
        elif reads and kind != "Result":
            operators[name] = kind
    return operators
