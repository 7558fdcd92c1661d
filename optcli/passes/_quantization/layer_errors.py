"""Layers that quantization ruins, and what must stay in floating point so that it does not.

A few large values of one channel make the step of a tensor's one scale as large as all that its other
channels hold. A depthwise convolution, which reads each channel by itself, then gives noise: in
YOLOX-nano one such layer of 113 costs 13 of 32 points of mAP. Each layer is looked at by itself: in one
graph, layers of the quantized model read what the layers before them give in the float model, so that
no error adds up on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from functools import cache
from itertools import islice
from math import log10
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from optcli.errors import StepError, raised_as
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.graph import constant, maker, read
from optcli.models.onnx_graphs.operators import PRODUCTS

if TYPE_CHECKING:
    import numpy as np
    import torch
    from onnx import ModelProto
    from onnx_ir import Node, Value

# An option of the passes that quantize.
LeastSqnr = Annotated[
    float | None,
    Field(
        description="layers stay in floating point, with the activation functions before them, where "
        "integers for what they read leave their output fewer dB than this; null: none does "
        "(`quantize_nncf`: of ONNX models)"
    ),
]
LEAST_SQNR_DB = 20.0
# How often a model is quantized anew, without the layers that are ruined. One round nearly always does.
ROUNDS = 3

_SAMPLES = 8
# Layers named in a message.
_NAMED = 5
_VECTORS = ("Gemm", "MatMul")
# Names in the graph that both models share.
_PREFIX, _SPATIAL, _CHANNELS = "optcli_float/", "optcli_spatial", "optcli_channels"


def ruined_layers(
    floats: ModelProto,
    quantized: ModelProto,
    feeds: Iterable[dict[str, np.ndarray]],
    least_db: float,
    threads: int,
) -> dict[str, float]:
    """The SQNR in dB of those layers that keep less than `least_db`, by name.

    Both models hold their weights and are of one opset; a layer has the same name in both. The signal
    is how far each channel of a layer's output varies, over places and batches; of a linear layer,
    which may have no places, how far its whole output does. Of `feeds`, 8 batches are used. Raises
    `StepError`.
    """
    import numpy as np

    model, layers = _side_by_side(floats, quantized)
    if not layers:
        return {}
    sums: list[np.ndarray] = []
    batches = 0
    with raised_as(StepError, "ONNX Runtime cannot compare the quantized layers with the model's"):
        session = onnx_format.session(model.SerializeToString(), threads)
        for feed in islice(feeds, _SAMPLES):
            means = [each.astype(np.float64) for each in session.run(None, feed)]
            sums = [a + b for a, b in zip(sums, means, strict=True)] if sums else means
            batches += 1
    ruined = {}
    for index, (name, by_place) in enumerate(layers.items()):
        noise, mean, power = (each / batches for each in sums[3 * index : 3 * index + 3])
        decibels = _sqnr(noise, mean if by_place else mean.mean(), power)
        if decibels is not None and decibels < least_db:
            ruined[name] = decibels
    return ruined


def _sqnr(noise: Any, mean: Any, power: Any) -> float | None:
    """The SQNR in dB by a layer's means of each channel; None of what never varies or has no error."""
    varies, rounds = float((power - mean**2).sum()), float(noise.sum())
    # What never varies is a constant, or one number of one sample.
    return round(10 * log10(varies / rounds), 1) if varies > 0 and rounds > 0 else None


def require_layers(kinds: Collection[str], ruined: Mapping[str, float], least_db: float | None) -> None:
    """Raise `StepError` where no layer is left among the quantized operators because all are ruined.

    `kinds` are the types of the quantized operators.
    """
    if not ruined or PRODUCTS.intersection(kinds):
        return
    worst = sorted(ruined, key=lambda name: ruined[name])
    named = ", ".join(f"{name} ({ruined[name]:g} dB)" for name in worst[:_NAMED])
    more = f" and {len(worst) - _NAMED} more" if len(worst) > _NAMED else ""
    raise StepError(
        f"no layer is left to quantize: integers would leave each one less than {least_db:g} dB:"
        f" {named}{more}",
        hint="calibrate with samples like those that the model will get; or quantize these layers all"
        " the same with a lower `least_layer_sqnr`, or null",
    )


