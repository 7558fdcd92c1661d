"""What precision the work of a network is done in, read off its ONNX graph before an engine exists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from optcli.formats import onnx as onnx_format
from optcli.onnx_graphs.graph import constant, maker, read
from optcli.onnx_graphs.operators import KEEPS_VALUES, PRODUCTS
from optcli.onnx_graphs.precision import FLOATS, short_name
from optcli.onnx_graphs.quantized import dequantizer, integers

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnx_ir import Node, Value

_LISTED = 3
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
    import onnx

    if model.ByteSize() < onnx_format.ONE_FILE_BYTES:
        with suppress(Exception):  # what is wrong with it the parser will say
            model = onnx.shape_inference.infer_shapes(model)
    products = [node for node in read(model).graph.all_nodes() if node.op_type in PRODUCTS]
    return [_work(node, left_out) for node in products]


def _work(node: Node, left_out: Collection[str]) -> Work:
    types = [short_name(value.dtype or 0) for value in node.inputs if value is not None]
    floats = next((name for name in types if name in FLOATS), "fp32")
    precision, reason = _quantized(node)
    if reason == _UNTOUCHED and node.name in left_out:
        reason = "left out of quantization"
    return Work(str(node.name or node.outputs[0].name), node.op_type, precision or floats, reason)


def expectation(model: ModelProto, precision: str, left_out: Collection[str] = ()) -> str:
    """One sentence: how many convolutions and matrix products compute in the precision; why no more.

    `precision` is what was asked for: `int8`, `fp16` ...; `tf32` runs where tensors are fp32.
    """
    all_work = work(model, left_out)
    target = "fp32" if precision == "tf32" else precision
    done = [each for each in all_work if each.precision == target]
    rest = [each for each in all_work if each.precision != target]
    if not all_work:
        return "the network has no convolutions and no matrix products"
    summary = f"{len(done)} of {len(all_work)} {_called(all_work)} compute in {precision.upper()}"
    if not rest:
        return summary
    reasons = Counter(each.reason or f"{each.precision} inputs" for each in rest)
    parts = []
    for reason, count in reasons.most_common():
        names = [each.node for each in rest if (each.reason or f"{each.precision} inputs") == reason]
        more = f" and {count - _LISTED} more" if count > _LISTED else ""
        parts.append(f"{', '.join(names[:_LISTED])}{more} ({reason})")
    others = ", ".join(f"{n} in {kind.upper()}" for kind, n in _precisions(rest).items())
    return f"{summary}, {others}: {'; '.join(parts)}"


def counts(model: ModelProto) -> dict[str, int]:
    """How many convolutions and matrix products compute in each precision."""
    return dict(_precisions(work(model)))


def _precisions(products: list[Work]) -> Counter[str]:
    return Counter(each.precision for each in products)


def _called(products: list[Work]) -> str:
    kinds = {each.operator for each in products}
    if kinds <= set(_PLURALS):
        return "convolutions"
    return "matrix products" if not kinds & set(_PLURALS) else "convolutions and matrix products"


def _quantized(node: Node) -> tuple[str, str]:
    """The quantized precision of a product, or an empty one and the reason."""
    from onnx_ir import DataType

    backs = [dequantizer(value) for value in node.inputs[:2]]
    if all(back is not None for back in backs):
        kinds = {integers(back) for back in backs if back is not None}
        names = {DataType.INT8: "int8", DataType.UINT8: "int8", DataType.FLOAT8E4M3FN: "fp8"}
        precisions = {names.get(kind, "") for kind in kinds}
        if len(precisions) == 1 and "" not in precisions:
            return precisions.pop(), ""
        return "", "its inputs are quantized to two types"
    if all(back is None for back in backs):
        has_weights = any(_comes_from_constant(value) for value in node.inputs[:2])
        return "", _UNTOUCHED if has_weights else "a product of two activations, not quantized"
    return "", "its weights are not quantized" if backs[1] is None else "its input is not quantized"


def _comes_from_constant(value: Value | None) -> bool:
    while (node := maker(value, *KEEPS_VALUES, "Cast")) is not None:
        value = node.inputs[0]
    return constant(value) is not None
