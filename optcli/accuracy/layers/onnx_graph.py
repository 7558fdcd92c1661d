"""ONNX graphs read for comparing: who makes and who reads a tensor, what stands for a float tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcli.models.onnx_graphs.graph import read
from optcli.models.onnx_graphs.operators import MOVES_VALUES, PAIR, PRODUCT_OF
from optcli.models.onnx_graphs.protobuf import input_names

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

# Operators that give integers, and where their scale and zero point stand among the inputs.
_SCALES = {
    "QuantizeLinear": 1, "QLinearConv": 6, "QLinearMatMul": 6, "QLinearAdd": 6, "QLinearMul": 6,
    "QGemm": 7, "QLinearConcat": 0, "QLinearGlobalAveragePool": 3, "QLinearAveragePool": 3,
    "QLinearSigmoid": 3, "QLinearLeakyRelu": 3, "QLinearSoftmax": 3, "QLinearReduceMean": 3,
}  # fmt: skip
# Behind these, integers have the scale that they had before.
_PASS_ON = MOVES_VALUES | {"Concat", "Resize", "Pad", "Relu", "Clip"}
_INTEGERS_OF = "_quantized"  # ONNX Runtime's name for the integers of a tensor
_ABSORBED = ("Relu", "Clip")


class Graph:
    """The main graph of a model by positions of its nodes, which are cut out and renamed as messages.

    Names that subgraphs read count as inputs of their node. `values` are those of onnx_ir, by name.
    """

    def __init__(self, model: ModelProto) -> None:
        self.model = model
        self.nodes: list[NodeProto] = list(model.graph.node)
        self.weights: dict[str, TensorProto] = {each.name: each for each in model.graph.initializer}
        self.inputs = input_names(model)
        self.reads: list[list[str]] = [_read_by(node) for node in self.nodes]
        self.maker = {name: i for i, node in enumerate(self.nodes) for name in node.output if name}
        self.readers: dict[str, list[int]] = {}
        for index, names in enumerate(self.reads):
            for name in names:
                self.readers.setdefault(name, []).append(index)
        self.dynamic = self._dynamic()
        graph = read(model).graph
        outputs = [value for node in graph for value in node.outputs]
        self.values = {value.name: value for value in (*graph.initializers.values(), *outputs)}

    def _dynamic(self) -> set[str]:
        """Tensors that depend on an input of the model."""
        dynamic = set(self.inputs)
        for node, names in zip(self.nodes, self.reads, strict=True):
            if dynamic.intersection(names):
                dynamic.update(name for name in node.output if name)
        return dynamic

    def scale_of(self, name: str) -> tuple[str, str] | None:
        """Names of scale and zero point of a tensor of integers; None for others."""
        index = self.maker.get(name)
        if index is None:
            return None
        node = self.nodes[index]
        place = _SCALES.get(node.op_type)
        if place is not None:
            zero = node.input[place + 1] if len(node.input) > place + 1 else ""
            return node.input[place], zero
        if node.op_type in _PASS_ON:
            return next((scale for x in node.input if (scale := self.scale_of(x))), None)
        return None

    def layers_behind(self, names: Sequence[str]) -> tuple[str, ...]:
        """Names of the layers that read these tensors, at once or past what only moves values."""
        layers, ahead = dict[str, None](), list(names)
        seen = set[int]()
        for name in ahead:  # which grows
            for index in self.readers.get(name, ()):
                node = self.nodes[index]
                if index in seen:
                    continue
                seen.add(index)
                pair = node.op_type in PAIR
                if node.name and not pair:
                    layers[node.name] = None
                if pair or node.op_type in _PASS_ON:
                    ahead += node.output
        return tuple(layers)


def _read_by(node: NodeProto) -> list[str]:
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in [attribute.g] if attribute.HasField("g") else attribute.graphs:
            inner = {x.name for x in (*graph.initializer, *graph.input)}
            inner.update(name for each in graph.node for name in each.output)
            names += [name for each in graph.node for name in _read_by(each) if name not in inner]
    return names


@dataclass(frozen=True)
class Pair:
    """A float tensor and what stands for it in the child.

    `root` is what a layer of the child computes, as floats or integers; `chain` are the nodes that
    quantize and dequantize it, `faces` all names under which the child's layers read it, `out` the
    last of them: what the layers behind see.
    """

    tensor: str
    root: str
    chain: tuple[int, ...]
    faces: tuple[str, ...]
    out: str


def pairs(floats: Graph, child: Graph) -> list[Pair]:
    """Float tensors with their counterparts, in the child's order; by name, else layer by layer."""
    matched = dict(_by_name(floats, child))
    products = [i for i, node in enumerate(floats.nodes) if node.op_type in PRODUCT_OF]
    named = sum(floats.nodes[i].output[0] in matched for i in products)
    if 2 * named < len(products) and not _folded(floats, child, matched):
        matched.update(_by_order(floats, child))
    matched_pairs, faces = [], set[str]()
    for tensor, name in matched.items():
        pair = _pair(child, tensor, name)
        if not faces.intersection(pair.faces):
            faces.update(pair.faces)
            matched_pairs.append(pair)
    return sorted(matched_pairs, key=lambda pair: child.maker.get(pair.root, -1))


