"""Half precision: ONNX models in fp16 or bf16."""

from __future__ import annotations

from typing import Any, ClassVar, Self

from pydantic import Field, model_validator

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.protobuf import opset_of, precision_of
from optcli.passes import Job, Made, Pass
from optcli.passes._onnx.half_precision import (
    BF16_OPSET,
    Precision,
    halved,
    not_in,
    out_of_range,
    rounded_too_much,
)
from optcli.passes._onnx.models import already_quantized, chosen, modern
from optcli.settings import Patterns


class ConvertPrecision(Pass):
    """Stores and computes an ONNX model in half precision: fp16 or bf16.

    Half the size. Faster where the hardware computes in it, as GPUs do. On the CPU, ONNX Runtime casts
    fp16 to fp32 and back, at best as fast as before and often slower, and does not run bf16: that is
    for OpenVINO and GPUs. Nodes whose numbers leave the range of fp16 stay in fp32; with bf16 those
    behind the last layers that join values of different range, such as a detector's boxes and scores.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.ONNX,)
    needs: ClassVar[Needs] = Needs(("onnx", "onnx_ir", "onnxruntime"))

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
        stored = precision_of(onnx_format.outline(source.path))
        if stored in ("int8", "fp8"):
            raise already_quantized()
        if stored != "fp32":
            raise StepError(f"the model is {stored}, wanted fp32", hint="take this pass out")
        bf16 = self.precision == "bf16"
        why = "older ones know no bfloat16" if bf16 else "older ones cannot be read"
        model = modern(onnx_format.open(source.path), BF16_OPSET if bf16 else 7, job, why)
        nodes = model.graph.node
        in_fp32 = chosen(
            nodes, self.ignored_names, self.ignored_types, self.ignored_patterns, "ignored_"
        )
        facts: dict[str, Any] = {"keep_io": self.keep_io}
        if not bf16:
            in_fp32 |= out_of_range(model, job, facts)
        in_fp32 |= not_in(self.precision, model) | rounded_too_much(self.precision, model)
        job.progress(None, f"converting to {self.precision}")
        converted = halved(model, self.precision, in_fp32, self.keep_io)
        onnx_format.save(converted, job.out)
        types = sorted({node.op_type for node in nodes if node.name in in_fp32})
        facts |= {"kept_in_fp32": sorted(in_fp32), "kept_in_fp32_types": types}
        facts["opset"] = opset_of(converted)
        return Made(precision=self.precision, facts=facts)
