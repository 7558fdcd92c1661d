"""The output tail of a network: where values of different range meet behind its last layers.

A detector ends in arithmetic without weights: boxes are decoded, scaled to pixels (0 to 640) and joined
with scores (0 to 1). Integers of 8 bits for what was joined have steps of 2.5, and each score becomes
0. So the operators that join (Concat, Stack, arithmetic between two values), what leads to them from
the last layers, and everything from them to the outputs stay in floating point. The cost is small:
nothing there multiplies by weights. A tail that joins nothing, as a classifier's, is quantized.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from optcli.models.onnx_graphs.graph import constant, read

if TYPE_CHECKING:
    from nncf.common.graph import NNCFGraph
    from onnx import ModelProto
    from onnx_ir import Graph
    from openvino import Model
    from torch.fx import GraphModule

# An option of the passes that quantize.
OutputTail = Annotated[
    Literal["float", "quantized"],
    Field(
        description="operators behind the last layers that join values of different range, such as "
        "boxes and scores, with what leads to them and what follows: `float` keeps them in floating "
        "point; `quantized`: as all others"
    ),
]

# A product with no more weights is no layer: it converts boxes (4 x 4), or averages bins.
_FEW_WEIGHTS = 16

# Operators of ONNX, OpenVINO and PyTorch by what they do, in lower case and without underscores: most
# have the same name in all three.
_MULTIPLIES = frozenset(
    {"conv", "conv1d", "conv2d", "conv3d", "convolution", "groupconvolution", "convtranspose"}
    | {"convtranspose1d", "convtranspose2d", "convtranspose3d", "convolutionbackpropdata"}
    | {"groupconvolutionbackpropdata", "gemm", "matmul", "einsum", "linear", "addmm", "mm", "bmm"}
    | {"lstm", "gru", "rnn", "lstmsequence", "grusequence", "rnnsequence", "rnntanh", "rnnrelu"}
)
_SHARES = frozenset({"softmax", "safesoftmax"})  # they give shares, which add up to 1
_MOVES = frozenset(
    {"cast", "chunk", "clone", "contiguous", "convert", "dropout", "expand", "flatten", "gather"}
    | {"getitem", "identity", "permute", "reshape", "select", "slice", "split", "splitwithsizes"}
    | {"squeeze", "stridedslice", "to", "tocopy", "transpose", "unsafesplit", "unsqueeze"}
    | {"variadicsplit", "view"}
)
_BY_ELEMENT = frozenset(
    {"abs", "add", "cast", "celu", "clamp", "clampmax", "clampmin", "clip", "convert", "div", "divide"}
    | {"elu", "erf", "exp", "gelu", "hardsigmoid", "hardswish", "hardtanh", "hsigmoid", "hswish"}
    | {"identity", "leakyrelu", "log", "max", "maximum", "min", "minimum", "mish", "mul", "multiply"}
    | {"neg", "negative", "pow", "power", "prelu", "relu", "selu", "sigmoid", "silu", "softplus"}
    | {"sqrt", "sub", "subtract", "swish", "tanh", "to", "tocopy"}
)
# They take values at places that further inputs give: boxes that features are cropped by end there.
_TAKES = frozenset(
    {"gather", "gatherelements", "gathernd", "gridsample", "gridsampler", "index", "roialign", "slice"}
)
# They give places and truth values, nothing to compute with.
_CHOOSES = frozenset(
    {"and", "argmax", "argmin", "equal", "greater", "greaterorequal", "less", "lessorequal"}
    | {"nonmaxsuppression", "nms", "nonzero", "not", "or"}
)
_MEASURES = frozenset({"shape", "shapeof", "size", "symsize"})  # they read no values


@dataclass(frozen=True)
class GraphOperator:
    """One operator of a graph; `inputs` and `outputs` name values, weights among the inputs."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def in_onnx(model: ModelProto) -> list[str]:
    """The names of the nodes to keep in floating point, in order; none where the tail joins nothing."""
    graph = read(model).graph
    constants = {}
    for node in graph.all_nodes():
        for value in node.inputs:
            if value is not None and (tensor := constant(value)) is not None:
                constants[str(value.name)] = tuple(tensor.shape.numpy())
    inner = [value for each in graph.subgraphs() for value in each.inputs]
    given = {str(value.name) for value in (*graph.inputs, *inner)} - constants.keys()
    own = {node.name for node in graph if node.name}
    return [name for name in joining_tail([*_of_onnx(graph)], given, constants) if name in own]


def _of_onnx(graph: Graph) -> Iterator[GraphOperator]:
    """The operators of a graph; those of graphs within stand before the node that they belong to."""
    for node in graph:
        inputs = [str(value.name) for value in node.inputs if value is not None]
        for attribute in node.attributes.values():
            for inner in _graphs_within(attribute):
                yield from _of_onnx(inner)
                inputs += [str(value.name) for value in inner.outputs]
        outputs = tuple(str(value.name) for value in node.outputs)
        yield GraphOperator(str(node.name), node.op_type, tuple(inputs), outputs)


def _graphs_within(attribute: Any) -> Sequence[Graph]:
    from onnx_ir import AttributeType

    if attribute.type == AttributeType.GRAPH:
        return [attribute.as_graph()]
    return attribute.as_graphs() if attribute.type == AttributeType.GRAPHS else ()


