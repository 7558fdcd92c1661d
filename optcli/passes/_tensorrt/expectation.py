"""What precision the work of a network is done in, read off its ONNX graph before an engine exists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcli.formats import onnx as onnx_format
from optcli.passes._quantization.quantized_graph import PRODUCTS, QuantizedGraph

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

_TOLD = 3
_UNTOUCHED = "not quantized"

_PLURALS = {"Conv": "convolutions", "ConvTranspose": "transposed convolutions"}


@dataclass(frozen=True)
class Work:
    """One convolution or matrix product: what it is computed in, and why in nothing lower."""

    node: str
    operator: str
    precision: str
    reason: str = ""


def work(model: ModelProto, left_out: Collection[str] = ()) -> list[Work]:
    """The convolutions and matrix products of a model, in order, each with its precision.

    `int8` and `fp8` where data and weights come from DequantizeLinear, else the type of its inputs.
    `left_out` names nodes that a quantize pass was told not to touch.
    """
    graph = QuantizedGraph(model)
    types = _types(model)
    found = []
    for node in graph.nodes:
        if node.op_type in PRODUCTS:
            floats = next((types[name] for name in node.input if name in types), "fp32")
            precision, reason = _quantized(graph, node)
            if reason == _UNTOUCHED and node.name in left_out:
                reason = "left out of quantization"
            found.append(Work(node.name or node.output[0], node.op_type, precision or floats, reason))
    return found


def expectation(model: ModelProto, precision: str, left_out: Collection[str] = ()) -> str:
    """One sentence: how many convolutions and matrix products compute in the precision; why no more.

    `precision` is what was asked for: `int8`, `fp16` ...; `tf32` runs where tensors are fp32.
    """
    all_work = work(model, left_out)
    wanted = "fp32" if precision == "tf32" else precision
    done = [each for each in all_work if each.precision == wanted]
    rest = [each for each in all_work if each.precision != wanted]
    if not all_work:
        return "the network has no convolutions and no matrix products"
    told = f"{len(done)} of {len(all_work)} {_called(all_work)} compute in {precision.upper()}"
    if not rest:
        return told
    reasons = Counter(each.reason or f"{each.precision} inputs" for each in rest)
    parts = []
    for reason, count in reasons.most_common():
        names = [each.node for each in rest if (each.reason or f"{each.precision} inputs") == reason]
        more = f" and {count - _TOLD} more" if count > _TOLD else ""
        parts.append(f"{', '.join(names[:_TOLD])}{more} ({reason})")
    others = ", ".join(f"{n} in {kind.upper()}" for kind, n in _precisions(rest).items())
    return f"{told}, {others}: {'; '.join(parts)}"


def counts(model: ModelProto) -> dict[str, int]:
    """How many convolutions and matrix products compute in each precision."""
    return dict(_precisions(work(model)))


def _precisions(found: list[Work]) -> Counter[str]:
    return Counter(each.precision for each in found)


def _called(found: list[Work]) -> str:
    kinds = {each.operator for each in found}
    if kinds <= set(_PLURALS):
        return "convolutions"
    return "matrix products" if not kinds & set(_PLURALS) else "convolutions and matrix products"


def _quantized(graph: QuantizedGraph, node: NodeProto) -> tuple[str, str]:
    """The quantized precision of a product, or an empty one and the reason."""
    from onnx import TensorProto

    backs = [graph.dequantized(name) for name in node.input[:2]]
    if all(back is not None for back in backs):
        kinds = {graph.integers(back) for back in backs if back is not None}
        names = {TensorProto.INT8: "int8", TensorProto.UINT8: "int8", TensorProto.FLOAT8E4M3FN: "fp8"}
        found = {names.get(kind, "") for kind in kinds}
        if len(found) == 1 and "" not in found:
            return found.pop(), ""
        return "", "its inputs are quantized to two types"
    if all(back is None for back in backs):
        weights = _reaches_constant(graph, node.input[1]) or _reaches_constant(graph, node.input[0])
        return "", _UNTOUCHED if weights else "a product of two activations, not quantized"
    return "", "its weights are not quantized" if backs[1] is None else "its input is not quantized"


def _reaches_constant(graph: QuantizedGraph, name: str) -> bool:
    while name not in graph.constants:
        node = graph.made_by.get(name)
        if node is None or node.op_type not in ("Transpose", "Reshape", "Cast", "Identity"):
            return False
        name = node.input[0]
    return True


def _types(model: ModelProto) -> dict[str, str]:
    """Names of float tensors to their types: inputs, weights and, where that is known, the rest."""
    import onnx

    if model.ByteSize() < onnx_format.ONE_FILE_BYTES:
        with suppress(Exception):  # what is wrong with it the parser will say
            model = onnx.shape_inference.infer_shapes(model)
    return dict(_named_types(model))


def _named_types(model: ModelProto) -> Iterator[tuple[str, str]]:
    from onnx import TensorProto

    short = {TensorProto.FLOAT: "fp32", TensorProto.FLOAT16: "fp16", TensorProto.BFLOAT16: "bf16"}
    short[TensorProto.DOUBLE] = "fp64"
    for graph in onnx_format.graphs(model.graph):
        for value in (*graph.input, *graph.value_info, *graph.output):
            kind = value.type.tensor_type.elem_type
            if kind in short:
                yield value.name, short[kind]
        for tensor in graph.initializer:
            if tensor.data_type in short:
                yield tensor.name, short[tensor.data_type]
