"""Weight-only quantization: INT8 or INT4 weights, computed in floating point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from optcli.artifact import Artifact, Format
from optcli.errors import StepError, raised_as
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import openvino as openvino_format
from optcli.models.onnx_graphs.graph import constant, maker, read
from optcli.models.onnx_graphs.protobuf import precision_of
from optcli.passes import Job, Made, Pass
from optcli.passes._onnx.models import PER_CHANNEL_OPSET, modern, require_floats
from optcli.passes._quantization.nncf_of_graphs import quiet
from optcli.passes._torch.networks import matching, quantize_layers, require_fp32

if TYPE_CHECKING:
    from onnx import ModelProto
    from openvino import Model

_FOUR_BIT_GROUP = 64


class WeightsOnly(Pass):
    """Keeps weights in 8 or 4 bits and computes in floating point: smaller files, less memory traffic.

    For models whose weights outweigh their activations: transformers at small batch sizes. A network of
    convolutions gets smaller, not faster. ONNX and OpenVINO models with NNCF; PyTorch networks with
    torchao (8 bits, linear layers).
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH, Format.ONNX, Format.OPENVINO)
    needs_of_source: ClassVar[Mapping[Format, tuple[str, ...]]] = {
        Format.TORCH: ("torch", "torchao"),
        Format.ONNX: ("nncf", "onnx", "onnx_ir", "openvino"),
        Format.OPENVINO: ("nncf", "onnx", "openvino"),
    }

    bits: Literal[8, 4] = Field(
        8, description="bits of a weight; with 4, the last linear layer and other layers get 8"
    )
    symmetric: bool = Field(True, description="zero stays zero; false: a zero point for each scale")
    group_size: int | None = Field(
        None,
        ge=2,
        description="weights that share a scale; default: an output channel of 8 bits, "
        f"{_FOUR_BIT_GROUP} of 4",
    )
    four_bit_ratio: float | None = Field(
        None,
        gt=0,
        le=1,
        description="share of the weights in 4 bits, the most sensitive layers keep 8; default: all",
    )
    ignored_names: tuple[str, ...] = Field(
        (),
        description="layers to keep in floating point: modules, or nodes of ONNX and OpenVINO, by name "
        "or pattern such as `encoder.*`",
    )

    @model_validator(mode="after")
    def _ratio_is_for_four_bits(self) -> Self:
        if self.four_bit_ratio is not None and self.bits == 8:
            raise ValueError("`four_bit_ratio` needs `bits: 4`")
        return self

    def run(self, source: Artifact, job: Job) -> Made:
        if source.format == Format.ONNX:
            return self._run_onnx(source, job)
        require_fp32(source)
        if source.format == Format.TORCH:
            return self._run_torch(source, job)
        return self._run_openvino(source, job)

    def _run_torch(self, source: Artifact, job: Job) -> Made:
        if self.bits == 4 or not self.symmetric:
            raise StepError(
                "torchao keeps weights of 4 bits in bytes on CPUs, which saves nothing"
                if self.bits == 4
                else "torchao's 8-bit weights are symmetric",
                hint="put to_openvino before weights_only, or set `bits: 8` and `symmetric: true`",
            )
        return quantize_layers(
            source, job, "weights", (), self.ignored_names, group_size=self.group_size
        )

    def _run_onnx(self, source: Artifact, job: Job) -> Made:
        require_floats(source.precision)
        if self.bits == 4 and not self.symmetric:
            raise StepError(
                "ONNX Runtime does not read the 4-bit zero points that NNCF writes",
                hint="set `symmetric: true`, or put to_openvino before weights_only",
            )
        why = "older ones know no scale per channel"
        model = modern(onnx_format.open(source.path), PER_CHANNEL_OPSET, job, why, full_precision=True)
        nodes = [node.name for node in model.graph.node]
        compressed = self._compress(model, matching(self.ignored_names, nodes, "ignored_names"))
        _mend(compressed)
        onnx_format.save(compressed, job.out)
        return self._made(precision_of(compressed), _count_onnx(compressed), job)

    def _run_openvino(self, source: Artifact, job: Job) -> Made:
        model = openvino_format.open(source.path)
        nodes = [node.get_friendly_name() for node in model.get_ops()]
        compressed = self._compress(model, matching(self.ignored_names, nodes, "ignored_names"))
        openvino_format.save(compressed, job.out)
        return self._made(openvino_format.precision(compressed), _count_openvino(compressed), job)

    def _compress(self, model: Any, ignored: set[str]) -> Any:
        openvino_format.forbid_telemetry()
        import nncf

        kind = "SYM" if self.symmetric else "ASYM"
        options: dict[str, Any] = {}
        if self.bits == 4:
            options = {
                "group_size": self.group_size or _FOUR_BIT_GROUP,
                "ratio": self.four_bit_ratio or 1.0,
            }
        elif self.group_size is not None:
            raise StepError(
                "NNCF gives 8-bit weights one scale per output channel",
                hint="leave group_size out, or set `bits: 4`",
            )
        if ignored:
            options["ignored_scope"] = nncf.IgnoredScope(names=sorted(ignored), validate=False)
        hint = "try another group_size, or keep the layer with ignored_names"
        with raised_as(StepError, "NNCF failed", hint=hint), quiet():
            mode = nncf.CompressWeightsMode[f"INT{self.bits}_{kind}"]
            return nncf.compress_weights(model, mode=mode, **options)

    def _made(self, precision: str | None, counts: Counter[str], job: Job) -> Made:
        if not counts or precision is None:
            raise StepError(
                "NNCF found no weights to quantize in this model",
                hint="take fewer layers out with ignored_names, or drop the pass",
            )
        if self.bits == 4 and precision == "int8-weights":
            job.warn("no layer got 4 bits: convolutions and the last linear layer have 8")
        return Made(precision=precision, facts={"quantized_weights": dict(sorted(counts.items()))})