def _side_by_side(floats: ModelProto, quantized: ModelProto) -> tuple[ModelProto, dict[str, bool]]:
    """One model of both, and the names of the layers that it looks at: with or without places.

    Of each layer it gives three means by channel: of its squared error, of its output and of that
    squared.
    """
    import numpy as np
    import onnx
    from onnx import compose, helper, numpy_helper

    both = onnx.ModelProto()
    both.CopyFrom(quantized)
    clean = compose.add_prefix(floats, _PREFIX, rename_inputs=False, rename_outputs=True)
    graph = both.graph
    products = {node.name: node.output[0] for node in floats.graph.node if node.op_type in PRODUCTS}
    right = {
        node.output[0]: f"{_PREFIX}{products[node.name]}"
        for node in graph.node
        if node.name in products
    }
    dequantized = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    layers = [
        node
        for node in graph.node
        if node.output[0] in right and dequantized.intersection(node.input[:2])
    ]
    for node in graph.node:
        node.input[:] = [right.get(name, name) for name in node.input]
    nodes = list(graph.node)
    del graph.node[:], graph.output[:]
    graph.node.extend([*clean.graph.node, *nodes])
    graph.initializer.extend(clean.graph.initializer)
    graph.sparse_initializer.extend(clean.graph.sparse_initializer)
    known = {each.domain for each in both.opset_import}
    both.opset_import.extend(each for each in clean.opset_import if each.domain not in known)
    for name, dims in (_SPATIAL, [0, 0, -1]), (_CHANNELS, [0, 1, -1]):
        graph.initializer.append(numpy_helper.from_array(np.array(dims, np.int64), name))

    def add(kind: str, *reads: str, **attributes: object) -> str:
        name = f"optcli_{len(graph.node)}"
        graph.node.append(helper.make_node(kind, reads, [name], name=name, **attributes))
        return name

    def by_channel(value: str, kind: str) -> str:
        """The value as [channels, 1, all the rest]."""
        if kind in _VECTORS:
            return add("Reshape", add("Transpose", add("Flatten", value, axis=-1)), _CHANNELS)
        rows = add("Transpose", add("Reshape", value, _SPATIAL), perm=[1, 0, 2])
        return add("Reshape", rows, _CHANNELS)

    for layer in layers:
        gives = by_channel(right[layer.output[0]], layer.op_type)
        error = add("Sub", by_channel(layer.output[0], layer.op_type), gives)
        for values in add("Mul", error, error), gives, add("Mul", gives, gives):
            mean = add("GlobalAveragePool", values)
            graph.output.append(helper.make_tensor_value_info(mean, onnx.TensorProto.FLOAT, None))
    return both, {str(layer.name): layer.op_type not in _VECTORS for layer in layers}


def neighbours_of(model: ModelProto, layers: Collection[str]) -> set[str]:
    """Names of the nodes to keep in floating point so that what these layers read is not rounded.

    The layers, what computes their inputs back to the layers or joins before, and whatever else reads
    on the way: a tensor is quantized for all that read it.
    """
    ignored: set[str] = set()
    for node in read(model).graph:
        if node.name in layers:
            ignored.add(str(node.name))
            _add_what_leads_to(node.inputs[0], ignored)
    return ignored


def _add_what_leads_to(value: Value | None, ignored: set[str]) -> None:
    before = maker(value)
    if value is None or before is None:
        return
    ignored.update(str(reader.name) for reader in value.consumers())
    ignored.add(str(before.name))
    if before.op_type not in PRODUCTS and not _joins(before):
        for each in before.inputs:
            if constant(each) is None:
                _add_what_leads_to(each, ignored)


def _joins(node: Node) -> bool:
    """Whether a node reads several values, but for x · sigmoid(x) and the like, made of one alone."""
    origins = {_origin(value) for value in node.inputs if constant(value) is None}
    return len(origins - {None}) > 1


def _origin(value: Value | None) -> Value | None:
    """The value that one is computed from, past operators that read one value alone."""
    while (node := maker(value)) is not None and node.op_type not in PRODUCTS:
        computed = [each for each in node.inputs if each is not None and constant(each) is None]
        if len(computed) != 1:
            return value
        value = computed[0]
    return value


