"""ONNX graphs in half precision, by ONNX Runtime's converter, mended where it errs.

`out_of_range`, `not_in` and `rounded_too_much` say which parts of a model half precision cannot hold.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

from optcli.errors import StepError, counted, raised_as
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.graph import constant, drop_notes_of_weights, read
from optcli.models.onnx_graphs.protobuf import graphs, opset_of
from optcli.passes import Job
from optcli.passes._onnx.upgrade import noise
from optcli.passes._quantization import output_tails
from optcli.passes._quantization.calibration import activation_ranges

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, TensorProto

Precision = Literal["fp16", "bf16"]

# The first operator set in which convolutions and pooling take bfloat16.
BF16_OPSET = 22

# The largest number, and the smallest but zero, that fp16 holds.
_FP16_LARGEST = 65504.0
_FP16_SMALLEST = 5.96e-8


def halved(model: ModelProto, precision: Precision, in_fp32: set[str], keep_io: bool) -> ModelProto:
    """The model in half precision, but for the nodes named in `in_fp32` and, on request, its ends.

    ONNX Runtime's converter does it, in fp16; what it leaves wrong is mended, and bf16 made from its
    result. Raises `StepError` where the result is no sound model.
    """
    import onnx
    from onnxruntime.transformers.float16 import (
        DEFAULT_OP_BLOCK_LIST,
        convert_float_to_float16,
    )

    weights = {tensor.name: tensor for graph in graphs(model.graph) for tensor in graph.initializer}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    # The converter trusts value_info: entries of weights that keep their type would mislead it.
    drop_notes_of_weights(copy)
    hint = "keep the operators that it fails on in fp32, with ignored_types"
    with raised_as(StepError, "ONNX Runtime's converter failed", hint=hint), _quiet():
        converted = convert_float_to_float16(
            copy,
            keep_io_types=keep_io,
            op_block_list=DEFAULT_OP_BLOCK_LIST,
            node_block_list=sorted(in_fp32),
            # Shapes of more than 2 GB cannot be inferred in memory.
            disable_shape_infer=model.ByteSize() > onnx_format.ONE_FILE_BYTES,
        )
    if precision == "bf16":
        for graph in graphs(converted.graph):
            _to_bf16(graph, weights)
    _mend(converted)
    _require_sound(converted)
    return converted


def _mend(model: ModelProto) -> None:
    """Mend the converter's result: casts at the end of the graph, duplicate casts, needless casts."""
    from onnxruntime.quantization.onnx_model import ONNXModel

    unique = list({tuple(node.output): node for node in model.graph.node}.values())
    del model.graph.node[:]
    model.graph.node.extend(unique)
    known = {each.name for each in (*model.graph.input, *model.graph.initializer)}
    known |= {name for node in unique for name in node.output}
    inside = [node for node in unique if node.op_type == "Cast" and node.input[0] not in known]
    if inside:
        branched = sorted(
            {node.op_type for node in unique if any(a.HasField("g") for a in node.attribute)}
        )
        raise StepError(
            f"ONNX Runtime's converter cannot convert what stands inside of {' or '.join(branched)}: it"
            f" casts {inside[0].input[0]!r} outside of it",
            hint="take this pass out, or export the model without branches",
        )
    ONNXModel(model).topological_sort()
    _join_fp32(model.graph)


def _join_fp32(graph: GraphProto) -> None:
    """Take out casts to half precision and back: what is kept in fp32 must not pass through it."""
    from onnx import TensorProto

    targets = {
        node.output[0]: next(entry.i for entry in node.attribute if entry.name == "to")
        for node in graph.node
        if node.op_type == "Cast"
    }
    halved = {
        node.output[0]: node.input[0]
        for node in graph.node
        if targets.get(node.output[0]) in (TensorProto.FLOAT16, TensorProto.BFLOAT16)
        and (node.name.startswith("graph_input_cast") or node.name.endswith("_cast_to_fp16_node"))
    }
    back = {
        node.output[0]: halved[node.input[0]]
        for node in graph.node
        if targets.get(node.output[0]) == TensorProto.FLOAT and node.input[0] in halved
    }
    for node in graph.node:
        node.input[:] = [back.get(name, name) for name in node.input]
        if (
            node.output[0] in back
        ):  # the cast before an output of the model is left, and changes nothing
            node.input[0] = back[node.output[0]]
    used = {name for node in graph.node for name in node.input}
    used |= {value.name for value in graph.output}
    nodes = [node for node in graph.node if node.op_type != "Cast" or used.intersection(node.output)]
    del graph.node[:]
    graph.node.extend(nodes)


