"""INT8 and smaller weights for LiteRT models: Google's AI Edge Quantizer."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from optcli.artifact import SLOW_INTEGERS, Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError, raised_as
from optcli.models.formats import litert as litert_format
from optcli.passes import Job, Made, Pass, Role
from optcli.passes._quantization.calibration import CalibrationFeeds, ModelInput
from optcli.settings import Patterns

if TYPE_CHECKING:
    from ai_edge_quantizer.quantizer import Quantizer

_SAMPLES = 128
# What a network is quantized for; these stay in integers whatever computes them.
_LAYERS = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV")


class QuantizeLitert(Pass):
    """Quantizes a LiteRT model after training, with AI Edge Quantizer.

    `static`: weights and activations, by calibration samples. `dynamic`: weights, and activations while
    it runs. `weights`: weights alone, computed in floating point.

    Unless `operators` is given, `static` keeps divisions, and what they divide by, in floating point:
    small divisors would round to zero. So it does with kinds of operators that XNNPACK computes in
    floating point and not in 8-bit integers, such as `HARD_SWISH` and `SOFTMAX`: LiteRT's own kernels
    are slower, and each of them ends a part of the network that XNNPACK computes.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.LITERT,)
    needs: ClassVar[Needs] = Needs(("ai_edge_quantizer", "ai_edge_litert"))
    uses: ClassVar[tuple[Role, ...]] = ("calibration",)

    mode: Literal["static", "dynamic", "weights"] = Field("static", description="what is quantized")
    activation_bits: Literal[8, 16] = Field(
        8, description="with `static`: bits of activations; 16 costs speed and keeps more accuracy"
    )
    weight_bits: Literal[4, 8] = Field(8, description="bits of weights")
    operators: tuple[str, ...] = Field(
        (), description="operators to quantize, such as `CONV_2D`; default: all that can be"
    )
    ignored_operators: tuple[str, ...] = Field(
        (), description="operators to keep in floating point, such as `SOFTMAX`"
    )
    ignored_names: Patterns = Field(
        (), description="regular expressions of tensor names to keep in floating point"
    )
    whole: bool = Field(
        False,
        description="quantize also what XNNPACK lacks in integers: for chips that compute nothing else",
    )
    samples: int | None = Field(
        None, ge=1, description=f"the most calibration samples to use; default: {_SAMPLES}"
    )

    @model_validator(mode="after")
    def _only_static_reads_samples(self) -> Self:
        if self.mode != "static" and (self.samples is not None or self.activation_bits != 8):
            raise ValueError("`samples` and `activation_bits` are for `mode: static`")
        return self

    def produces(self, source: Format) -> Format:
        return Format.LITERT

    def roles(self) -> tuple[Role, ...]:
        return self.uses if self.mode == "static" else ()

    def run(self, source: Artifact, job: Job) -> Made:
        interpreter = litert_format.open(source.path)
        settled = {*litert_format.outside(interpreter)[1], *_LAYERS, "QUANTIZE", "DEQUANTIZE"}
        before = litert_format.operator_counts(source.path / litert_format.FILE)
        if litert_format.precision(before) != "fp32":
            raise StepError("the model is quantized already", hint="remove one of the two passes")
        quantizer = self._configured(source)
        facts: dict[str, Any] = {}
        ranges = None
        with raised_as(StepError, "AI Edge Quantizer cannot quantize this model"):
            if quantizer.need_calibration:
                feeds = _feeds(source, job, interpreter, self.samples or _SAMPLES)
                key = next(iter(interpreter.get_signature_list()), None)
                if key is None:
                    raise StepError(
                        "calibration needs a file with a signature, and this one has none",
                        hint="convert it again with to_litert, or set `mode: dynamic`",
                    )
                ranges = quantizer.calibrate({key: feeds}, num_threads=job.threads)
                facts["calibration_samples"] = len(feeds)
            path = job.out / litert_format.FILE
            quantizer.quantize(ranges, path, False, enable_progress_report=False)
            floats: list[str] = []
            while self._prefers_xnnpack:
                left = litert_format.outside(litert_format.open(job.out))[1]
                if not (slow := {*left} - settled - {*floats}):
                    break
                floats += sorted(slow)
                path.unlink()
                again = self._configured(source, floats)
                again.quantize(ranges, path, False, enable_progress_report=False)
            if floats:
                facts[SLOW_INTEGERS] = floats
        return Made(precision=self._precision(), facts={**facts, **_counts(job)})

    @property
    def _prefers_xnnpack(self) -> bool:
        """Whether operators that XNNPACK lacks in integers stay in floating point."""
        integers = self.mode == "static" and self.activation_bits == 8
        return integers and not self.operators and not self.whole

    def _configured(self, source: Artifact, floats: Collection[str] = ()) -> Quantizer:
        from ai_edge_quantizer import qtyping, quantizer
        from ai_edge_quantizer.algorithm_manager import AlgorithmName

        names = {each.value: each for each in qtyping.TFLOperationName}
        unknown = [each for each in (*self.operators, *self.ignored_operators) if each not in names]
        if unknown:
            known = ", ".join(sorted(set(names) - {"*"}))
            raise StepError(f"there is no operator {unknown[0]!r} to quantize", hint=f"known: {known}")
        made = quantizer.Quantizer(str(source.path / litert_format.FILE))
        for operator in self.operators or ("*",):
            kind = names[operator]
            if self.mode == "static":
                made.add_static_config(".*", kind, self.activation_bits, self.weight_bits)
            elif self.mode == "dynamic":
                made.add_dynamic_config(".*", kind, self.weight_bits)
            else:
                made.add_weight_only_config(".*", kind, self.weight_bits)
        in_floats = [
            (".*", names[each]) for each in (*self.ignored_operators, *floats) if each in names
        ]
        if self.mode == "static" and not self.operators:
            # A divisor that rounds to zero gives no number, and in integers ends the runtime.
            divisors = litert_format.divisors(source.path / litert_format.FILE)
            in_floats += [(f"(^|;){re.escape(name)}(;|$)", names["*"]) for name in divisors]
            in_floats.append((".*", names["DIV"]))
        in_floats += [(pattern, names["*"]) for pattern in self.ignored_names]
        for pattern, kind in in_floats:
            made.update_quantization_recipe(pattern, kind, algorithm_key=AlgorithmName.NO_QUANTIZE)
        return made

    def _precision(self) -> str:
        bits = f"int{self.weight_bits}"
        if self.mode == "static":
            return bits if self.activation_bits == 8 else f"{bits}-a16"
        return f"{bits}-{self.mode}"


