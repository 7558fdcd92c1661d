"""Layer by layer in ONNX Runtime with its optimizations off: a float network and its child."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optcli.accuracy.layers.measured import MeasuredLayers, Sums, weight_errors
from optcli.accuracy.layers.onnx_graph import Graph, Pair, layer, name_of, pairs, seen_behind
from optcli.artifact import Artifact
from optcli.errors import StepError, raised_as
from optcli.files import folders
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.operators import PRODUCT_OF, is_static, weight_position
from optcli.models.onnx_graphs.quantized import along, dequantize, numbers
from optcli.results.outcomes import LayerError

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto

    Feed = Mapping[str, np.ndarray]
    import numpy as np
    from onnx import NodeProto

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto, NodeProto, ValueInfoProto

_OWN = "__own"


_EXACT = "__exact"


class LayerCut:
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


def compare(baseline: Artifact, child: Artifact, feeds: Sequence[Feed], threads: int) -> MeasuredLayers:
    """Rows of activations and weights; `feeds` are batches of one shape, by names of the recipe."""
    floats, other = (Graph(onnx_format.open(each.path)) for each in (baseline, child))
    matched = pairs(floats, other)
    if not matched:
        return MeasuredLayers(
            reason="no layer of the two networks goes by the same name, nor in the same order"
        )
    with folders.temporary("layers") as folder:
        work = _Work(floats, other, matched, Path(folder), threads)
        for piece in work.sums.pieces(matched):
            work.look(piece, feeds)
    rows = [work.error(pair) for pair in matched if pair.tensor in work.sums]
    return work.sums.measured(rows, weight_rows(floats, other, matched))


class _Work:
    """Both networks, and the sums so far."""

    def __init__(
        self, floats: Graph, child: Graph, matched: Sequence[Pair], folder: Path, threads: int
    ) -> None:
        self.floats, self.child, self._folder, self._threads = floats, child, folder, threads
        self._every = {face: pair for pair in matched for face in pair.faces}
        self._tensors = {pair.tensor for pair in matched}
        self._types: dict[str, np.dtype] = {}
        self._ranges: dict[str, tuple[float, float]] = {}
        self.sums = Sums()

    def look(self, piece: Sequence[Pair], feeds: Sequence[Feed]) -> None:
        """Compare some tensors on all batches: as both networks run, and each layer by itself."""
        cut = LayerCut(self.child, piece, self._every)
        names = [pair.tensor for pair in piece]
        needs = tuple(dict.fromkeys([*names, *cut.needs]))
        sources = [seen_behind(self.floats, name) for name in needs]
        exact = _Session(*exposed(self.floats, sources), needs, self._folder, self._threads)
        outs = [pair.out for pair in piece]
        whole = _Session(*exposed(self.child, outs), names, self._folder, self._threads)
        alone: _Session | None = None
        for feed in feeds:
            floats, reference = (
                exact.run(_named(self.floats, feed)),
                whole.run(_named(self.child, feed)),
            )
            self._types.update({name: array.dtype for name, array in reference.items()})
            if alone is None:
                fits = [
                    x for x in piece if self.sums.fits(x.tensor, floats[x.tensor], reference[x.tensor])
                ]
                if len(fits) < len(piece):
                    # Layers behind the others read them as they are: the float network's do not fit.
                    for face in {f for pair in set(piece) - set(fits) for f in pair.faces}:
                        self._every.pop(face, None)
                    if fits:
                        self.look(fits, feeds)
                    return
                model = cut.model(floats, self._types)
                tensors, called = list(cut.outputs), list(cut.outputs.values())
                alone = _Session(model, called, tensors, self._folder, self._threads)
            own = alone.run(
                {
                    name: floats[tensor].astype(self._types.get(tensor, floats[tensor].dtype))
                    for name, tensor in cut.fed.items()
                }
            )
            for pair in piece:
                name = pair.tensor
                self.sums.add(name, floats[name], reference[name], own[name], self._bounds(pair))

    def _bounds(self, pair: Pair) -> tuple[float, float] | None:
        """The values that a tensor's integers can stand for."""
        import numpy as np
        from onnx import numpy_helper

        if pair.tensor not in self._ranges:
            scales = (self.child.scale_of(face) for face in pair.faces)
            scale, zero = next((each for each in scales if each), ("", ""))
            weights = self.child.weights
            if scale not in weights or zero not in weights:
                return None
            step, point = (numpy_helper.to_array(weights[name]).ravel()[0] for name in (scale, zero))
            if not np.issubdtype(point.dtype, np.integer):
                return None
            info = np.iinfo(point.dtype)
            low, high = ((end - int(point)) * float(step) for end in (info.min, info.max))
            self._ranges[pair.tensor] = (low - abs(float(step)), high + abs(float(step)))
        return self._ranges[pair.tensor]

    def error(self, pair: Pair) -> LayerError:
        """The row of a tensor."""
        node = layer(self.floats, pair.tensor, self._tensors - {pair.tensor})
        if node is None:
            return self.sums.error(pair.tensor, "", "input")
        reference = layer(self.child, pair.root, set(self._every) - set(pair.faces))
        row = self.sums.error(pair.tensor, name_of(node, reference), node.op_type)
        if not pair.chain or not any(self.child.scale_of(face) for face in pair.faces):
            return row
        return row.model_copy(update={"readers": self.child.layers_behind(pair.faces)})


