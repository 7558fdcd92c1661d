"""One precision intent for every TensorRT: builder flags where it has them, else in the ONNX model.

TensorRT 8 types a network weakly: flags say which precisions it may use, layers can be held to a higher
one. From 10 on (strong typing; 11 and TensorRT-RTX know nothing else) tensors have the types of the
ONNX model, so the model is converted first. INT8 and FP8 are where it has pairs of QuantizeLinear and
DequantizeLinear, whose scales then have the type of the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from optcli.errors import StepError
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.graph import constant, maker, read, written
from optcli.models.onnx_graphs.operators import KEEPS_VALUES, PRODUCTS
from optcli.models.onnx_graphs.protobuf import FLOATS, opset_of, precision_of, short_name
from optcli.models.onnx_graphs.quantized import dequantizer, integers
from optcli.passes import Job
from optcli.passes._onnx.half_precision import (
    BF16_OPSET,
    Precision,
    halved,
    not_in,
    out_of_range,
    rounded_too_much,
)
from optcli.passes._onnx.models import chosen, modern
from optcli.passes._tensorrt.constraints import require_constraints
from optcli.passes._tensorrt.grids import declare_kernels, fit_scales_to_half, unfold_weights

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnx_ir import Node, Value

_LISTED = 3

_UNTOUCHED = "not quantized"

_PLURALS = {"Conv": "convolutions", "ConvTranspose": "transposed convolutions"}


@dataclass(frozen=True)
class OperatorPrecision:
    """One convolution or matrix product: what it is computed in, and why in nothing lower."""

    node: str
    operator: str
    precision: str
    reason: str = ""


EnginePrecision = Literal["fp32", "tf32", "fp16", "bf16", "int8", "fp8", "best"]

# The first opset whose QuantizeLinear takes halves, and the last that TensorRT 8.6 documents.
_HALF_SCALES_OPSET = 19

_TENSORRT_8_OPSET = 17

# What the parser takes in FP32 alone, or the builder fails at, as seen with TensorRT-RTX 1.7.
_NOT_IN_HALF = frozenset({"Celu", "MeanVarianceNormalization"})

_NOT_IN_BF16 = _NOT_IN_HALF | {"HardSwish", "Mish", "LpNormalization", "LpPool", "ConvTranspose"}

# Builder flags by intent where typing is weak. INT8 leaves the rest to FP16; TF32 only where asked for.
_FLAGS: dict[str, tuple[str, ...]] = {
    "fp32": (),
    "tf32": ("TF32",),
    "fp16": ("FP16",),
    "int8": ("INT8", "FP16"),
}


@dataclass(frozen=True)
class Keep:
    """Nodes that stay in FP32: by name, operator type, or regular expression over the whole name."""

    names: Collection[str] = ()
    types: Collection[str] = ()
    patterns: Collection[str] = ()


@dataclass(frozen=True)
class PreparedNetwork:
    """A model for one TensorRT, and settings of its builder.

    `flags` are builder flags by name, to be set or cleared; `kept` names the nodes whose layers must be
    held to FP32 (empty under strong typing, where the model says so itself). `precision` is what the
    engine computes in, `facts` what was done and what is to be expected.
    """

    path: Path
    flags: dict[str, bool]
    kept: tuple[str, ...]
    precision: str
    facts: dict[str, Any] = field(default_factory=dict)


def prepare(
    source: Path,
    out: Path,
    *,
    precision: EnginePrecision,
    keep: Keep,
    strongly_typed: bool,
    product: str,
    job: Job,
    left_out: Collection[str] = (),
) -> PreparedNetwork:
    """Write the ONNX model in the folder `source` to the empty folder `out`, as this TensorRT wants it.

    `product` is its name and version, for messages. INT8 and FP8 leave the rest to FP16; `best` is the
    lowest that the model has pairs for, else FP16. `left_out` names nodes that were not to be
    quantized. Raises `StepError` where model and intent do not fit, with the node that is in the way.
    """
    outline = onnx_format.outline(source)
    stored = precision_of(outline)
    intent = _intent(precision, stored, product)
    if not strongly_typed and intent in ("bf16", "fp8"):
        raise StepError(
            f"{product} has no {intent}, wanted TensorRT 10 or newer", hint="set `precision: fp16`"
        )
    model = onnx_format.open(source)
    quantized = intent in ("int8", "fp8")
    if quantized:
        require_constraints(read(model))
    if strongly_typed and intent not in ("fp32", "tf32") and stored not in ("fp16", "bf16"):
        model, in_fp32, facts = _converted(model, intent, keep, job)
    else:
        model = modern(model, 7, job, "older ones cannot be read")
        in_fp32, facts = _layers_in_fp32(model, keep), {}
    if not strongly_typed:
        if intent in ("fp16", "int8") and stored != "fp16":
            in_fp32 |= out_of_range(model, job, facts)
        model = _for_weak_typing(model, product, job)
    onnx_format.save(model, out)
    facts |= {"precision_asked_for": precision, "kept_in_fp32": sorted(in_fp32)}
    if strongly_typed or quantized:  # else TensorRT chooses among what the flags allow
        facts |= {"expectation": expectation(model, intent, left_out), "precisions": counts(model)}
    return PreparedNetwork(
        out / onnx_format.FILE,
        _flags(intent, precision, strongly_typed, bool(in_fp32)),
        () if strongly_typed else tuple(sorted(in_fp32)),
        intent,
        facts,
    )


def _intent(precision: EnginePrecision, stored: str, product: str) -> EnginePrecision:
    """The intent with `best` resolved; `stored` is the model's own precision.

    Raises `StepError` where the two contradict each other.
    """
    if stored not in ("fp32", "fp16", "bf16", "int8", "fp8"):
        raise StepError(
            f"the model is {stored}, which {product} does not take",
            hint="build from the floating-point model that it was made from",
        )
    if precision == "best":
        return "fp16" if stored == "fp32" else stored  # type: ignore[return-value]
    if precision in ("int8", "fp8") and stored != precision:
        other = f"is quantized to {stored}" if stored in ("int8", "fp8") else "is not quantized"
        eight = ", precision: fp8" if precision == "fp8" else ""
        either = "" if eight else "quantize_nncf or "
        raise StepError(
            f"{precision} was asked for and the model {other}: {product} takes its integers from "
            "QuantizeLinear and DequantizeLinear in the model",
            hint=f"put {either}quantize_onnxruntime with `target: tensorrt{eight}` before this pass",
        )
    if precision not in ("int8", "fp8") and stored in ("int8", "fp8"):
        raise StepError(
            f"{precision} was asked for and the model is quantized to {stored}",
            hint=f"set `precision: {stored}`, or take the pass out that quantizes",
        )
    if stored in ("fp16", "bf16") and precision != stored:
        raise StepError(
            f"{precision} was asked for and the model is {stored}",
            hint="take convert_precision out: this pass converts by itself",
        )
    return precision


def _converted(
    model: ModelProto, intent: EnginePrecision, keep: Keep, job: Job
) -> tuple[ModelProto, set[str], dict[str, Any]]:
    """The model with its types as the engine's, names of nodes left in FP32, and facts."""
    quantized = intent in ("int8", "fp8")
    half: Precision = "bf16" if intent == "bf16" else "fp16"
    opset, why = (_HALF_SCALES_OPSET, "older ones know no scales in fp16") if quantized else (7, "")
    if half == "bf16":
        opset, why = BF16_OPSET, "older ones know no bfloat16"
    model = modern(model, opset, job, why or "older ones cannot be read")
    facts: dict[str, Any] = {}
    in_fp32 = _layers_in_fp32(model, keep)
    if half == "fp16":
        in_fp32 |= out_of_range(model, job, facts)
    if quantized:
        graph = read(model)
        fit_scales_to_half(graph)
        model = written(graph)
    in_fp32 |= not_in(half, model) | rounded_too_much(half, model)
    refused = _NOT_IN_BF16 if half == "bf16" else _NOT_IN_HALF
    in_fp32 |= {node.name for node in model.graph.node if node.op_type in refused}
    job.progress(None, f"converting to {half}")
    return halved(model, half, in_fp32, keep_io=True), in_fp32, facts