def in_graph(graph: GraphModule) -> list[str]:
    """The names of the nodes to keep in floating point, in order."""
    import torch

    operators, shapes, given = [], {}, []
    for node in graph.graph.nodes:
        if node.op == "placeholder":
            given.append(node.name)
        elif node.op == "get_attr":
            owner, _, attribute = str(node.target).rpartition(".")
            value = getattr(graph.get_submodule(owner), attribute)
            if isinstance(value, torch.Tensor):
                shapes[node.name] = tuple(value.shape)
        elif node.op == "call_function":
            packet = getattr(node.target, "overloadpacket", node.target)
            kind = str(getattr(packet, "__name__", packet))
            inputs = tuple(each.name for each in node.all_input_nodes)
            operators.append(GraphOperator(node.name, kind, inputs, (node.name,)))
    return joining_tail(operators, given, shapes)


def in_openvino(model: Model) -> list[str]:
    """The friendly names of the nodes to keep in floating point, in order."""
    from nncf.openvino.graph.nncf_graph_builder import GraphConverter

    return in_nncf(GraphConverter.create_nncf_graph(model))


def in_nncf(graph: NNCFGraph) -> list[str]:
    """The names of the nodes to keep in floating point, in order, as NNCF calls them."""
    operators: list[GraphOperator] = []
    shapes: dict[str, tuple[int, ...]] = {}
    for node in graph.topological_sort():
        reads = sorted(graph.get_input_edges(node), key=lambda edge: edge.input_port_id)
        inputs = tuple(f"{edge.from_node.node_name}:{edge.output_port_id}" for edge in reads)
        gives = graph.get_output_edges(node)
        outputs = tuple(f"{node.node_name}:{edge.output_port_id}" for edge in gives)
        shapes |= {name: tuple(edge.tensor_shape) for name, edge in zip(outputs, gives, strict=True)}
        operators.append(GraphOperator(node.node_name, node.node_type, inputs, outputs))
    ends = {node.node_name for node in (*graph.get_input_nodes(), *graph.get_output_nodes())}
    given = [value for each in operators if each.name in ends for value in each.outputs]
    return [name for name in joining_tail(operators, given, shapes) if name not in ends]


def joining_tail(
    operators: Sequence[GraphOperator], given: Collection[str], shapes: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """The names of the operators behind the last layers that join values, lead to it or follow it.

    `operators` are in the order in which they can run, `given` are the network's inputs, `shapes` those
    of constants where they are known. What depends on no input but through its shape is constant.
    """
    tail, before_layer, before_join = [], set[str](), set[str]()
    for each in reversed(_looked_at(operators, given, shapes)):
        if each.is_layer or not before_layer.isdisjoint(each.outputs):
            before_layer.update(each.carries)
            continue
        if each.joins or not before_join.isdisjoint(each.outputs):
            before_join.update(each.reads)
        tail.append(each)
    names, behind = [], set[str]()
    for each in reversed(tail):
        if each.joins or not behind.isdisjoint(each.reads):
            behind.update(each.outputs)
        elif before_join.isdisjoint(each.outputs):
            continue
        names.append(each.name)
    return names


@dataclass(frozen=True)
class _TracedOperator:
    """An operator of the computed values; `carries` are those whose numbers come into its outputs."""

    name: str
    outputs: tuple[str, ...]
    reads: Collection[str]
    carries: Collection[str]
    joins: bool
    is_layer: bool


def _looked_at(
    operators: Sequence[GraphOperator], given: Collection[str], shapes: Mapping[str, tuple[int, ...]]
) -> list[_TracedOperator]:
    """The operators that compute from inputs, in order."""
    computed, from_layers, shares = {*given}, set[str](), set[str]()
    # A value by the one that it is computed from element by element: x · sigmoid(x) joins nothing.
    origin: dict[str, str] = {}
    seen, products = [], set[str]()
    for each in operators:
        kind = each.kind.replace("_", "").lower()
        reads = {value for value in each.inputs if value in computed}
        if kind in _MEASURES or not reads:
            continue
        by_element = kind in _BY_ELEMENT
        parts = {origin.get(value, value) for value in reads} if by_element else reads
        if by_element and len(parts) == 1:
            origin.update(dict.fromkeys(each.outputs, *parts))
        if kind in _SHARES or (kind in _MOVES and reads <= shares):
            shares.update(each.outputs)
        constants = [shapes.get(value) for value in each.inputs if value not in computed]
        is_product = (
            kind in _MULTIPLIES
            and len(reads.intersection(each.inputs[:2])) == 1
            and not reads <= shares  # else it is the expectation of a distribution
            and any(map(_is_weight, constants))
        )
        if is_product:
            products.update(each.outputs)
        is_layer = is_product or (
            kind == "add" and reads <= products and [*map(_is_bias, constants)] == [True]
        )
        if is_layer or not from_layers.isdisjoint(reads):
            from_layers.update(each.outputs)
        joins = len(parts) > 1 and not from_layers.isdisjoint(each.outputs)
        values = () if kind in _CHOOSES else each.inputs[:1] if kind in _TAKES else each.inputs
        carries = reads.intersection(values)
        computed.update(each.outputs)
        seen.append(_TracedOperator(each.name, each.outputs, reads, carries, joins, is_layer))
    return seen


def _is_bias(shape: tuple[int, ...] | None) -> bool:
    return shape is not None and sum(size != 1 for size in shape) < 2


def _is_weight(shape: tuple[int, ...] | None) -> bool:
    return shape is None or (len(shape) > 1 and prod(shape) > _FEW_WEIGHTS)
