"""Static INT8 quantization with ONNX Runtime; for TensorRT FP8, too."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from optcli import environment
from optcli.artifact import OUTPUT_TAIL, RUINED_LAYERS, Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.graph import constant, read, written
from optcli.models.onnx_graphs.operators import PRODUCTS
from optcli.models.onnx_graphs.protobuf import opset_of, precision_of
from optcli.passes import Job, Made, Pass, Role
from optcli.passes._onnx.models import (
    PER_CHANNEL_OPSET,
    chosen,
    count_quantized,
    model_inputs,
    modern,
    prepared,
    quiet,
    require_floats,
)
from optcli.passes._quantization import layer_errors, output_tails, static_quantization, transformers
from optcli.passes._quantization.asymmetric_activations import without_vanishing
from optcli.passes._quantization.calibration import (
    CalibrationFeeds,
    Range,
    activation_ranges,
    float_tensors,
)
from optcli.passes._quantization.integer_chains import keep_floats, leave_softmax_in_floats
from optcli.passes._quantization.static_quantization import Grids, Scope, quantize, replaced_ranges
from optcli.passes._tensorrt.grids import fold_weights, make_fp8
from optcli.settings import Patterns

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnx_ir import Model

Isa = Literal["vnni", "avx2", "arm"]

# ONNX Runtime has no integer kernels for these on the CPU: quantized, they only round once more.
_FLOAT_TYPES = frozenset(
    {"LayerNormalization", "InstanceNormalization", "BatchNormalization", "Softmax", "TopK", "CumSum"}
)

# The opset that brought FLOAT8E4M3FN, and the one that brought integers of 16 bits.
_FP8_OPSET, _WIDE_OPSET = 19, 21


class QuantizeOnnxruntime(Pass):
    """Quantizes weights and activations to INT8 after training, with ONNX Runtime's own quantizer.

    Ranges come from the calibration samples. Integer types are those that the CPU multiplies fastest,
    unless told otherwise. The result is meant for ONNX Runtime; OpenVINO runs it too. With
    `target: tensorrt` it is for `tensorrt_engine` and `tensorrt_rtx_engine`: symmetric int8 or FP8.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.ONNX,)
    needs: ClassVar[Needs] = Needs(("onnx", "onnx_ir", "onnxruntime"))
    uses: ClassVar[tuple[Role, ...]] = ("calibration",)
    device_bound: ClassVar[bool] = True
    imports_ahead: ClassVar[tuple[str, ...]] = ("onnxruntime.quantization.quantize",)

    method: Literal["minmax", "percentile", "entropy"] = Field(
        "minmax",
        description="ranges of activations: `minmax` the extremes; `percentile` without the outermost "
        "values; `entropy` clips where the least information is lost",
    )
    percentile: float | None = Field(
        None,
        gt=50,
        le=100,
        description="the part of all values that `method: percentile` keeps, in %; default: 99.99",
    )
    samples: int = Field(300, ge=1, description="the most calibration samples to use")
    target: Literal["cpu", "tensorrt"] = Field(
        "cpu",
        description="`cpu`: what ONNX Runtime runs fastest; `tensorrt`: what TensorRT takes, symmetric "
        "and signed, before convolutions and matrix products alone, biases in floating point",
    )
    precision: Literal["int8", "fp8"] = Field(
        "int8",
        description="`fp8`: FLOAT8E4M3FN in place of integers, with `target: tensorrt`, for GPUs from "
        "Ada and Hopper on",
    )
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
    activation_type: Literal["auto", "uint8", "int8", "uint16"] = Field(
        "auto",
        description="integers for activations; `auto`: by `target_isa`; `uint16` is for NPUs, where it "
        "keeps more accuracy: CPUs compute such layers in floating point, and slower than FP32",
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
        description="`transformer` keeps all additions except those of biases in floating point, "
        "because a few large values of the residual branches would set the range; `auto`: "
        "`transformer` where there is attention",
    )
    output_tail: output_tails.OutputTail = "float"
    least_layer_sqnr: layer_errors.LeastSqnr = layer_errors.LEAST_SQNR_DB
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
        if self.activation_type == "uint16" and self.format == "qoperator":
            raise ValueError("`format: qoperator` has no operators for uint16: leave it out")
        return self

    @model_validator(mode="after")
    def _tensorrt_decides_by_itself(self) -> Self:
        if self.precision == "fp8" and self.target != "tensorrt":
            raise ValueError(
                "ONNX Runtime computes nothing in FP8: `precision: fp8` is for `target: tensorrt`"
            )
        plain = type(self).model_fields
        options = ("target_isa", "activation_type", "weight_type", "reduce_range", "format")
        for name in options if self.target == "tensorrt" else ():
            if getattr(self, name) != plain[name].default:
                raise ValueError(f"`{name}` has no effect with `target: tensorrt`: it wants int8 pairs")
        return self

    @model_validator(mode="after")
    def _percentile_is_for_its_method(self) -> Self:
        if self.percentile is not None and self.method != "percentile":
            raise ValueError(f"`percentile` has no effect with `method: {self.method}`")
        return self

    def produces(self, source: Format) -> Format:
        return Format.ONNX

    def run(self, source: Artifact, job: Job) -> Made:
        source_model = onnx_format.open(source.path)
        require_floats(precision_of(source_model))
        # With one scale for all, too: OpenVINO misreads quantized networks of opset 11.
        fp8, wide = self.precision == "fp8", self._is_for_npus()
        why, least_opset = "older ones know no scale per channel", PER_CHANNEL_OPSET
        if fp8:
            why, least_opset = "older ones know no FP8", _FP8_OPSET
        elif wide:
            why, least_opset = "older ones know no integers of 16 bits", _WIDE_OPSET
        with tempfile.TemporaryDirectory(dir=job.work_folder) as folder, quiet():
            work = Path(folder)
            model = modern(source_model, least_opset, job, why, full_precision=True)
            transformer = self._is_transformer(model)
            if transformer and self._merges_layers():
                model = static_quantization.merge_linear_layers(
                    model, untouched={*self.names, *self.ignored_names}
                )
            model = prepared(model, work / "prepared", job)
            tail = self._float_tail(model)
            scope, grids = self._scope(model, tail), self._grids()
            feeds = CalibrationFeeds(job, model_inputs(model), self.samples)
            tensors = float_tensors(model, scope.types, scope.ignored)
            replaced = replaced_ranges(model, tensors, scope)
            masked: set[str] = set()
            ranges = activation_ranges(
                model,
                tensors - replaced.keys(),
                feeds,
                self.method,
                self.percentile or 99.99,
                job.threads,
                work / "prepared",
                masked,
            )
            ranges |= {name: ranges[by] for name, by in replaced.items() if by in ranges}
            scope = _without_masks(model, scope, masked)
            ranges = without_vanishing(model, ranges)
            job.progress(None, "quantizing")
            scope, ruined = self._without_ruined(model, scope, grids, ranges, feeds, job, work)
            quantize(work / "prepared", job.out, ranges, scope, grids, work)
        output = onnx_format.open(job.out)
        quantized = read(output)
        if self._finish(quantized):
            (job.out / onnx_format.DATA).unlink(missing_ok=True)  # saving would append to it
            onnx_format.save(written(quantized), job.out)
        counts = count_quantized(quantized)
        layer_errors.require_layers(counts, ruined, self.least_layer_sqnr)
        if not counts:
            raise StepError(
                "ONNX Runtime found nothing to quantize in this model",
                hint="take fewer nodes out with ignored_*, or drop the pass",
            )
        facts = {
            "target": self.target,
            "target_isa": self._isa() if self.target == "cpu" else None,
            "activation_type": "fp8" if fp8 else grids.activations,
            "weight_type": "fp8" if fp8 else grids.weights,
            "reduce_range": grids.reduce_range,
            "calibration_method": self.method,
            "calibration_samples": feeds.samples,
            "calibration_batch_size": feeds.batch_size,
            "per_channel": self.per_channel,
            "quantized_format": self.format,
            "opset": opset_of(output),
            "model_type": "transformer" if transformer else "none",
            "quantized_operators": dict(sorted(counts.items())),
            "kept_in_floating_point": sorted(scope.ignored),
            OUTPUT_TAIL: tail,
            RUINED_LAYERS: ruined,
        }
        return Made(precision="int8-a16" if wide else self.precision, facts=facts)

    def _without_ruined(
        self,
        model: ModelProto,
        scope: Scope,
        grids: Grids,
        ranges: Mapping[str, Range],
        feeds: CalibrationFeeds,
        job: Job,
        work: Path,
    ) -> tuple[Scope, dict[str, float]]:
        """The scope without the layers that would be ruined in it, and their SQNR in dB by name."""
        if self.least_layer_sqnr is None or self.precision == "fp8":
            return scope, {}
        if onnx_format.bytes_in(work / "prepared") > onnx_format.ONE_FILE_BYTES // 2:
            job.warn("too large to look at the error of each layer: all are quantized")
            return scope, {}
        floats = onnx_format.open(work / "prepared")
        ruined: dict[str, float] = {}
        for number in range(layer_errors.ROUNDS):
            trial = work / f"trial_{number}"
            trial.mkdir()
            quantize(work / "prepared", trial, ranges, scope, replace(grids, qdq=True), work)
            quantized = onnx_format.open(trial)
            more = layer_errors.ruined_layers(
                floats, quantized, feeds, self.least_layer_sqnr, job.threads
            )
            if not more:
                break
            ruined |= more
            neighbours = {*more} if grids.for_tensorrt else layer_errors.neighbours_of(model, more)
            ignored = {*scope.ignored, *neighbours}
            if scope.names and ignored.issuperset(scope.names):  # without names all would be quantized
                layer_errors.require_layers((), ruined, self.least_layer_sqnr)
            scope = replace(scope, names={*scope.names} - ignored, ignored=ignored)
        return scope, ruined

    def _finish(self, quantized: Model) -> int:
        """Finish the quantizer's model; returns how many nodes were changed."""
        if self._is_for_npus():  # they take pairs around every operator
            return 0
        if self.target == "cpu":
            return leave_softmax_in_floats(quantized) + keep_floats(quantized)
        changed = make_fp8(quantized) if self.precision == "fp8" else 0
        return changed + fold_weights(quantized)

    def _is_for_npus(self) -> bool:
        return self.activation_type == "uint16"

    def _isa(self) -> Isa:
        return _this_isa() if self.target_isa == "auto" else self.target_isa

    def _grids(self) -> Grids:
        """The integer types, chosen for TensorRT or for the CPU's instructions."""
        if self.target == "tensorrt":
            return Grids("int8", "int8", False, self.per_channel, for_tensorrt=True)
        isa = self._isa()
        weight = "int8" if self.weight_type == "auto" else self.weight_type
        signed = isa == "arm" and weight == "int8"
        activation = "int8" if signed else "uint8"
        return Grids(
            activations=activation if self.activation_type == "auto" else self.activation_type,
            weights=weight,
            reduce_range=isa == "avx2" and not self._is_for_npus()
            if self.reduce_range is None
            else self.reduce_range,
            per_channel=self.per_channel,
            qdq=self.format == "qdq",
        )

    def _float_tail(self, model: ModelProto) -> list[str]:
        """The operators of the output tail that stay in floating point: those that are not named."""
        tail = output_tails.in_onnx(model) if self.output_tail == "float" else []
        named = chosen(model.graph.node, self.names, (), self.patterns, "")
        return [name for name in tail if name not in named]

    def _scope(self, model: ModelProto, tail: Collection[str]) -> Scope:
        """What to quantize, by what is in the prepared model."""
        from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

        nodes = model.graph.node
        quantizable = {*QDQRegistry, *QLinearOpsRegistry}
        usual = PRODUCTS if self.target == "tensorrt" else quantizable - _FLOAT_TYPES
        if self._is_for_npus():
            usual = quantizable
        types = set(self.types) or usual
        if unknown := types - quantizable:
            raise StepError(
                f"ONNX Runtime cannot quantize {', '.join(sorted(unknown))}",
                hint=f"`types:` may name {', '.join(sorted(quantizable))}",
            )
        chosen(nodes, (), self.types, (), "")
        selected = chosen(nodes, self.names, (), self.patterns, "")
        ignored = {*tail} | chosen(
            nodes, self.ignored_names, self.ignored_types, self.ignored_patterns, "ignored_"
        )
        if self.format == "qoperator":  # see leave_softmax_in_floats, which needs pairs
            feeds = {name for node in nodes if node.op_type == "Softmax" for name in node.input}
            ignored |= {node.name for node in nodes if feeds.intersection(node.output)}
        if self._is_transformer(model) and "Add" not in self.types:
            ignored |= {node.name for node in nodes if node.op_type == "Add"}
        if self.target == "tensorrt":
            ignored |= _products_of_activations(model) - selected
        return Scope(types, selected - ignored, ignored)

    def _merges_layers(self) -> bool:
        """Whether layers may become `Gemm`: types and patterns of the recipe would mean other nodes."""
        selections = (self.types, self.patterns, self.ignored_types, self.ignored_patterns)
        return self.target == "cpu" and self.format == "qdq" and not any(selections)

    def _is_transformer(self, model: ModelProto) -> bool:
        if self.model_type != "auto":
            return self.model_type == "transformer"
        return not self._is_for_npus() and transformers.in_onnx(model)


def _without_masks(model: ModelProto, scope: Scope, masked: set[str]) -> Scope:
    """The scope without what reads or writes values down to minus infinity: no scale has them."""
    near = {n.name for n in model.graph.node if masked.intersection((*n.input, *n.output))}
    names = {*scope.names} - near
    if scope.names and not names:
        raise StepError(
            f"all named nodes read or write values that reach minus infinity ({min(masked)!r})",
            hint="masks stay in floating point: name other nodes",
        )
    return replace(scope, names=names, ignored={*scope.ignored, *near})


def _products_of_activations(model: ModelProto) -> set[str]:
    """Names of matrix products without weights: TensorRT fuses attention, which it keeps in floats."""
    return {
        str(node.name)
        for node in read(model).graph
        if node.op_type == "MatMul" and all(constant(value) is None for value in node.inputs)
    }


def _this_isa() -> Isa:
    if platform.machine().lower() in ("aarch64", "arm64"):
        return "arm"
    return "avx2" if environment.sums_saturate(environment.isa()) else "vnni"
