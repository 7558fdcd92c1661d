"""Which parts of an ONNX model half precision cannot hold."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from optcli.errors import StepError, counted
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.graph import constant, read
from optcli.models.onnx_graphs.protobuf import opset_of
from optcli.passes import Job
from optcli.passes._onnx.half_precision import Precision
from optcli.passes._onnx.upgrade import noise
from optcli.passes._quantization import output_tails
from optcli.passes._quantization.activation_ranges import activation_ranges

if TYPE_CHECKING:
    from onnx import ModelProto

# The largest number, and the smallest but zero, that fp16 holds.
_FP16_LARGEST = 65504.0
_FP16_SMALLEST = 5.96e-8


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