def keep_ruined_in_floats(
    prepared: torch.fx.GraphModule, feeds: Iterable[tuple[torch.Tensor, ...]], least_db: float
) -> dict[str, float]:
    """Take the observers of ruined layers out of a graph (PT2E) whose observers have their ranges.

    Those of what computes their inputs go too, back to the layers or joins before. Such a layer before
    has float weights then, as no kernel of XNNPACK gives floats from integers. Gives what
    `ruined_layers` does, by module. Raises `StepError` where no layer is left.
    """
    from optcli.passes._torch.networks import module_of

    ruined = {node: db for node, db in _errors_in_graph(prepared, feeds).items() if db < least_db}
    for node in ruined:
        _remove_observers(prepared, node, *node.args[:2])
        _free_what_leads_to(prepared, node.args[0])
    prepared.recompile()
    named = {module_of(node) or node.name: db for node, db in ruined.items()}
    if not any(_is_observed_product(prepared, node) for node in prepared.graph.nodes):
        require_layers((), named, least_db)
    return named


def _errors_in_graph(
    prepared: torch.fx.GraphModule, feeds: Iterable[tuple[torch.Tensor, ...]]
) -> dict[torch.fx.Node, float]:
    """The SQNR in dB of each layer whose inputs and weights are observed."""
    import torch

    class SideBySide(torch.fx.Interpreter):  # type: ignore[misc]
        """Runs in floats, and each layer with integers as well."""

        def run_node(self, node: torch.fx.Node) -> Any:
            if _observer(prepared, node):
                return self.env[node.args[0]]
            result = super().run_node(node)
            if _is_observed_product(prepared, node):
                args, kwargs = self.fetch_args_kwargs_from_env(node)
                read = (rounded(each)(value) for each, value in zip(node.args, args[:2], strict=False))
                wrong = node.target(*read, *args[2:], **kwargs) - result
                shape = (0, 1) if "conv" in str(node.target) else (0, 0)
                values = [each.transpose(*shape).double() for each in (wrong**2, result, result**2)]
                if shape == (0, 0):
                    values = [each.reshape(1, -1) for each in values]
                means = [each.flatten(1).mean(1) for each in values]
                sums[node] = [a + b for a, b in zip(sums.get(node, (0, 0, 0)), means, strict=True)]
            return result

    rounded = cache(lambda node: _rounding(_observer(prepared, node)))
    sums: dict[torch.fx.Node, list[torch.Tensor]] = {}
    batches = 0
    for feed in islice(feeds, _SAMPLES):
        SideBySide(prepared).run(*feed)
        batches += 1
    errors = {node: _sqnr(*(each / batches for each in means)) for node, means in sums.items()}
    return {node: db for node, db in errors.items() if db is not None}


def _rounding(observer: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """What values become as the integers of an observer's ranges."""
    import torch

    scale, zero = observer.calculate_qparams()
    ends = observer.quant_min, observer.quant_max
    if scale.numel() == 1:
        one = float(scale), int(zero), *ends
        return lambda value: torch.fake_quantize_per_tensor_affine(value, *one)
    each = scale.float(), zero.int(), observer.ch_axis, *ends
    return lambda value: torch.fake_quantize_per_channel_affine(value, *each)


def _observer(graph: torch.fx.GraphModule, node: Any) -> Any:
    """The observer that a node calls, or None."""
    called = graph.get_submodule(node.target) if getattr(node, "op", "") == "call_module" else None
    return called if hasattr(called, "calculate_qparams") else None


def _is_product(node: torch.fx.Node) -> bool:
    packet = getattr(node.target, "overloadpacket", None)
    return getattr(packet, "__name__", "") in ("conv1d", "conv2d", "conv3d", "linear", "matmul", "bmm")


def _is_observed_product(graph: torch.fx.GraphModule, node: torch.fx.Node) -> bool:
    return _is_product(node) and all(_observer(graph, each) for each in node.args[:2])


def _remove_observers(graph: torch.fx.GraphModule, node: torch.fx.Node, *of: torch.fx.Node) -> None:
    for each in of:
        if _observer(graph, each):
            node.replace_input_with(each, each.args[0])


def _free_what_leads_to(graph: torch.fx.GraphModule, node: torch.fx.Node) -> None:
    if _is_product(node):
        _remove_observers(graph, node, node.args[1])
    elif len({_graph_origin(each) for each in node.all_input_nodes}) == 1:
        _remove_observers(graph, node, *node.all_input_nodes)
        for each in node.all_input_nodes:
            _free_what_leads_to(graph, each)


def _graph_origin(node: torch.fx.Node) -> torch.fx.Node:
    """The node that one is computed from, past operators that read one value alone."""
    while not _is_product(node) and len(node.all_input_nodes) == 1:
        node = node.all_input_nodes[0]
    return node
