"""What the passes on ONNX models share: files of any age brought up to date, inputs, counts."""

from __future__ import annotations

import contextlib
import io
import logging
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from pydantic import AfterValidator

from optcli.errors import StepError, did_you_mean, first_line
from optcli.formats import onnx as onnx_format
from optcli.passes import Job
from optcli.passes._onnx.full_precision import widened
from optcli.passes._onnx.tidying import name_nodes, tidied
from optcli.passes._onnx.upgrade import upgraded
from optcli.passes._quantization.calibration import ModelInput

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

# Operators that multiply by weights: on integers only where both come as integers.
_PRODUCTS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})

# Per-channel scales of weights need DequantizeLinear's `axis`, which came with this opset.
PER_CHANNEL_OPSET = 13


def _expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}") from error
    return pattern


# An option: regular expressions over whole names of nodes.
Patterns = tuple[Annotated[str, AfterValidator(_expression)], ...]


def modern(
    model: ModelProto, wanted: int, job: Job, why: str, *, full_precision: bool = False
) -> ModelProto:
    """The model at an opset of at least `wanted`, and what old files lack.

    Weights are initializers and not listed as inputs (runtimes fold and fuse only what cannot be
    overridden), functions of the file's own are written out and every node has a name of its own. With
    `full_precision` fp16 inside becomes fp32. Raises `StepError` where the upgrade fails or changes
    the model.
    """
    model = tidied(model)
    if full_precision and onnx_format.precision(model) == "fp16":
        model = widened(model)
        job.warn("the model is fp16: its weights were widened to fp32, inputs and outputs stay fp16")
    found = onnx_format.opset(model)
    if found < wanted:
        model = upgraded(model, found, wanted, job)
        job.warn(f"the model was upgraded from opset {found} to {wanted}: {why}")
    name_nodes(model)
    return model


def model_inputs(model: ModelProto) -> list[ModelInput]:
    """The inputs with their types and shapes, in order."""
    import onnx

    types = {value.name: value.type.tensor_type.elem_type for value in model.graph.input}
    return [
        ModelInput(
            name,
            str(onnx.helper.tensor_dtype_to_np_dtype(types[name])),
            tuple(size if isinstance(size, int) else None for size in shape),
        )
        for name, shape in onnx_format.input_shapes(model).items()
    ]


def count_quantized(model: ModelProto) -> Counter[str]:
    """How many operators of each type compute on integers.

    That is where data and weights come from DequantizeLinear and, but for products, the result goes
    into QuantizeLinear.
    """
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    integers = {node.output[0] for node in graph.node if node.op_type == "DequantizeLinear"}
    quantized = {node.input[0] for node in graph.node if node.op_type == "QuantizeLinear"}
    counts: Counter[str] = Counter()
    for node in graph.node:
        if node.op_type.startswith("QLinear"):
            counts[node.op_type.removeprefix("QLinear")] += 1
        elif node.op_type in _PRODUCTS:
            counts[node.op_type] += integers.issuperset(node.input[:2])
        elif node.op_type not in ("QuantizeLinear", "DequantizeLinear") and node.input:
            data = [name for name in node.input if name and name not in weights]
            reads = bool(data) and integers.issuperset(data)
            counts[node.op_type] += reads and quantized.issuperset(node.output)
    return +counts


def already_quantized() -> StepError:
    """The refusal of a model that holds integers already."""
    return StepError(
        "the model is quantized already", hint="quantize the floating-point model it was made from"
    )


def require_floats(precision: str) -> None:
    """Raise `StepError` for a model that cannot be quantized as it is; fp16 can, by `modern`."""
    if precision in ("int8", "fp8"):
        raise already_quantized()
    if precision not in ("fp32", "fp16"):
        raise StepError(
            f"the model is {precision}, wanted fp32 or fp16",
            hint="quantize the floating-point model that it was made from",
        )


def chosen(
    nodes: Iterable[NodeProto],
    names: Collection[str],
    types: Collection[str],
    patterns: Sequence[str],
    option: str,
) -> set[str]:
    """Names of the nodes that are named, of one of the types, or match a regular expression as a whole.

    `option` is what stands before `names`, `types` and `patterns` in the recipe. Raises `StepError` for
    one that no node fits: a misspelt name must not go unnoticed.
    """
    listed = list(nodes)
    matched: dict[tuple[str, str], set[str]] = {}
    for name in names:
        matched["names", name] = {node.name for node in listed if node.name == name}
    for kind in types:
        matched["types", kind] = {node.name for node in listed if node.op_type == kind}
    for pattern in patterns:
        expression = re.compile(pattern)
        matched["patterns", pattern] = {node.name for node in listed if expression.fullmatch(node.name)}
    for (by, value), fitting in matched.items():
        if not fitting:
            kinds = sorted({node.op_type for node in listed})
            known = kinds if by == "types" else sorted(node.name for node in listed)
            raise StepError(
                f"`{option}{by}: {value}` fits no node of the model",
                hint=did_you_mean(value, known)[:300],
            )
    return set().union(*matched.values())


def prepared(model: ModelProto, folder: Path, job: Job) -> ModelProto:
    """The model with shapes inferred and batch normalization folded; also saved in the new folder."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    job.progress(None, "preparing the graph")
    before = folder.with_name("source")
    for each in (before, folder):
        each.mkdir()
    onnx_format.save(model, before)
    large = (before / onnx_format.DATA).exists()
    try:
        # Symbolic shape inference fails on vision transformers, with an assertion that says nothing.
        quant_pre_process(
            str(before / onnx_format.FILE),
            str(folder / onnx_format.FILE),
            skip_symbolic_shape=True,
            save_as_external_data=large,
            all_tensors_to_one_file=True,
            external_data_location=onnx_format.DATA,
        )
        return onnx_format.open(folder)
    except Exception as error:
        raise StepError(
            f"ONNX Runtime cannot prepare the graph for quantization: {first_line(error)}",
            hint="run optimize_onnx before, or look into the log",
        ) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep ONNX Runtime's quantizers from printing, and from recommending what has been done."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)