def _named(graph: Graph, feed: Feed) -> dict[str, np.ndarray]:
    """The feed by the graph's own names, in order, and its element types."""
    from onnx import helper

    types = {
        value.name: helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        for value in graph.model.graph.input
    }
    names = graph.inputs if not set(graph.inputs) <= set(feed) else tuple(feed)
    return {
        name: array.astype(types[name], copy=False)
        for name, array in zip(names, feed.values(), strict=True)
    }


class _Session:
    """A model, its outputs by the names of float tensors. Optimizations are off: they fuse layers."""

    def __init__(
        self,
        model: ModelProto,
        called: Sequence[str],
        tensors: Sequence[str],
        folder: Path,
        threads: int,
    ) -> None:
        self._inputs = {value.name for value in model.graph.input}
        self._called = dict(zip(tensors, called, strict=True))
        onnx_format.save(model, folder)
        message = "ONNX Runtime does not open the network with its layers exposed"
        hint = "without graph optimization it lacks some operators; try another opset"
        try:
            with raised_as(StepError, message, hint=hint):
                file = folder / onnx_format.FILE
                self._session = onnx_format.session(file, threads, optimized=False)
        finally:
            (folder / onnx_format.DATA).unlink(missing_ok=True)

    def run(self, feed: Feed) -> dict[str, np.ndarray]:
        """Float tensors' names to arrays."""
        inputs = {name: array for name, array in feed.items() if name in self._inputs}
        names = list(dict.fromkeys(x for x in self._called.values() if x not in self._inputs))
        arrays = dict(zip(names, self._session.run(names, inputs), strict=True))
        return {tensor: arrays.get(x, feed.get(x)) for tensor, x in self._called.items()}  # type: ignore[misc]


def weight_rows(floats: Graph, child: Graph, pairs: Sequence[Pair]) -> Iterator[LayerError]:
    """One row for every layer whose weights both networks have, in the same shape."""
    import numpy as np

    ours = {pair.tensor for pair in pairs}
    reference = {face for pair in pairs for face in pair.faces}
    for pair in pairs:
        node, child_node = layer(floats, pair.tensor, ours), layer(child, pair.root, reference)
        if node is None or child_node is None or node.op_type not in PRODUCT_OF:
            continue
        exact, quantized = _values(floats, node), _values(child, child_node)
        if exact is None or quantized is None:
            continue
        exact = _with_norm(floats, child, node, exact)
        if exact.shape != quantized.shape and exact.shape == quantized.shape[::-1]:
            quantized = np.transpose(quantized)
        transposed = any(each.name == "transB" and each.i for each in node.attribute)
        columns = node.op_type == "MatMul" or (node.op_type == "Gemm" and not transposed)
        axis = exact.ndim - 1 if columns else 0
        name, layer_name = node.input[weight_position(node.op_type)], name_of(node, child_node)
        yield from weight_errors(name, layer_name, node.op_type, exact, quantized, axis)


def _values(graph: Graph, node: NodeProto) -> np.ndarray | None:
    """A layer's weights as the numbers that it computes with; None where they are computed."""
    place = weight_position(node.op_type)
    weights, scale, zero = (
        numbers(graph.values.get(name)) for name in (*node.input, "", "", "")[place : place + 3]
    )
    if not is_static(node.op_type):
        return weights
    if weights is None or scale is None:
        return None
    return dequantize(weights, scale, zero, 0 if node.op_type == "QLinearConv" else -1)


def _with_norm(floats: Graph, child: Graph, node: NodeProto, weights: np.ndarray) -> np.ndarray:
    """Weights with the batch norm behind them folded in, where the child has folded it in."""
    import numpy as np

    behind = [floats.nodes[i] for i in floats.readers.get(node.output[0], ())]
    norms = any(each.op_type == "BatchNormalization" for each in child.nodes)
    if norms or node.op_type != "Conv" or [x.op_type for x in behind] != ["BatchNormalization"]:
        return weights
    gain, _, _, variance = (numbers(floats.values.get(name)) for name in behind[0].input[1:5])
    if gain is None or variance is None:
        return weights
    epsilon = next((each.f for each in behind[0].attribute if each.name == "epsilon"), 1e-5)
    return np.asarray(weights * along(gain / np.sqrt(variance + epsilon), weights.ndim, 0))


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