def _folded(floats: Graph, child: Graph, matched: dict[str, str]) -> bool:
    """Whether names fit although layers' own outputs are gone: batch norms were folded into them."""
    makers = [floats.nodes[floats.maker[name]] for name in matched if name in floats.maker]
    norms = sum(node.op_type == "BatchNormalization" for node in makers)
    return norms > 0 and len(makers) > len(child.nodes) // 8


def _by_name(floats: Graph, child: Graph) -> Iterator[tuple[str, str]]:
    """Names of float tensors and of the same in the child, which has it as floats or as integers."""
    outputs = {name for node in floats.nodes for name in node.output if name}
    for name in [*floats.inputs, *(x for node in floats.nodes for x in node.output if x in outputs)]:
        if name not in floats.dynamic:
            continue
        there = next((x for x in (name, name + _INTEGERS_OF) if x in child.dynamic), None)
        if there is not None:
            yield _absorbing(floats, child, name, there), there


def _absorbing(floats: Graph, child: Graph, name: str, there: str) -> str:
    """The ReLU behind a tensor, where the child has none: the range of its integers does the same.

    What is dequantized then goes by the ReLU's name, or that is gone.
    """
    behind = [floats.nodes[i] for i in floats.readers.get(name, ())]
    if len(behind) == 1 and behind[0].op_type in _ABSORBED and name not in floats.inputs:
        output = str(behind[0].output[0])
        gone = output not in child.dynamic and output + _INTEGERS_OF not in child.dynamic
        if gone or output in _pair(child, name, there).faces:
            return output
    return name


def _by_order(floats: Graph, child: Graph) -> Iterator[tuple[str, str]]:
    """Layers in their order, where both networks have the same ones."""
    ours, reference = _products(floats), _products(child)
    if [PRODUCT_OF[node.op_type] for node in ours] == [PRODUCT_OF[node.op_type] for node in reference]:
        yield from ((a.output[0], b.output[0]) for a, b in zip(ours, reference, strict=True))


def _products(graph: Graph) -> Sequence[NodeProto]:
    return [x for x in graph.nodes if x.op_type in PRODUCT_OF and graph.dynamic.intersection(x.output)]


def seen_behind(graph: Graph, tensor: str) -> str:
    """What the layers behind a tensor see: of a quantized baseline, what is dequantized from it."""
    return _pair(graph, tensor, tensor).out


def _pair(child: Graph, tensor: str, name: str) -> Pair:
    chain: list[int] = []
    faces, out = [name], name
    for face in faces:  # which grows
        for index in child.readers.get(face, ()):
            node = child.nodes[index]
            if node.op_type in PAIR and node.input[0] == face:
                chain.append(index)
                faces.append(node.output[0])
                if node.op_type == "DequantizeLinear":
                    out = node.output[0]
    return Pair(tensor, name, tuple(dict.fromkeys(chain)), tuple(dict.fromkeys(faces)), out)


def name_of(node: NodeProto, reference: NodeProto | None) -> str:
    """A layer's name; where the float network gives none, the one that the pass gave it."""
    return str(node.name or (reference.name.removesuffix("_quant") if reference is not None else ""))


def layer(graph: Graph, name: str, stop: set[str]) -> NodeProto | None:
    """The layer that computes a tensor: the nearest product behind it, else the node that makes it.

    `stop` are tensors that other layers compute.
    """
    index = graph.maker.get(name)
    if index is None:
        return None
    ahead, seen = [index], set[int]()
    for position in ahead:  # which grows
        node = graph.nodes[position]
        if node.op_type in PRODUCT_OF:
            return node
        seen.add(position)
        before = (graph.maker.get(x) for x in node.input if x not in stop and x in graph.dynamic)
        ahead += [x for x in before if x is not None and x not in seen]
    return graph.nodes[index]
