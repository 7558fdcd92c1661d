"""The operators of a model as a graph, read from ONNX or from OpenVINO's XML.

Names are those that the quantizing pass knows: ONNX graphs are read from the quantized artifact, with
its QuantizeLinear and DequantizeLinear looked through, since a pass folds and renames before.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from optcli.artifact import OUTPUT_TAIL, Artifact, Format
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import openvino as openvino_format
from optcli.models.onnx_graphs.graph import constant, read
from optcli.models.onnx_graphs.operators import PAIR, PRODUCTS, is_static
from optcli.models.onnx_graphs.quantized import behind

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnx_ir import Node, TensorProtocol, Value

_NO_LAYERS = frozenset({"Parameter", "Result", "Const", "Constant", "FakeQuantize", "Convert"})


@dataclass(frozen=True)
class NetworkOperator:
    """One operator. `inputs` and `outputs` name tensors that it shares with other operators.

    `range` is the largest width of the values it reads or writes, where they are quantized.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    depthwise: bool = False
    range: float | None = None

    @property
    def multiplies(self) -> bool:
        """Whether it multiplies by weights, as convolutions do."""
        return self.kind in PRODUCTS | openvino_format.PRODUCTS


def layers_of(quantized: Artifact, parent: Artifact) -> list[NetworkOperator]:
    """The operators in the order of the file; empty for formats without a graph that can be read.

    Without those of the output tail that are in floating point anyway. `parent` is the model that was
    quantized.
    """
    in_floats = {*quantized.facts.get(OUTPUT_TAIL, ())}
    return [layer for layer in _all_layers(quantized, parent) if layer.name not in in_floats]


def _all_layers(quantized: Artifact, parent: Artifact) -> list[NetworkOperator]:
    if quantized.format == Format.ONNX:
        own = onnx_format.outline(quantized.path)
        whole = any(is_static(node.op_type) for node in own.graph.node)
        return onnx_layers(onnx_format.outline(parent.path) if whole else own)
    if quantized.format == Format.OPENVINO:
        return openvino_layers(parent.path / "model.xml")
    return []


def onnx_layers(model: ModelProto) -> list[NetworkOperator]:
    """The operators of an ONNX model, quantized or not; weights are no tensors between operators."""
    from onnx_ir import ExternalTensor

    graph = read(model).graph
    widths: dict[Value | None, float] = {}
    for node in graph:
        scale = constant(node.inputs[1]) if node.op_type == "QuantizeLinear" else None
        if scale is not None and not isinstance(scale, ExternalTensor):
            widths[behind(node.inputs[0])] = 255 * float(scale.numpy().max())
    layers = []
    for node in graph:
        if node.op_type in PAIR | {"Constant"} or not node.name:
            continue
        values = [behind(value) for value in node.inputs]
        weight = constant(values[1]) if len(values) > 1 else None
        tensors = [value for value in values if value is not None and constant(value) is None]
        neighbours = [widths[value] for value in (*tensors, *node.outputs) if value in widths]
        inputs, outputs = (tuple(str(each.name) for each in side) for side in (tensors, node.outputs))
        depthwise = weight is not None and _is_depthwise(node, weight)
        width = max(neighbours, default=None)
        layers.append(NetworkOperator(node.name, node.op_type, inputs, outputs, depthwise, width))
    return layers


def _is_depthwise(node: Node, weight: TensorProtocol) -> bool:
    group = node.attributes.get_int("group", 1)
    return node.op_type == "Conv" and group > 1 and group == weight.shape[0]


def openvino_layers(model: Path) -> list[NetworkOperator]:
    """The operators of an OpenVINO model, from its XML alone."""
    root = ElementTree.parse(model).getroot()  # noqa: S314  (of the own store)
    kinds = {each.get("id", ""): each.get("type", "") for each in root.iterfind("layers/layer")}
    reads: dict[str, list[str]] = {}
    for edge in root.iterfind("edges/edge"):
        source = edge.get("from-layer", "")
        if kinds.get(source) not in ("Const", None):
            reads.setdefault(edge.get("to-layer", ""), []).append(source)
    layers = []
    for each in root.iterfind("layers/layer"):
        number, kind = each.get("id", ""), each.get("type", "")
        if kind in _NO_LAYERS:
            continue
        depthwise = kind == "GroupConvolution"
        inputs = tuple(reads.get(number, ()))
        layers.append(NetworkOperator(each.get("name", ""), kind, inputs, (number,), depthwise))
    return layers