def _to_bf16(graph: GraphProto, weights: Mapping[str, TensorProto]) -> None:
    """Turn a graph that was converted to fp16 into bf16, its weights from the numbers of before."""
    import ml_dtypes
    import numpy as np
    from onnx import TensorProto, numpy_helper

    half, brain = TensorProto.FLOAT16, TensorProto.BFLOAT16

    def convert(tensor: TensorProto, before: TensorProto) -> None:
        values = numpy_helper.to_array(before).astype(np.float32).astype(ml_dtypes.bfloat16)
        tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))

    for tensor in graph.initializer:
        if tensor.data_type == half:
            convert(tensor, weights.get(tensor.name, tensor))
    for value in (*graph.input, *graph.output, *graph.value_info):
        if value.type.tensor_type.elem_type == half:
            value.type.tensor_type.elem_type = brain
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name in ("to", "dtype") and attribute.i == half:
                attribute.i = brain
            if attribute.HasField("t") and attribute.t.data_type == half:
                convert(attribute.t, attribute.t)


def _require_sound(model: ModelProto) -> None:
    import onnx

    if model.ByteSize() > onnx_format.ONE_FILE_BYTES:
        return
    hint = "keep the operators that it names in fp32, with ignored_types"
    with raised_as(StepError, "the converted model is not sound", hint=hint):
        onnx.checker.check_model(model, full_check=True)


@contextmanager
def _quiet() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def out_of_range(model: ModelProto, job: Job, facts: dict[str, Any]) -> set[str]:
    """Names of nodes that read or compute what fp16 cannot hold; warns of them.

    Activations are judged on random inputs: enough for what the weights do, not for all that real data
    may do.
    """
    import numpy as np
    from onnx_ir import DataType

    large, tiny = {}, 0
    graph = read(model).graph
    neighbours = {
        node.name: [value for value in (*node.inputs, *node.outputs) if value] for node in graph
    }
    for value in dict.fromkeys(value for values in neighbours.values() for value in values):
        tensor = constant(value)
        if tensor is None or tensor.dtype != DataType.FLOAT:
            continue
        sizes = np.abs(tensor.numpy())
        if count := int(((sizes > _FP16_LARGEST) & np.isfinite(sizes)).sum()):
            large[value.name] = count
        tiny += int(((sizes > 0) & (sizes < _FP16_SMALLEST)).sum())
    extremes = _largest_activations(model, job)
    wide = {name for name, largest in extremes.items() if not largest <= _FP16_LARGEST}
    beyond = large.keys() | wide
    in_fp32 = {
        str(name) for name, values in neighbours.items() if beyond & {value.name for value in values}
    }
    if large:
        phrase = "weight is out of fp16's range", "weights are out of fp16's range"
        job.warn(f"{counted(sum(large.values()), *phrase)}: the nodes stay in fp32")
    if wide:
        phrase = "activation leaves fp16's range", "activations leave fp16's range"
        stay = counted(len(in_fp32), "node stays", "nodes stay")
        job.warn(f"{counted(len(wide), *phrase)}: {stay} in fp32")
    finite = [value for value in extremes.values() if math.isfinite(value)]
    facts["weights_out_of_range"] = dict(sorted(large.items()))
    facts["weights_below_range"] = tiny
    facts["largest_activation_on_noise"] = max(finite, default=None)
    return in_fp32


def _largest_activations(model: ModelProto, job: Job) -> dict[str, float]:
    """Largest |value| of each fp32 activation on noise; empty where that cannot be found out."""
    import onnx
    from onnx import TensorProto

    if model.ByteSize() > onnx_format.ONE_FILE_BYTES:
        return {}
    inferred = onnx.shape_inference.infer_shapes(model)
    floats = {
        value.name
        for value in inferred.graph.value_info
        if value.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    floats &= {name for node in model.graph.node for name in node.output}
    try:
        ranges = activation_ranges(model, floats, [noise(job)], "minmax", 100, job.threads)
    except StepError as error:
        job.warn(f"whether activations fit into fp16 is not known: {error.message}")
        return {}
    return {name: max(-low, high) for name, (low, high) in ranges.items()}


def not_in(precision: Precision, model: ModelProto) -> set[str]:
    """Names of nodes whose operator takes fp32 but not the precision, in the model's operator set.

    Those of ONNX Runtime's own domain are tried; of others nothing is known.
    """
    import onnx

    tensor_type = "tensor(bfloat16)" if precision == "bf16" else "tensor(float16)"
    opset = opset_of(model)
    in_fp32: set[str] = set()
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx"):
            in_fp32 |= set() if node.domain == "com.microsoft" else {node.name}
            continue
        schema = onnx.defs.get_schema(node.op_type, opset, "")
        for constraint in schema.type_constraints:
            types = set(constraint.allowed_type_strs)
            if "tensor(float)" in types and tensor_type not in types:
                in_fp32.add(node.name)
    return in_fp32


def rounded_too_much(precision: Precision, model: ModelProto) -> set[str]:
    """Names of nodes behind the last layers whose numbers need more bits: boxes in pixels.

    From 512 on bf16 knows multiples of 4 alone, fp16 those of 0.5.
    """
    return {*output_tails.in_onnx(model)} if precision == "bf16" else set()
