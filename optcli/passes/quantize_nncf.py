"""Static INT8 quantization with NNCF."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from optcli.artifact import OUTPUT_TAIL, RUINED_LAYERS, Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError, first_line, raised_as
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import openvino as openvino_format
from optcli.models.formats import openvino_zero_points
from optcli.models.onnx_graphs.graph import read, written
from optcli.models.onnx_graphs.protobuf import opset_of, precision_of
from optcli.passes import Job, Made, Pass, Role
from optcli.passes._onnx.models import (
    PER_CHANNEL_OPSET,
    already_quantized,
    model_inputs,
    modern,
    require_floats,
)
from optcli.passes._quantization import (
    asymmetric_activations,
    layer_errors,
    output_tails,
    transformers,
)
from optcli.passes._quantization.calibration import CalibrationFeeds, Range, activation_ranges
from optcli.passes._quantization.graph_quantizers import saturates, this_cpu
from optcli.passes._quantization.integer_chains import (
    close_integer_chains,
    fill_gaps,
    gaps,
    keep_floats,
    make_unsigned,
)
from optcli.passes._quantization.nncf_of_graphs import (
    data_bytes,
    one_scale,
    openvino_inputs,
    quantize_graph,
    quantized_in_onnx,
    quantized_in_openvino,
    quiet,
)
from optcli.passes._tensorrt.constraints import keep_pairs_before_products, require_constraints
from optcli.passes._tensorrt.grids import make_signed

if TYPE_CHECKING:
    from nncf import IgnoredScope
    from onnx import ModelProto

# The opset that brought QuantizeLinear.
_INTEGERS_OPSET = 10
# Of `target`: what may turn out to be a CPU without VNNI.
_SATURATING = ("any", "cpu")


@dataclass(frozen=True)
class NncfCall:
    """What NNCF is called with: `arguments` are those of `nncf.quantize`, by name.

    `resolved` is the pass with the options that it chooses for this model, `tail` names the operators
    of the output tail that stay in floating point.
    """

    model: Any
    feeds: CalibrationFeeds
    resolved: QuantizeNncf
    arguments: dict[str, Any]
    tail: list[str]


class QuantizeNncf(Pass):
    """Quantizes weights and activations to INT8 after training, with NNCF.

    Ranges come from the calibration samples, biases are corrected for the error that remains. Works on
    ONNX (the result runs in ONNX Runtime and OpenVINO) and on OpenVINO models. A PyTorch network
    becomes an exported program for `aot_inductor`: as with `quantize_pt2e`, but NNCF's algorithms.
    """

    accepts: ClassVar[tuple[Format, ...]] = (
        Format.ONNX,
        Format.OPENVINO,
        Format.TORCH,
        Format.EXPORTED,
    )
    needs: ClassVar[Needs] = Needs(("nncf", "onnx", "onnx_ir", "onnxruntime", "openvino"))
    needs_of_source: ClassVar[Mapping[Format, tuple[str, ...]]] = {
        Format.TORCH: ("torch", "torchao"),
        Format.EXPORTED: ("torch", "torchao"),
    }
    uses: ClassVar[tuple[Role, ...]] = ("calibration",)
    device_bound: ClassVar[bool] = True

    preset: Literal["performance", "mixed"] | None = Field(
        None,
        description="`performance`: symmetric; `mixed`: asymmetric activations, for swish, GELU and "
        "the like (of OpenVINO models: where values are skewed); default: `mixed` for these and "
        "transformers (not in TensorRT), else `performance`",
    )
    model_type: Literal["auto", "none", "transformer"] = Field(
        "auto",
        description="`transformer` keeps what attention is sensitive to in floating point; `auto`: "
        "where there is attention",
    )
    samples: int = Field(300, ge=1, description="the most calibration samples to use")
    fast_bias_correction: bool = Field(
        True, description="correct biases layer by layer; false: more exact, several times slower"
    )
    smooth_quant: bool | None = Field(
        None,
        description="move outliers of activations into weights; default: for transformers, but not for "
        "`target: tensorrt`",
    )
    target: Literal["any", "cpu", "cpu_spr", "gpu", "tensorrt"] = Field(
        "any",
        description="device whose rules decide which layers are quantized, and how; `tensorrt`: "
        "symmetric, signed integers before convolutions and products with weights",
    )
    reduce_range: bool | None = Field(
        None,
        description="weights of 7 bits, but for depthwise convolutions: without VNNI sums of 8-bit "
        "products saturate; default: by this CPU; false: the first layer alone, as NNCF does by itself",
    )
    output_tail: output_tails.OutputTail = "float"
    least_layer_sqnr: layer_errors.LeastSqnr = layer_errors.LEAST_SQNR_DB
    ignored_names: tuple[str, ...] = Field(
        (),
        description="nodes to keep in floating point, by name; of PyTorch networks: modules, by name "
        "or pattern",
    )
    ignored_types: tuple[str, ...] = Field((), description="nodes to keep, by operator type")
    ignored_patterns: tuple[str, ...] = Field((), description="nodes to keep, by regular expression")

    @model_validator(mode="after")
    def _smooth_quant_is_for_transformers(self) -> Self:
        if self.smooth_quant and self.model_type == "none":
            raise ValueError("`smooth_quant: true` needs `model_type: transformer`")
        return self

    @model_validator(mode="after")
    def _tensorrt_is_symmetric(self) -> Self:
        if self.target == "tensorrt" and self.preset == "mixed":
            raise ValueError("TensorRT knows no asymmetric activations: take `preset: mixed` out")
        return self

    @model_validator(mode="after")
    def _seven_bits_are_for_cpus(self) -> Self:
        if self.reduce_range and self.target not in _SATURATING:
            raise ValueError(f"`reduce_range: true` has no effect with `target: {self.target}`")
        return self

    def bound_to(self) -> dict[str, Any]:
        # Where products saturate, activations of PyTorch networks and weights of others get 7 bits.
        return {"quantizer": this_cpu(), "saturates": saturates(this_cpu())}

    def produces(self, source: Format) -> Format:
        return Format.EXPORTED if source in (Format.TORCH, Format.EXPORTED) else source

    def run(self, source: Artifact, job: Job) -> Made:
        if source.format in (Format.TORCH, Format.EXPORTED):
            return self._run_torch(source, job)
        if source.format == Format.OPENVINO:
            return self._run_openvino(source, job)
        return self._run_onnx(source, job)

    def _run_torch(self, source: Artifact, job: Job) -> Made:
        plain = QuantizeNncf()
        for option in ("preset", "target", "reduce_range", "ignored_types", "ignored_patterns"):
            if getattr(self, option) != getattr(plain, option):
                raise StepError(
                    f"`{option}` does nothing for PyTorch networks: the kernels of the CPU decide",
                    hint=f"take {option} out, or put export_onnx before quantize_nncf",
                )
        return quantize_graph(
            source,
            job,
            samples=self.samples,
            fast_bias_correction=self.fast_bias_correction,
            transformer=None if self.model_type == "auto" else self.model_type == "transformer",
            smooth_quant=self.smooth_quant,
            ignored_modules=self.ignored_names,
            output_tail=self.output_tail,
        )

    def _run_onnx(self, source: Artifact, job: Job) -> Made:
        ready = self.ready(source, job)
        large = data_bytes(ready.model) > onnx_format.ONE_FILE_BYTES // 2
        if large and self.least_layer_sqnr is not None:
            job.warn("too large to look at the error of each layer: all are quantized")
        ignored = {*ready.tail, *self._ignored_nodes(ready.model)}
        ranges: dict[str, Range] = {}
        ruined: dict[str, float] = {}
        for left in reversed(range(layer_errors.ROUNDS)):
            graph = read(ready.resolved._quantize(ready))
            if self.target == "tensorrt":
                # NNCF cannot be told that it has no unsigned integers.
                make_signed(graph)
                keep_pairs_before_products(graph)
            close_integer_chains(graph)
            if self.target in _SATURATING:
                make_unsigned(graph)
                # Between the layers of a transformer values stay in floating point for accuracy.
                transformer = ready.resolved.model_type == "transformer"
                names = [] if transformer else gaps(graph, ignored)
                ranges = ranges or _ranges(ready, names, job, source)
                fill_gaps(graph, {name: ranges[name] for name in names if name in ranges})
            more: dict[str, float] = {}
            if left and not large and self.least_layer_sqnr is not None:
                more = layer_errors.ruined_layers(
                    ready.model, written(graph), ready.feeds, self.least_layer_sqnr, job.threads
                )
            if not more:
                break
            ruined |= more
            neighbours = layer_errors.neighbours_of(ready.model, more)
            ignored |= {*more} if self.target == "tensorrt" else neighbours
            ready.arguments["ignored_scope"] = self._ignored(sorted(ignored))
        if self.target == "tensorrt":
            require_constraints(graph)
        elif opset_of(ready.model) >= PER_CHANNEL_OPSET:
            keep_floats(graph)
        quantized = written(graph)
        onnx_format.save(quantized, job.out)
        operators = self.quantized_operators(quantized)
        layer_errors.require_layers(operators.values(), ruined, self.least_layer_sqnr)
        made = ready.resolved._made(ready, operators)
        return replace(made, facts={**made.facts, RUINED_LAYERS: ruined})

    def _ignored_nodes(self, model: ModelProto) -> set[str]:
        """The nodes that the recipe keeps in floating point, as far as there are any of these names."""
        by_pattern = [re.compile(pattern) for pattern in self.ignored_patterns]
        return {
            node.name
            for node in model.graph.node
            if node.name in self.ignored_names
            or node.op_type in self.ignored_types
            or any(pattern.match(node.name) for pattern in by_pattern)
        }

    def _run_openvino(self, source: Artifact, job: Job) -> Made:
        ready = self.ready(source, job)
        quantized = ready.resolved._quantize(ready)
        facts = {}
        if ready.resolved.preset == "mixed":
            symmetric, activations = asymmetric_activations.make_symmetric(quantized)
            facts["asymmetric_activations"] = activations - symmetric
            openvino_zero_points.move_into_biases(quantized)
        openvino_format.save(quantized, job.out)
        made = ready.resolved._made(ready, self.quantized_operators(quantized))
        return replace(made, facts={**made.facts, **facts})

    def ready(self, source: Artifact, job: Job) -> NncfCall:
        """An ONNX or OpenVINO artifact as NNCF gets it. Raises `StepError` where it holds no floats."""
        if source.format == Format.OPENVINO:
            if self.target == "tensorrt":
                raise StepError(
                    "TensorRT reads ONNX models, and this is an OpenVINO one",
                    hint="take to_openvino out",
                )
            model = openvino_format.open(source.path)
            if openvino_format.is_quantized(model):
                raise already_quantized()
            feeds = CalibrationFeeds(job, openvino_inputs(model), self.samples)
            resolved = self._resolved(
                transformers.in_openvino(model), asymmetric_activations.in_openvino(model), job
            )
            tail = output_tails.in_openvino(model) if self.output_tail == "float" else []
            return NncfCall(model, feeds, resolved, resolved._arguments(feeds, {}, tail), tail)
        openvino_format.forbid_telemetry()
        model = onnx_format.outline(source.path)
        require_floats(precision_of(model))
        if self.target == "cpu_spr":
            raise StepError(
                "NNCF knows the target cpu_spr for OpenVINO models only",
                hint="put to_openvino before quantize_nncf, or set `target: cpu`",
            )
        backend: dict[str, Any] = {}
        if data_bytes(model) > onnx_format.ONE_FILE_BYTES:
            # Too large for one message: NNCF reads the weights from where they lie.
            backend["external_data_dir"] = str(source.path.resolve())
        else:
            model = _modern(onnx_format.open(source.path), job)
        feeds = CalibrationFeeds(job, model_inputs(model), self.samples)
        resolved = self._resolved(
            transformers.in_onnx(model), asymmetric_activations.in_onnx(model), job
        )
        tail = output_tails.in_onnx(model) if self.output_tail == "float" else []
        arguments = resolved._arguments(feeds, backend, tail)
        # Before depthwise convolutions NNCF would scale each channel by itself, which OpenVINO
        # runs, and of which ONNX Runtime makes a QLinearConv that it then refuses to run.
        arguments["advanced_parameters"].activations_quantization_params = one_scale()
        return NncfCall(model, feeds, resolved, arguments, tail)

    @staticmethod
    def quantized_operators(model: Any) -> dict[str, str]:
        """Types by name of the operators of an ONNX or OpenVINO model that compute on integers."""
        onnx = hasattr(model, "graph")
        return quantized_in_onnx(model) if onnx else quantized_in_openvino(model)

    def _resolved(self, attends: bool, activations: Sequence[str], job: Job) -> QuantizeNncf:
        """A copy with the type of this model in place of `auto`, and with the preset for it.

        `activations` names those that are not symmetric about zero: `performance` makes them symmetric.
        """
        attends = attends if self.model_type == "auto" else self.model_type == "transformer"
        mixed = (attends or bool(activations)) and self.target != "tensorrt"
        preset = self.preset or ("mixed" if mixed else "performance")
        reasons = [*activations, *(["attention"] if attends else [])]
        if mixed and self.preset == "performance":
            job.warn(
                f"`preset: performance` makes the activations symmetric, and the model has"
                f" {', '.join(reasons)}: `preset: mixed` keeps more accuracy"
            )
        because = f", for {', '.join(reasons)}" if mixed and self.preset is None else ""
        job.progress(None, f"preset {preset}{because}")
        kind = "transformer" if attends else "none"
        return self.model_copy(update={"model_type": kind, "preset": preset})

    def _arguments(
        self, feeds: CalibrationFeeds, backend: dict[str, Any], tail: list[str]
    ) -> dict[str, Any]:
        import nncf
        from nncf.quantization.range_estimator import RangeEstimatorParametersSet

        for_tensorrt = self.target == "tensorrt"
        parameters = nncf.AdvancedQuantizationParameters(
            batchwise_statistics=feeds.batch_size > 1 and self.model_type == "none",
            backend_params=backend,
        )
        if self._reduces_range():
            parameters.overflow_fix = nncf.OverflowFix.ENABLE
        if for_tensorrt:
            parameters.activations_range_estimator_params = RangeEstimatorParametersSet.MINMAX
        # With symmetric scales it costs up to 20 dB: 41 to 21 for two layers of attention.
        if not (self.smooth_quant or (self.smooth_quant is None and not for_tensorrt)):
            parameters.smooth_quant_alphas = nncf.AdvancedSmoothQuantParameters(
                convolution=-1, matmul=-1
            )
        return {
            "preset": nncf.QuantizationPreset(self.preset),
            "target_device": nncf.TargetDevice["ANY" if for_tensorrt else self.target.upper()],
            # NNCF counts what the data set yields: batches.
            "subset_size": len(feeds),
            "fast_bias_correction": self.fast_bias_correction,
            "model_type": nncf.ModelType.TRANSFORMER if self.model_type != "none" else None,
            "ignored_scope": self._ignored(tail),
            "advanced_parameters": parameters,
        }

    def _reduces_range(self) -> bool:
        if self.reduce_range is not None:
            return self.reduce_range
        return self.target in _SATURATING and saturates(this_cpu())

    def _quantize(self, ready: NncfCall) -> Any:
        import nncf

        failing = raised_as(StepError, "NNCF failed", reason=_reason, hint=self._hint())
        with failing, quiet():
            return nncf.quantize(ready.model, nncf.Dataset(ready.feeds), **ready.arguments)

    def _hint(self) -> str:
        if not self.fast_bias_correction:
            return "NNCF cannot cut every network into parts: set `fast_bias_correction: true`"
        return "check the names under ignored_*" if self._is_told() else "look into the log"

    def _is_told(self) -> bool:
        return bool(self.ignored_names or self.ignored_types or self.ignored_patterns)

    def _ignored(self, tail: list[str]) -> IgnoredScope | None:
        import nncf

        if not (self._is_told() or tail):
            return None
        # One pattern: NNCF refuses names that it does not find, such as those of casts that it drops.
        of_tail = [f"^({'|'.join(map(re.escape, tail))})$"] if tail else []
        return nncf.IgnoredScope(
            names=list(self.ignored_names),
            types=list(self.ignored_types),
            patterns=[*self.ignored_patterns, *of_tail],
        )

    def _made(self, ready: NncfCall, quantized: Mapping[str, str]) -> Made:
        if not quantized:
            raise StepError(
                "NNCF found nothing to quantize in this model",
                hint="take fewer nodes out with ignored_*, or drop the pass",
            )
        facts = {
            "preset": self.preset,
            "model_type": self.model_type,
            "target": self.target,
            "reduce_range": self._reduces_range(),
            "calibration_samples": ready.feeds.samples,
            "calibration_batch_size": ready.feeds.batch_size,
            "quantized_operators": dict(sorted(Counter(quantized.values()).items())),
            OUTPUT_TAIL: ready.tail,
        }
        return Made(precision="int8", facts=facts)


def _reason(error: Exception) -> str:
    """What NNCF says, and what it means where it has seen no value of an operator."""
    reason = first_line(error)
    if not reason.startswith("Statistics were not collected"):
        return reason
    return (
        f"{reason}: it got no value with any calibration sample, as where a detector finds nothing."
        " Calibrate with trained weights and other images, or name this node under ignored_names"
    )


def _ranges(ready: NncfCall, names: Collection[str], job: Job, source: Artifact) -> dict[str, Range]:
    """The ranges of values that NNCF left in floating point, for integers."""
    ranges = activation_ranges(ready.model, names, ready.feeds, "minmax", 100, job.threads, source.path)
    return asymmetric_activations.without_vanishing(ready.model, ranges)


def _modern(model: ModelProto, job: Job) -> ModelProto:
    try:
        why = "older ones know no scale per channel"
        return modern(model, PER_CHANNEL_OPSET, job, why, full_precision=True)
    except StepError as error:
        if opset_of(model) < _INTEGERS_OPSET:
            raise
        job.warn(f"{error.message}: weights get one scale per tensor")
        return model
