"""Static INT8 quantization with ONNX Runtime."""

from __future__ import annotations

import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from optcli import environment
from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import OptcliError, StepError, first_line
from optcli.formats import onnx as onnx_format
from optcli.passes import Job, Made, Pass, Role, _attention
from optcli.passes._activation_ranges import Range, activation_ranges, float_tensors
from optcli.passes._calibration import Feeds
from optcli.passes._integer_chains import leave_softmax_in_floats
from optcli.passes._kept_floats import keep_floats
from optcli.passes._onnx_models import (
    PER_CHANNEL_OPSET,
    Patterns,
    chosen,
    count_quantized,
    model_inputs,
    modern,
    prepared,
    quiet,
    require_floats,
)

if TYPE_CHECKING:
    from onnx import ModelProto

Isa = Literal["vnni", "avx2", "arm"]

# ONNX Runtime has no integer kernels for these on the CPU: quantized, they only round once more.
_FLOAT_TYPES = frozenset(
    {"LayerNormalization", "InstanceNormalization", "BatchNormalization", "Softmax", "TopK", "CumSum"}
)


class QuantizeOnnxruntime(Pass):
    """Quantizes weights and activations to INT8 after training, with ONNX Runtime's own quantizer.

    Ranges come from the calibration samples. Integer types are those that the CPU multiplies fastest,
    unless told otherwise. The result is meant for ONNX Runtime; OpenVINO runs it too.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.ONNX,)
    needs: ClassVar[Needs] = Needs(("onnx", "onnxruntime"))
    uses: ClassVar[tuple[Role, ...]] = ("calibration",)
    device_bound: ClassVar[bool] = True

    method: Literal["minmax", "percentile", "entropy"] = Field(
        "minmax",
        description="ranges of activations: `minmax` the extremes; `percentile` without the outermost "
        "values; `entropy` where clipping tells most about the values",
    )
    percentile: float | None = Field(
        None,
        gt=50,
        le=100,
        description="the part of all values that `method: percentile` keeps, in %; default: 99.99",
    )
    samples: int = Field(300, ge=1, description="the most calibration samples to use")
    per_channel: bool = Field(True, description="one scale per output channel of weights; false: one")
    format: Literal["qdq", "qoperator"] = Field(
        "qdq",
        description="`qdq`: float operators between QuantizeLinear and DequantizeLinear, fused when "
        "loaded; `qoperator`: integer operators in the file",
    )
    target_isa: Literal["auto", "vnni", "avx2", "arm"] = Field(
        "auto",
        description="instructions to choose integer types for; `auto`: this machine's; `vnni`, `avx2`: "
        "unsigned activations and signed weights, of 7 bits for `avx2`; `arm`: both signed",
    )
    activation_type: Literal["auto", "uint8", "int8"] = Field(
        "auto", description="integers for activations; `auto`: by `target_isa`"
    )
    weight_type: Literal["auto", "uint8", "int8"] = Field(
        "auto", description="integers for weights; `auto`: int8"
    )
    reduce_range: bool | None = Field(
        None,
        description="weights of 7 bits: without VNNI sums of 8-bit products saturate; default: by "
        "`target_isa`",
    )
    model_type: Literal["auto", "none", "transformer"] = Field(
        "auto",
        description="`transformer` keeps additions in floating point: few large values in what layers "
        "hand past attention take all the range; `auto`: where there is attention",
    )
    types: tuple[str, ...] = Field(
        (), description="operator types to quantize, no others; default: all that pay"
    )
    names: tuple[str, ...] = Field((), description="nodes to quantize, no others, by name")
    patterns: Patterns = Field(
        (), description="nodes to quantize, no others, by regular expression over the whole name"
    )
    ignored_types: tuple[str, ...] = Field(
        (), description="nodes to keep in floating point, by operator type"
    )
    ignored_names: tuple[str, ...] = Field((), description="nodes to keep in floating point, by name")
    ignored_patterns: Patterns = Field(
        (), description="nodes to keep in floating point, by regular expression over the whole name"
    )

    @model_validator(mode="after")
    def _types_that_there_are(self) -> Self:
        if self.activation_type == "int8" and self.weight_type == "uint8":
            raise ValueError("ONNX Runtime has no int8 activations with uint8 weights: swap the two")
        return self

    @model_validator(mode="after")
    def _percentile_is_for_its_method(self) -> Self:
        if self.percentile is not None and self.method != "percentile":
            raise ValueError(f"`percentile` has no effect with `method: {self.method}`")
        return self

    def produces(self, source: Format) -> Format:
        return Format.ONNX

    def run(self, source: Artifact, job: Job) -> Made:
        require_floats(onnx_format.precision(onnx_format.outline(source.path)))
        # With one scale for all, too: OpenVINO misreads quantized networks of opset 11.
        why = "older ones know no scale per channel"
        with tempfile.TemporaryDirectory(dir=job.out.parent) as folder, quiet():
            work = Path(folder)
            model = modern(
                onnx_format.open(source.path), PER_CHANNEL_OPSET, job, why, full_precision=True
            )
            model = prepared(model, work / "prepared", job)
            transformer = self._is_transformer(model)
            types, nodes, ignored = self._scope(model)
            feeds = Feeds(job, model_inputs(model), self.samples)
            ranges = activation_ranges(
                model,
                float_tensors(model, types, ignored),
                feeds,
                self.method,
                self.percentile or 99.99,
                job.threads,
                work,
            )
            self._quantize(work, ranges, (types, nodes, ignored), job)
        quantized = onnx_format.open(job.out)
        if leave_softmax_in_floats(quantized) + keep_floats(quantized):
            (job.out / onnx_format.DATA).unlink(missing_ok=True)  # saving would append to it
            onnx_format.save(quantized, job.out)
        counts = count_quantized(quantized)
        if not counts:
            raise StepError(
                "ONNX Runtime found nothing to quantize in this model",
                hint="take fewer nodes out with ignored_*, or drop the pass",
            )
        facts = {
            **self._integers(),
            "calibration_method": self.method,
            "calibration_samples": feeds.samples,
            "calibration_batch_size": feeds.batch_size,
            "per_channel": self.per_channel,
            "quantized_format": self.format,
            "opset": onnx_format.opset(quantized),
            "model_type": "transformer" if transformer else "none",
            "quantized_operators": dict(sorted(counts.items())),
            "kept_in_floating_point": sorted(ignored),
        }
        return Made(precision="int8", facts=facts)

    def _integers(self) -> dict[str, Any]:
        """The integer types, and the instructions they were chosen for."""
        isa: Isa = _this_isa() if self.target_isa == "auto" else self.target_isa
        weight = "int8" if self.weight_type == "auto" else self.weight_type
        signed = isa == "arm" and weight == "int8"
        activation = "int8" if signed else "uint8"
        reduce_range = self.reduce_range if self.reduce_range is not None else isa == "avx2"
        return {
            "target_isa": isa,
            "activation_type": activation if self.activation_type == "auto" else self.activation_type,
            "weight_type": weight,
            "reduce_range": reduce_range,
        }

    def _scope(self, model: ModelProto) -> tuple[list[str], list[str], set[str]]:
        """Operator types, names (empty: all) and exceptions, all by what is in the prepared model."""
        from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

        nodes = model.graph.node
        known = {*QDQRegistry, *QLinearOpsRegistry}
        types = set(self.types) or known - _FLOAT_TYPES
        if unknown := types - known:
            raise StepError(
                f"ONNX Runtime cannot quantize {', '.join(sorted(unknown))}",
                hint=f"`types:` may name {', '.join(sorted(known))}",
            )
        chosen(nodes, (), self.types, (), "")
        wanted = chosen(nodes, self.names, (), self.patterns, "")
        ignored = chosen(
            nodes, self.ignored_names, self.ignored_types, self.ignored_patterns, "ignored_"
        )
        if self.format == "qoperator":  # see leave_softmax_in_floats, which needs pairs
            feeds = {name for node in nodes if node.op_type == "Softmax" for name in node.input}
            ignored |= {node.name for node in nodes if feeds.intersection(node.output)}
        if self._is_transformer(model) and "Add" not in self.types:
            ignored |= {node.name for node in nodes if node.op_type == "Add"}
        return sorted(types), sorted(wanted - ignored), ignored

    def _is_transformer(self, model: ModelProto) -> bool:
        if self.model_type != "auto":
            return self.model_type == "transformer"
        return _attention.in_onnx(model)

    def _quantize(
        self,
        work: Path,
        ranges: dict[str, Range],
        scope: tuple[list[str], list[str], set[str]],
        job: Job,
    ) -> None:
        import numpy as np
        from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, calibrate
        from onnxruntime.quantization.quantize import quantize_static

        data = calibrate.TensorsData(
            CalibrationMethod.MinMax,
            {
                name: calibrate.TensorData(lowest=np.float32(low), highest=np.float32(high))
                for name, (low, high) in ranges.items()
            },
        )
        calibrate.save_tensors_data(data, work / "ranges.json")
        types, nodes, ignored = scope
        integers = self._integers()
        kinds = {"uint8": QuantType.QUInt8, "int8": QuantType.QInt8}
        job.progress(None, "quantizing")
        try:
            quantize_static(
                work / "prepared" / onnx_format.FILE,
                job.out / onnx_format.FILE,
                None,
                quant_format=QuantFormat.QDQ if self.format == "qdq" else QuantFormat.QOperator,
                op_types_to_quantize=types,
                per_channel=self.per_channel,
                reduce_range=integers["reduce_range"],
                activation_type=kinds[integers["activation_type"]],
                weight_type=kinds[integers["weight_type"]],
                nodes_to_quantize=nodes,
                nodes_to_exclude=sorted(ignored),
                use_external_data_format=(work / "prepared" / onnx_format.DATA).exists(),
                calibration_cache_path=work / "ranges.json",
                extra_options={"TensorQuantOverrides": self._one_scale(work / "prepared")},
            )
        except OptcliError:
            raise
        except Exception as error:
            raise StepError(
                f"ONNX Runtime's quantizer failed: {first_line(error)}",
                hint="keep the operators that it stumbles over with ignored_types",
            ) from error

    def _one_scale(self, prepared: Path) -> dict[str, list[dict[str, Any]]]:
        """Weights that get one scale all the same: ONNX Runtime errs at grouped ConvTranspose."""
        if not self.per_channel or self.format != "qdq":
            return {}
        option = {"symmetric": True, "reduce_range": self._integers()["reduce_range"]}
        return {
            node.input[1]: [option]
            for node in onnx_format.outline(prepared).graph.node
            if node.op_type == "ConvTranspose"
            and any(each.name == "group" and each.i > 1 for each in node.attribute)
        }


def _this_isa() -> Isa:
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "arm"
    flags = environment.cpu()["flags"]
    has_vnni = any("vnni" in flag for flag in flags) or "amx_int8" in flags
    return "vnni" if has_vnni else "avx2"