def _mend(model: ModelProto) -> None:
    """Correct what NNCF 3.4 writes, so that it is as ONNX defines it.

    A scale per channel is a row of numbers, not [channels, 1, 1]; blocks lie along the dimension that
    has fewer scales than weights, not along the first; the domain of MatMulNBits is named.
    """
    from onnx import helper

    named = {entry.domain for entry in model.opset_import}
    for domain in {node.domain for node in model.graph.node} - named - {"", "ai.onnx"}:
        model.opset_import.append(helper.make_opsetid(domain, 1))
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "DequantizeLinear" or node.input[0] not in tensors:
            continue
        attributes = {each.name: each for each in node.attribute}
        weight, *scales = (tensors[name] for name in node.input)
        if "block_size" in attributes and attributes["block_size"].i:
            pairs = zip(weight.dims, scales[0].dims, strict=True)
            attributes["axis"].i = next(i for i, (all_, few) in enumerate(pairs) if all_ != few)
            continue
        for tensor in scales:
            long = [size for size in tensor.dims if size > 1]
            if len(tensor.dims) > 1 and len(long) <= 1:
                del tensor.dims[:]
                tensor.dims.extend(long or [1])


def _count_onnx(model: ModelProto) -> Counter[str]:
    """How many operators read integer weights, by their type and the weights' bits."""
    counts: Counter[str] = Counter()
    for node in read(model).graph:
        if node.op_type == "MatMulNBits":
            counts["MatMul int4"] += 1
        for value in node.inputs:
            back = maker(value, "DequantizeLinear")
            weights = constant(back.inputs[0]) if back is not None else None
            if weights is not None:
                counts[f"{node.op_type} int{4 if weights.dtype.bitwidth == 4 else 8}"] += 1
    return counts


def _count_openvino(model: Model) -> Counter[str]:
    """How many weights there are in integers, by their bits."""
    return Counter(
        "int4" if kind.endswith("4") else "int8" for kind in openvino_format.integer_weights(model)
    )