def _layers_in_fp32(model: ModelProto, keep: Keep) -> set[str]:
    """Names of the nodes to keep. Raises `StepError` for one that is quantized: it cannot be both."""
    nodes = list(read(model).graph)
    names = chosen(nodes, keep.names, keep.types, tuple(keep.patterns), "ignored_")
    for node in nodes:
        if node.name in names and node.op_type in PRODUCTS and dequantizer(node.inputs[0]) is not None:
            raise StepError(
                f"{node.op_type} {node.name!r} is to stay in fp32, and its input is quantized",
                hint="name it under ignored_names of the pass that quantizes",
            )
    return names


def _for_weak_typing(model: ModelProto, product: str, job: Job) -> ModelProto:
    """What TensorRT 8's parser wants: weights in floats before QuantizeLinear, an opset it knows."""
    graph = read(model)
    if declare_kernels(graph) + unfold_weights(graph):
        model = written(graph)
    opset = opset_of(model)
    if opset > _TENSORRT_8_OPSET:
        job.warn(
            f"the model has opset {opset}, {product} knows those up to {_TENSORRT_8_OPSET}: if it does "
            f"not take a node, export with `opset: {_TENSORRT_8_OPSET}`"
        )
    return model


def _flags(
    intent: EnginePrecision, precision: EnginePrecision, strongly_typed: bool, keeps_layers: bool
) -> dict[str, bool]:
    flags = {"TF32": "tf32" in (intent, precision) or precision == "best"}
    if not strongly_typed:
        flags |= dict.fromkeys(_FLAGS[intent], True)
        if keeps_layers:
            flags["OBEY_PRECISION_CONSTRAINTS"] = True
    return flags


def work(model: ModelProto, left_out: Collection[str] = ()) -> list[OperatorPrecision]:
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


def _work(node: Node, left_out: Collection[str]) -> OperatorPrecision:
    types = [short_name(value.dtype or 0) for value in node.inputs if value is not None]
    floats = next((name for name in types if name in FLOATS), "fp32")
    precision, reason = _quantized(node)
    if reason == _UNTOUCHED and node.name in left_out:
        reason = "left out of quantization"
    return OperatorPrecision(
        str(node.name or node.outputs[0].name), node.op_type, precision or floats, reason
    )


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


def _precisions(products: list[OperatorPrecision]) -> Counter[str]:
    return Counter(each.precision for each in products)


def _called(products: list[OperatorPrecision]) -> str:
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
