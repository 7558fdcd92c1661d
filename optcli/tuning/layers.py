"""The operators of a model as a graph, read from ONNX or from OpenVINO's XML.

Names are those that the quantizing pass knows: ONNX graphs are read from the quantized artifact, with
its QuantizeLinear and DequantizeLinear looked through, since a pass folds and renames before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from optcli.artifact import Artifact, Format
from optcli.formats import onnx as onnx_format

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

# Operators that multiply by weights, in ONNX's words and in OpenVINO's.
PRODUCTS = frozenset(
    {"Conv", "ConvTranspose", "Gemm", "MatMul", "Convolution", "GroupConvolution"}
    | {"ConvolutionBackpropData", "GroupConvolutionBackpropData"}
)
_PAIR = ("QuantizeLinear", "DequantizeLinear")
_NO_LAYERS = frozenset({"Parameter", "Result", "Const", "Constant", "FakeQuantize", "Convert"})


@dataclass(frozen=True)
class Layer:
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
        return self.kind in PRODUCTS


def layers_of(quantized: Artifact, parent: Artifact) -> list[Layer]:
    """The operators in the order of the file; empty for formats without a graph that can be read.

    `parent` is the model that was quantized.
    """
    if quantized.format == Format.ONNX:
        own = onnx_format.outline(quantized.path)
        whole = any(node.op_type.startswith("QLinear") for node in own.graph.node)
        return onnx_layers(onnx_format.outline(parent.path) if whole else own)
    if quantized.format == Format.OPENVINO:
        return openvino_layers(parent.path / "model.xml")
    return []


def onnx_layers(model: ModelProto) -> list[Layer]:
    """The operators of an ONNX model, quantized or not; weights are no tensors between operators."""
    from onnx import numpy_helper

    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    known_as: dict[str, str] = {}
    widths: dict[str, float] = {}
    for node in model.graph.node:
        if node.op_type in _PAIR:
            known_as[node.output[0]] = node.input[0]
            scale = constants.get(node.input[1])
            if node.op_type == "QuantizeLinear" and scale is not None and not _is_outside(scale):
                widths[node.input[0]] = 255 * float(numpy_helper.to_array(scale).max())

    def real(name: str) -> str:
        while name in known_as:
            name = known_as[name]
        return name

    widths = {real(name): width for name, width in widths.items()}
    found = []
    for node in model.graph.node:
        if node.op_type in (*_PAIR, "Constant") or not node.name:
            continue
        inputs = tuple(real(name) for name in node.input if name and real(name) not in constants)
        outputs = tuple(node.output)
        around = [widths[name] for name in (*inputs, *outputs) if name in widths]
        weight = constants.get(real(node.input[1])) if len(node.input) > 1 else None
        depthwise = weight is not None and _is_depthwise(node, weight.dims)
        found.append(
            Layer(node.name, node.op_type, inputs, outputs, depthwise, max(around, default=None))
        )
    return found


def _is_outside(tensor: object) -> bool:
    return bool(getattr(tensor, "external_data", ()))


def _is_depthwise(node: NodeProto, weight: Sequence[int]) -> bool:
    group = next((each.i for each in node.attribute if each.name == "group"), 1)
    return node.op_type == "Conv" and group > 1 and group == weight[0]


def openvino_layers(model: Path) -> list[Layer]:
    """The operators of an OpenVINO model, from its XML alone."""
    root = ElementTree.parse(model).getroot()  # noqa: S314  (of the own store)
    kinds = {each.get("id", ""): each.get("type", "") for each in root.iterfind("layers/layer")}
    reads: dict[str, list[str]] = {}
    for edge in root.iterfind("edges/edge"):
        source = edge.get("from-layer", "")
        if kinds.get(source) not in ("Const", None):
            reads.setdefault(edge.get("to-layer", ""), []).append(source)
    found = []
    for each in root.iterfind("layers/layer"):
        number, kind = each.get("id", ""), each.get("type", "")
        if kind in _NO_LAYERS:
            continue
        depthwise = kind == "GroupConvolution"
        inputs = tuple(reads.get(number, ()))
        found.append(Layer(each.get("name", ""), kind, inputs, (number,), depthwise))
    return found
