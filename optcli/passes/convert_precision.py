"""Half precision: ONNX models in fp16 or bf16."""

from __future__ import annotations

import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import Field, model_validator

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError
from optcli.formats import onnx as onnx_format
from optcli.passes import Job, Made, Pass
from optcli.passes._activation_ranges import activation_ranges
from optcli.passes._half_precision import Precision, halved
from optcli.passes._onnx_models import Patterns, already_quantized, chosen, modern
from optcli.passes._onnx_upgrade import noise

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

# The first operator set in which convolutions and pooling take bfloat16.
_BF16_OPSET = 22

# The largest number, and the smallest but zero, that fp16 holds.
_FP16_LARGEST = 65504.0
_FP16_SMALLEST = 5.96e-8


class ConvertPrecision(Pass):
    """Stores and computes an ONNX model in half precision: fp16 or bf16.

    Half the size. Faster where the hardware computes in it, as GPUs do. On the CPU, ONNX Runtime casts
    fp16 to fp32 and back, at best as fast as before and often slower, and does not run bf16: that is
    for OpenVINO and GPUs. Nodes whose numbers leave the range of fp16 stay in fp32.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.ONNX,)
    needs: ClassVar[Needs] = Needs(("onnx", "onnxruntime"))

    precision: Precision = Field(
        "fp16",
        description="`fp16`: 11 bits of precision, up to 65504; `bf16`: 8 bits, the range of fp32",
    )
    keep_io: bool = Field(
        True, description="inputs and outputs stay fp32; false: they are converted too"
    )
    ignored_types: tuple[str, ...] = Field((), description="nodes to keep in fp32, by type")
    ignored_names: tuple[str, ...] = Field((), description="nodes to keep in fp32, by name")
    ignored_patterns: Patterns = Field(
        (), description="nodes to keep in fp32, by regular expression over the whole name"
    )

    @model_validator(mode="after")
    def _inputs_that_can_be_fed(self) -> Self:
        if self.precision == "bf16" and not self.keep_io:
            raise ValueError("no client sends bfloat16: `keep_io: false` is for fp16")
        return self

    def produces(self, source: Format) -> Format:
        return Format.ONNX

    def run(self, source: Artifact, job: Job) -> Made:
        found = onnx_format.precision(onnx_format.outline(source.path))
        if found in ("int8", "fp8"):
            raise already_quantized()
        if found != "fp32":
            raise StepError(f"the model is {found}, wanted fp32", hint="take this pass out")
        bf16 = self.precision == "bf16"
        why = "older ones know no bfloat16" if bf16 else "older ones cannot be read"
        model = modern(onnx_format.open(source.path), _BF16_OPSET if bf16 else 7, job, why)
        nodes = model.graph.node
        kept = chosen(nodes, self.ignored_names, self.ignored_types, self.ignored_patterns, "ignored_")
        facts: dict[str, Any] = {"keep_io": self.keep_io}
        if not bf16:
            kept |= _out_of_range(model, job, facts)
        kept |= _impossible(model, "tensor(bfloat16)" if bf16 else "tensor(float16)")
        job.progress(None, f"converting to {self.precision}")
        converted = halved(model, self.precision, kept, self.keep_io)
        onnx_format.save(converted, job.out)
        types = sorted({node.op_type for node in nodes if node.name in kept})
        facts |= {"kept_in_fp32": sorted(kept), "kept_in_fp32_types": types}
        facts["opset"] = onnx_format.opset(converted)
        return Made(precision=self.precision, facts=facts)


def _out_of_range(model: ModelProto, job: Job, facts: dict[str, Any]) -> set[str]:
    """Nodes that read or compute what fp16 cannot hold; says so.

    Activations are judged on random inputs: enough for what the weights do, not for all that real data
    may do.
    """
    import numpy as np
    from onnx import numpy_helper

    large, tiny = {}, 0
    for name, tensor in _float_constants(model).items():
        values = np.abs(numpy_helper.to_array(tensor))
        if count := int(((values > _FP16_LARGEST) & np.isfinite(values)).sum()):
            large[name] = count
        tiny += int(((values > 0) & (values < _FP16_SMALLEST)).sum())
    extremes = _largest_activations(model, job)
    wide = {name for name, value in extremes.items() if not value <= _FP16_LARGEST}
    kept = {
        node.name
        for node in model.graph.node
        if large.keys() & {*node.input, *node.output} or wide.intersection((*node.input, *node.output))
    }
    if large:
        job.warn(f"{sum(large.values())} weights are out of fp16's range: the nodes stay in fp32")
    if wide:
        job.warn(f"{len(wide)} activations leave fp16's range: {len(kept)} nodes stay in fp32")
    finite = [value for value in extremes.values() if math.isfinite(value)]
    facts["weights_out_of_range"] = dict(sorted(large.items()))
    facts["weights_below_range"] = tiny
    facts["largest_activation_on_noise"] = max(finite, default=None)
    return kept


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
    with tempfile.TemporaryDirectory(dir=job.out.parent) as folder:
        try:
            found = activation_ranges(
                model, floats, [noise(job)], "minmax", 100, job.threads, Path(folder)
            )
        except StepError as error:
            job.warn(f"whether activations fit into fp16 is not known: {error.message}")
            return {}
    return {name: max(-low, high) for name, (low, high) in found.items()}


def _float_constants(model: ModelProto) -> dict[str, TensorProto]:
    from onnx import TensorProto

    found = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        tensors = [entry.t for entry in node.attribute if entry.HasField("t")]
        if node.op_type == "Constant" and tensors:
            found[node.output[0]] = tensors[0]
    return {name: tensor for name, tensor in found.items() if tensor.data_type == TensorProto.FLOAT}


def _impossible(model: ModelProto, wanted: str) -> set[str]:
    """Nodes whose operator takes fp32 but not the type, in the model's operator set.

    Those of ONNX Runtime's own domain are tried; of others nothing is known.
    """
    import onnx

    opset = onnx_format.opset(model)
    kept: set[str] = set()
    for node in model.graph.node:
        if node.domain not in ("", "ai.onnx"):
            kept |= set() if node.domain == "com.microsoft" else {node.name}
            continue
        schema = onnx.defs.get_schema(node.op_type, opset, "")
        for constraint in schema.type_constraints:
            types = set(constraint.allowed_type_strs)
            if "tensor(float)" in types and wanted not in types:
                kept.add(node.name)
    return kept
