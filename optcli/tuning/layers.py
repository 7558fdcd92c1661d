"""The operators of a model, and which of them a trial leaves in floating point.

The graph is read from ONNX or from OpenVINO's XML.

Names are those that the quantizing pass knows: ONNX graphs are read from the quantized artifact, with
its QuantizeLinear and DequantizeLinear looked through, since a pass folds and renames before.

Groups that lose accuracy in one network after another: the first layer and the last ones (NVIDIA's and
ONNX Runtime's advice for detectors is to exclude the head), what is concatenated (branches of
different ranges share one scale), depthwise convolutions, swish, tensors with a wide range.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from optcli.accuracy.layers import LayersRequest, compare
from optcli.artifact import OUTPUT_TAIL, Artifact, Format
from optcli.environment import usable_cores
from optcli.errors import OptcliError
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import openvino as openvino_format
from optcli.models.onnx_graphs.graph import constant, read
from optcli.models.onnx_graphs.operators import PAIR, PRODUCTS, is_static
from optcli.models.onnx_graphs.quantized import behind
from optcli.observer import Observer
from optcli.recipe import Recipe

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnx_ir import Node, TensorProtocol, Value

_NO_LAYERS = frozenset({"Parameter", "Result", "Const", "Constant", "FakeQuantize", "Convert"})
Ranking = Callable[[Recipe, Artifact, Artifact, Observer], list[str]]
STEP = "repair › layers"
_GATES = frozenset(
    {"Sigmoid", "HardSigmoid", "HardSwish", "HSwish", "HSigmoid", "Swish", "Gelu", "Erf"}
)
_PRODUCT_OF_GATES = frozenset({"Mul", "Multiply"})
_WIDE = 4.0  # times the median width of all tensors
# Passes that can be told which operators to leave in floating point.
QUANTIZING = ("quantize_onnxruntime", "quantize_nncf")


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


def by_own_error(
    recipe: Recipe,
    parent: Artifact,
    quantized: Artifact,
    observer: Observer,
    *,
    timeout_s: float = 300.0,
) -> list[str]:
    """Names of operators, the one that adds most error by itself first; empty where that is not known.

    On calibration samples where there are some, so that the evaluation samples do not choose. Where the
    two cannot be compared the observer hears why: structural groups can be tried all the same.
    """
    data = recipe.data.get("calibration", recipe.data["evaluation"])
    observer.started(STEP)
    try:
        threads = recipe.latency.threads or usable_cores()
        request = LayersRequest(parent, quantized, recipe.inputs, data, recipe.folder, threads=threads)
        layers = compare(request, timeout_s=timeout_s)
    except OptcliError as error:
        observer.warned(STEP, error.message)
        return []
    if not layers.rows:
        observer.warned(STEP, layers.reason or "no layer could be compared")
    return list(layers.worst_nodes())


@dataclass(frozen=True)
class Component:
    """A part of a trial: layers that stay in floats, other options of the pass, or both."""

    label: str
    floats: frozenset[str] = frozenset()
    options: dict[str, Any] = field(default_factory=dict, hash=False)


def groups(layers: Sequence[NetworkOperator]) -> list[Component]:
    """The structural groups that the network has, the most promising first."""
    depth = _end_depth(layers)
    components = [
        Component(
            "only convolutions and products quantized", _names(x for x in layers if not x.multiplies)
        ),
        Component("the head in float", _near_outputs(layers, depth)),
        Component(f"the first {depth} layers in float", _near_inputs(layers, depth)),
        Component("the first layer in float", _near_inputs(layers, 1)),
        Component("concatenated branches in float", _concatenated(layers)),
        Component("depthwise convolutions in float", _names(x for x in layers if x.depthwise)),
        Component("swish and similar activations in float", _gated(layers)),
        Component("the last layers in float", _near_outputs(layers, 1)),
        Component("tensors of wide range in float", _wide(layers)),
    ]
    return [each for each in components if each.floats and len(each.floats) < len(layers)]


def calibrations(quantizer: str, options: dict[str, Any]) -> list[Component]:
    """Other ways to find ranges, as far as the pass has them and is not told so already."""
    if quantizer == "quantize_onnxruntime":
        components = [
            Component("ranges by percentile", options={"method": "percentile"}),
            Component("ranges by entropy", options={"method": "entropy", "percentile": None}),
            Component("scales per channel", options={"per_channel": True}),
        ]
    else:
        components = [Component("biases corrected exactly", options={"fast_bias_correction": False})]
        if options.get("target") != "tensorrt":  # which has symmetric ones only
            components.insert(0, Component("asymmetric activations", options={"preset": "mixed"}))
    return [c for c in components if any(options.get(key) != value for key, value in c.options.items())]


def beginnings(layers: Sequence[NetworkOperator]) -> list[Component]:
    """The first 8, 16, ... layers of the way through: noise from there passes everything after it."""
    half = max(_products_before(layers).values(), default=0) // 2
    depths = [8 * 2**power for power in range(6) if 8 * 2**power <= half]
    return [Component(f"the first {d} layers in float", _near_inputs(layers, d)) for d in depths]


def worst(ranking: Sequence[str], count: int) -> Component:
    """The layers that add most error, by a ranking of their names."""
    layers = "layer" if count == 1 else f"{count} layers"
    return Component(f"the worst {layers} in float", frozenset(ranking[:count]))


def _names(layers: Iterable[NetworkOperator]) -> frozenset[str]:
    return frozenset(layer.name for layer in layers)


def _readers(layers: Sequence[NetworkOperator]) -> dict[str, list[NetworkOperator]]:
    readers: dict[str, list[NetworkOperator]] = {}
    for layer in layers:
        for name in layer.inputs:
            readers.setdefault(name, []).append(layer)
    return readers


def _near_outputs(layers: Sequence[NetworkOperator], depth: int) -> frozenset[str]:
    """Layers with at most so many products between them and an output, themselves included."""
    readers = _readers(layers)
    distances: dict[str, int] = {}
    for layer in reversed(layers):  # files list operators in an order in which they can run
        after = [distances[x.name] for name in layer.outputs for x in readers.get(name, ())]
        distances[layer.name] = min(after, default=0) + layer.multiplies
    return frozenset(name for name, distance in distances.items() if distance <= depth)


def _products_before(layers: Sequence[NetworkOperator]) -> dict[str, int]:
    """How many products lie before each layer, on the longest path to it."""
    makers = {name: layer for layer in layers for name in layer.outputs}
    before: dict[str, int] = {}
    for layer in layers:
        sources = [makers[name] for name in layer.inputs if name in makers]
        before[layer.name] = max((before[x.name] + x.multiplies for x in sources), default=0)
    return before


def _end_depth(layers: Sequence[NetworkOperator]) -> int:
    """How many products deep the ends of a network are: an eighth of the way, five at most."""
    return max(2, min(5, max(_products_before(layers).values(), default=0) // 8))


def _near_inputs(layers: Sequence[NetworkOperator], depth: int) -> frozenset[str]:
    """Everything with fewer than so many products before it."""
    return frozenset(name for name, count in _products_before(layers).items() if count < depth)


def _concatenated(layers: Sequence[NetworkOperator]) -> frozenset[str]:
    """Concatenations and what makes their inputs."""
    joins = [layer for layer in layers if layer.kind == "Concat"]
    parts = {name for layer in joins for name in layer.inputs}
    return _names(joins) | _names(x for x in layers if parts.intersection(x.outputs))


def _gated(layers: Sequence[NetworkOperator]) -> frozenset[str]:
    gates = [layer for layer in layers if layer.kind in _GATES]
    gated = {name for layer in gates for name in layer.outputs}
    return _names(gates) | _names(
        x for x in layers if x.kind in _PRODUCT_OF_GATES and gated.intersection(x.inputs)
    )


def _wide(layers: Sequence[NetworkOperator]) -> frozenset[str]:
    """Layers beside the widest values: beyond four times the median, an eighth of all at most."""
    measured = sorted((x for x in layers if x.range), key=lambda x: -(x.range or 0.0))
    if not measured:
        return frozenset()
    limit = _WIDE * median(x.range or 0.0 for x in measured)
    return _names(x for x in measured[: max(1, len(measured) // 8)] if (x.range or 0.0) > limit)
