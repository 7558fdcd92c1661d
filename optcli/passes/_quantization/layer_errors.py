"""Layers that quantization ruins, and what must stay in floating point so that it does not.

A few large values of one channel make the step of a tensor's one scale as large as all that its other
channels hold. A depthwise convolution, which reads each channel by itself, then gives noise: in
YOLOX-nano one such layer of 113 costs 13 of 32 points of mAP. Each layer is looked at by itself: in one
graph, layers of the quantized model read what the layers before them give in the float model, so that
no error adds up on the way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from optcli.errors import StepError, raised_as
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.graph import constant, maker, read
from optcli.models.onnx_graphs.operators import PRODUCTS

if TYPE_CHECKING:
    import numpy as np
    from onnx import ModelProto
    from onnx_ir import Node, Value

# An option of the passes that quantize.
LeastSqnr = Annotated[
    float | None,
    Field(
        description="layers stay in floating point, with the activation functions before them, where "
        "integers for what they read leave their output fewer dB than this; null: none does (of ONNX "
        "models)"
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
        mean = mean if by_place else mean.mean()
        varies, rounds = max((power - mean**2).sum(), 0.0), noise.sum()
        if varies > 0 and rounds > 0:  # what never varies is a constant, or one number of one sample
            decibels = float(10 * np.log10(varies / rounds))
            if decibels < least_db:
                ruined[name] = round(decibels, 1)
    return ruined


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