def _feeds(source: Artifact, job: Job, interpreter: Any, samples: int) -> list[dict[str, Any]]:
    """Calibration samples as the file takes them, by the names of its signature."""
    taken, _ = litert_format.tensors(interpreter)
    by_name = {each.name: each for each in taken}
    specs = job.inputs
    named = {spec.name for spec in specs} == {*by_name}
    pairs = [
        (spec, by_name[spec.name] if named else each) for spec, each in zip(specs, taken, strict=True)
    ]
    last = source.facts.get(litert_format.CHANNELS_LAST, ())
    inputs = []
    for spec, tensor in pairs:
        fixed = (size if isinstance(size, int) else None for size in spec.shape[1:])
        inputs.append(ModelInput(spec.name, spec.dtype, (tensor.sizes[0] or 1, *fixed)))
    turned = {spec.name for spec in specs if spec.name in last}
    return [
        {
            tensor.name: feed[spec.name].transpose(0, 2, 3, 1)
            if spec.name in turned
            else feed[spec.name]
            for spec, tensor in pairs
        }
        for feed in CalibrationFeeds(job, inputs, samples)
    ]


def _counts(job: Job) -> dict[str, Any]:
    """Which operators of the result give integers. Raises `StepError` where nothing was quantized."""
    after = litert_format.operator_counts(job.out / litert_format.FILE)
    integer: dict[str, int] = {}
    for (name, kind), count in after.items():
        if kind in ("int8", "int16") and name not in ("QUANTIZE", "DEQUANTIZE"):
            integer[name] = integer.get(name, 0) + count
    return {"quantized_operators": dict(sorted(integer.items()))}
