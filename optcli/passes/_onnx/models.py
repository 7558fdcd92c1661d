"""What the passes on ONNX models share: files of any age brought up to date, inputs, counts."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import shutil
import traceback
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from optcli.errors import StepError, did_you_mean, raised_as
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats.onnx import DATA, FILE
from optcli.models.onnx_graphs.graph import maker
from optcli.models.onnx_graphs.operators import PAIR, PRODUCTS, is_static
from optcli.models.onnx_graphs.protobuf import (
    graphs,
    input_names,
    input_shapes,
    opset_of,
    precision_of,
    without_weights,
)
from optcli.passes import Job
from optcli.passes._onnx.upgrade import upgraded
from optcli.passes._quantization.calibration import ModelInput

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto, TypeProto
    from onnx_ir import Model, Node, Value

# ONNX Runtime's names of types, as onnx numbers them.
_KINDS = {
    "tensor(float)": 1,
    "tensor(uint8)": 2,
    "tensor(int8)": 3,
    "tensor(int32)": 6,
    "tensor(int64)": 7,
    "tensor(bool)": 9,
    "tensor(float16)": 10,
    "tensor(double)": 11,
}

# Per-channel scales of weights need DequantizeLinear's `axis`, which came with this opset.
PER_CHANNEL_OPSET = 13


def modern(
    model: ModelProto, least_opset: int, job: Job, why: str, *, full_precision: bool = False
) -> ModelProto:
    """The model at an opset of at least `least_opset`, with what old files lack.

    Weights are initializers and not listed as inputs (runtimes fold and fuse only what cannot be
    overridden), functions of the file's own are written out and every node has a name of its own. With
    `full_precision` fp16 inside becomes fp32. Raises `StepError` where the upgrade fails or changes
    the model.
    """
    model = tidied(model)
    if full_precision and precision_of(model) == "fp16":
        model = widened(model)
        job.warn("the model is fp16: its weights were widened to fp32, inputs and outputs stay fp16")
    opset = opset_of(model)
    if opset < least_opset:
        model = upgraded(model, opset, least_opset, job)
        job.warn(f"the model was upgraded from opset {opset} to {least_opset}: {why}")
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
        for name, shape in input_shapes(model).items()
    ]


def count_quantized(model: Model) -> Counter[str]:
    """How many operators of each type compute on integers.

    An operator counts where data and weights come from DequantizeLinear and, unless it is a product,
    its result goes into QuantizeLinear.
    """
    counts: Counter[str] = Counter()
    for node in model.graph:
        if is_static(node.op_type):
            counts[node.op_type.removeprefix("QLinear").removeprefix("Q")] += 1
        elif node.op_type in PRODUCTS:
            counts[node.op_type] += all(map(_is_dequantized, node.inputs[:2]))
        elif node.op_type not in PAIR:
            data = [value for value in node.inputs if value and not value.is_initializer()]
            reads = bool(data) and all(map(_is_dequantized, data))
            counts[node.op_type] += reads and all(map(_is_quantized, node.outputs))
    return +counts


def _is_dequantized(value: Value | None) -> bool:
    return maker(value, "DequantizeLinear") is not None


def _is_quantized(value: Value) -> bool:
    return any(reader.op_type == "QuantizeLinear" for reader in value.consumers())


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
    nodes: Iterable[NodeProto | Node],
    names: Collection[str],
    types: Collection[str],
    patterns: Sequence[str],
    option: str,
) -> set[str]:
    """Names of the nodes in `names`, of a type in `types`, or with a name that wholly fits a pattern.

    `option` is what stands before `names`, `types` and `patterns` in the recipe. Raises `StepError` for
    one that no node fits: a misspelt name must not go unnoticed.
    """
    listed = [(str(node.name), str(node.op_type)) for node in nodes]
    matched: dict[tuple[str, str], set[str]] = {}
    for name in names:
        matched["names", name] = {name for each, _ in listed if each == name}
    for kind in types:
        matched["types", kind] = {name for name, each in listed if each == kind}
    for pattern in patterns:
        matched["patterns", pattern] = {name for name, _ in listed if re.fullmatch(pattern, name)}
    for (by, value), fitting in matched.items():
        if not fitting:
            candidates = sorted({kind if by == "types" else name for name, kind in listed})
            raise StepError(
                f"`{option}{by}: {value}` fits no node of the model",
                hint=did_you_mean(value, candidates, lists="Netron"),
            )
    return set().union(*matched.values())


def prepared(model: ModelProto, folder: Path, job: Job) -> ModelProto:
    """The model with shapes inferred and batch normalization folded, saved in the new folder.

    The result is an outline: the weights lie beside the file, and in memory `model` loses its own.
    What reads and writes graphs again and again, as ONNX Runtime's quantizer does, then copies none of
    them. ONNX Runtime's own `quant_pre_process` does the same with two more copies of all weights.
    """
    import onnx
    from onnxruntime.quantization.quant_utils import add_pre_process_metadata

    job.progress(None, "preparing the graph")
    before, optimized = folder.with_name("source"), folder / "optimized.onnx"
    for each in (before, folder):
        each.mkdir()
    onnx_format.save(model, before, apart=True)
    hint = "run optimize_onnx before, or look into the log"
    with raised_as(StepError, "ONNX Runtime cannot prepare the graph for quantization", hint=hint):
        try:
            onnx_format.write_optimized(before, optimized)
        except Exception:  # it is quantized as it is
            traceback.print_exc()
            for source, target in ((FILE, optimized.name), (DATA, DATA)):
                if (before / source).exists():
                    shutil.copyfile(before / source, folder / target)
        # Symbolic shape inference fails on vision transformers, with an assertion that says nothing.
        onnx.shape_inference.infer_shapes_path(os.fspath(optimized), os.fspath(folder / FILE))
        optimized.unlink()
        outline = onnx_format.outline(folder)
        add_pre_process_metadata(outline)
        onnx.save(outline, os.fspath(folder / FILE))
        return outline


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence ONNX Runtime's quantizers, which print, and recommend steps that were taken already."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def widened(model: ModelProto) -> ModelProto:
    """The model with fp32 wherever it had fp16, but for its inputs and outputs: these are cast.

    Every number stays what it is; sums are rounded less. The model is changed in place.
    """
    from onnx import TensorProto

    for graph in graphs(model.graph):
        for tensor in graph.initializer:
            _widen(tensor)
        # Entries of fp16 tensors are dropped: whoever needs their types infers them again.
        others = [value for value in graph.value_info if not _is_half(value.type)]
        del graph.value_info[:]
        graph.value_info.extend(others)
        for node in graph.node:
            _widen_attributes(node)
        if graph is not model.graph:
            for value in (*graph.input, *graph.output):
                if _is_half(value.type):
                    value.type.tensor_type.elem_type = TensorProto.FLOAT
    _cast_ends(model.graph)
    return model


def _widen_attributes(node: NodeProto) -> None:
    from onnx import TensorProto

    for attribute in node.attribute:
        # Cast says `to`; what makes numbers (RandomNormal, EyeLike) says `dtype`.
        if attribute.name in ("to", "dtype") and attribute.i == TensorProto.FLOAT16:
            attribute.i = TensorProto.FLOAT
        if attribute.HasField("t"):
            _widen(attribute.t)
        for tensor in attribute.tensors:
            _widen(tensor)


def _widen(tensor: TensorProto) -> None:
    import numpy as np
    from onnx import TensorProto, numpy_helper

    if tensor.data_type == TensorProto.FLOAT16:
        values = numpy_helper.to_array(tensor).astype(np.float32)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))


def _cast_ends(graph: GraphProto) -> None:
    """Cast fp16 inputs to fp32, and results to the fp16 outputs that the model promises."""
    from onnx import TensorProto

    weights = {tensor.name for tensor in graph.initializer}
    inputs = [v.name for v in graph.input if _is_half(v.type) and v.name not in weights]
    outputs = [v.name for v in graph.output if _is_half(v.type) and v.name not in inputs]
    inside = {name: f"{name}_fp32" for name in (*inputs, *outputs)}
    for node in (node for inner in graphs(graph) for node in inner.node):
        node.input[:] = [inside.get(name, name) for name in node.input]
        node.output[:] = [inside.get(name, name) for name in node.output]
    nodes = list(graph.node)
    before = [_cast(name, inside[name], TensorProto.FLOAT) for name in inputs]
    after = [_cast(inside[name], name, TensorProto.FLOAT16) for name in outputs]
    del graph.node[:]
    graph.node.extend([*before, *nodes, *after])


def _cast(source: str, result: str, kind: int) -> NodeProto:
    from onnx import helper

    return helper.make_node("Cast", [source], [result], f"{result}_cast", to=kind)


def _is_half(kind: TypeProto) -> bool:
    from onnx import TensorProto

    return bool(kind.tensor_type.elem_type == TensorProto.FLOAT16)


def tidied(model: ModelProto) -> ModelProto:
    """The model with its weights as initializers, its functions written out, types and names noted.

    It computes the same. The model is changed in place where that can be.
    """
    from onnx import inliner

    _drop_weight_inputs(model)
    if model.functions:
        model = inliner.inline_local_functions(model)
    _lift_constants(model)
    _note_types(model)
    name_nodes(model)
    return model


def name_nodes(model: ModelProto) -> None:
    """Nodes are kept or taken by name: those without one get their operator and position."""
    seen: set[str] = set()
    for index, node in enumerate(model.graph.node):
        if not node.name or node.name in seen:
            base = node.name or node.op_type
            node.name = f"{base}_{index}"
        seen.add(node.name)


def _drop_weight_inputs(model: ModelProto) -> None:
    """Weights that are inputs too could be overridden: runtimes neither fold nor fuse them."""
    # Weights that are not inputs came with version 4 of the file format.
    model.ir_version = max(model.ir_version, 4)
    names = input_names(model)
    inputs = [value for value in model.graph.input if value.name in names]
    if len(inputs) < len(model.graph.input):
        del model.graph.input[:]
        model.graph.input.extend(inputs)


def _lift_constants(model: ModelProto) -> None:
    """Some converters write weights as Constant nodes, where quantizers do not look for them."""
    graph = model.graph
    outputs = {value.name for value in graph.output}
    nodes = []
    for node in graph.node:
        tensor = node.attribute[0].t if _is_tensor_constant(node) else None
        if tensor is None or node.output[0] in outputs:
            nodes.append(node)
            continue
        lifted = graph.initializer.add()
        lifted.CopyFrom(tensor)
        lifted.name = node.output[0]
    if len(nodes) < len(graph.node):
        del graph.node[:]
        graph.node.extend(nodes)


def _is_tensor_constant(node: NodeProto) -> bool:
    return node.op_type == "Constant" and [each.name for each in node.attribute] == ["value"]


def _note_types(model: ModelProto) -> None:
    """Note types and shapes that onnx does not infer: behind operators of other domains, or new ones.

    ONNX Runtime is asked for these, as if they were outputs. What it cannot load is left as it is.
    """
    import onnx

    if onnx_format.is_large(model):
        return
    untyped = [value for value in model.graph.value_info if not value.type.tensor_type.elem_type]
    for value in untyped:
        model.graph.value_info.remove(value)
    graph = onnx.shape_inference.infer_shapes(without_weights(model)).graph
    typed = {value.name for value in (*graph.value_info, *graph.output)}
    missing = {name for node in graph.node for name in node.output if name} - typed
    if not missing:
        return
    probe = onnx.ModelProto()
    probe.CopyFrom(model)
    probe.graph.output.extend(onnx.ValueInfoProto(name=name) for name in sorted(missing))
    try:
        session = onnx_format.session(probe.SerializeToString(), optimized=False)
    except Exception:  # a model that it cannot run: the pass will say so, or needs no types
        return
    for value in session.get_outputs():
        if value.name in missing and value.type in _KINDS:
            # It gives no shape where it knows none.
            note = onnx.helper.make_tensor_value_info(
                value.name, _KINDS[value.type], value.shape or None
            )
            model.graph.value_info.append(note)
