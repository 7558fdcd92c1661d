"""Parts of a quantized ONNX network, cut so that each layer reads the float network's tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from optcli.accuracy.layers.onnx_graph import Graph, Pair

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto, NodeProto, ValueInfoProto

_OWN = "__own"
_EXACT = "__exact"


class Cut:
    """The layers that compute some pairs' tensors; `needs` are the float tensors that they read.

    Of each pair the root's node and its chain get names of their own; all other readers of the pair's
    names are fed. So `outputs` hold what every layer makes of exact inputs.
    """

    def __init__(self, child: Graph, pairs: Sequence[Pair], every: Mapping[str, Pair]) -> None:
        self._child, self._every = child, every
        self._emitted: dict[tuple[int, int], NodeProto] = {}
        self._queue: list[str] = []
        self._first: list[NodeProto] = []
        self.weights: set[str] = set()
        self.fed: dict[str, str] = {}
        self.outputs = {pair.tensor: self._own(pair, number) for number, pair in enumerate(pairs, 1)}
        seen = set[str]()
        for name in self._queue:  # which grows
            if name not in seen:
                seen.add(name)
                self._need(name)
        self.needs = tuple(dict.fromkeys(self.fed.values()))

    def model(self, floats: Mapping[str, np.ndarray], types: Mapping[str, np.dtype]) -> ModelProto:
        """The part as a model: `floats` are the needed tensors of one batch, `types` by tensor."""
        from onnx import helper

        inputs = [
            helper.make_tensor_value_info(
                name,
                helper.np_dtype_to_tensor_dtype(types.get(tensor, floats[tensor].dtype)),
                floats[tensor].shape,
            )
            for name, tensor in self.fed.items()
        ]
        nodes = [*self._first, *(self._emitted[key] for key in sorted(self._emitted))]
        return _model(self._child, nodes, inputs, list(self.outputs.values()), self.weights)

    def _own(self, pair: Pair, number: int) -> str:
        """Put a pair's own nodes in; the name of what the layer makes."""
        from onnx import helper

        child = self._child
        own = {face: f"{face}{_OWN}{number}" for face in pair.faces}
        if pair.root in child.maker:
            index = child.maker[pair.root]
            renamed = {name: f"{name}{_OWN}{number}" for name in child.nodes[index].output if name}
            self._put(index, number, {}, {**renamed, pair.root: own[pair.root]})
        else:  # an input of the network
            own[pair.root] = pair.root
            self._queue.append(pair.root)
        for index in pair.chain:
            inner = {face: own[face] for face in pair.faces}
            self._put(index, number, inner, inner)
        out, scales = own[pair.out], child.scale_of(pair.out)
        if scales is None:
            return out
        scale = [each for each in scales if each]
        self._queue.extend(scale)
        key = (len(child.nodes), len(self._emitted))
        self._emitted[key] = helper.make_node("DequantizeLinear", [out, *scale], [f"{out}_floats"])
        return f"{out}_floats"

    def _put(
        self, index: int, number: int, inputs: Mapping[str, str], outputs: Mapping[str, str]
    ) -> None:
        node = type(self._child.nodes[index])()
        node.CopyFrom(self._child.nodes[index])
        node.input[:] = [inputs.get(name, name) for name in node.input]
        node.output[:] = [outputs.get(name, name) for name in node.output]
        if number:
            node.name = ""
        self._emitted[(index, number)] = node
        self._queue.extend(name for name in self._child.reads[index] if name not in inputs)

    def _need(self, name: str) -> None:
        from onnx import helper

        child = self._child
        pair = self._every.get(name)
        if pair is not None:
            scale = child.scale_of(name)
            if scale is None:
                self.fed[name] = pair.tensor
                return
            exact = next((x for x, t in self.fed.items() if t == pair.tensor), f"{pair.root}{_EXACT}")
            self.fed[exact] = pair.tensor
            self._queue.extend(each for each in scale if each)
            node = helper.make_node("QuantizeLinear", [exact, *(x for x in scale if x)], [name])
            self._first.append(node)
        elif name in child.weights:
            self.weights.add(name)
        elif name in child.maker:
            self._put(child.maker[name], 0, {}, {})


def exposed(graph: Graph, names: Sequence[str]) -> tuple[ModelProto, list[str]]:
    """The model with these tensors as its outputs, integers as floats, and what they are called."""
    from onnx import helper

    more, called = [], []
    for name in names:
        scale = graph.scale_of(name)
        if scale is not None:
            floats = f"{name}{_EXACT}"
            inputs = [name, *(each for each in scale if each)]
            more.append(helper.make_node("DequantizeLinear", inputs, [floats]))
            called.append(floats)
        else:
            called.append(name)
    inputs = [x for x in graph.model.graph.input if x.name in graph.inputs]
    return _model(graph, [*graph.nodes, *more], inputs, called, set(graph.weights)), called


def _model(
    graph: Graph,
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    outputs: Sequence[str],
    weights: set[str],
) -> ModelProto:
    """A model of the same operator sets. Types of outputs are left to the runtime to find."""
    import onnx

    model = onnx.ModelProto()
    model.ir_version = graph.model.ir_version
    model.opset_import.extend(graph.model.opset_import)
    model.functions.extend(graph.model.functions)
    model.graph.name = graph.model.graph.name or "layers"
    model.graph.node.extend(nodes)
    model.graph.input.extend(inputs)
    model.graph.initializer.extend(graph.weights[name] for name in sorted(weights))
    input_names = {x.name for x in inputs}
    model.graph.output.extend(
        onnx.ValueInfoProto(name=name) for name in outputs if name not in input_names
    )
    return model
