"""Dynamic INT8 quantization: ranges of activations are found while the model runs."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from optcli import environment
from optcli.artifact import OUTPUT_TAIL, Artifact, Format
from optcli.errors import StepError, counted, raised_as
from optcli.models.formats import onnx as onnx_format
from optcli.models.onnx_graphs.graph import drop_notes_of_weights
from optcli.models.onnx_graphs.operators import DYNAMIC, PRODUCT_OF, PRODUCTS
from optcli.passes import Job, Made, Pass
from optcli.passes._onnx.models import PER_CHANNEL_OPSET, modern, prepared, quiet, require_floats
from optcli.passes._quantization import output_tails
from optcli.passes._torch.networks import matching, quantize_layers

if TYPE_CHECKING:
    from onnx import ModelProto


class QuantizeDynamic(Pass):
    """Quantizes linear layers to INT8 without calibration: activations are scaled as they come.

    For transformers; convolutions stay in floating point. In ONNX with ONNX Runtime's quantizer; in
    PyTorch with torchao, which takes `torch_compile` behind it to be fast, or with PyTorch's own older
    modules (`engine: eager`), which are fast as they are.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH, Format.ONNX)
    needs_of_source: ClassVar[Mapping[Format, tuple[str, ...]]] = {
        Format.TORCH: ("torch", "torchao"),
        Format.ONNX: ("onnx", "onnxruntime"),
    }
    device_bound: ClassVar[bool] = True

    engine: Literal["torchao", "eager"] | None = Field(
        None,
        description="what quantizes a torch network: torchao (the default), or `eager`: torch.ao",
    )
    per_channel: bool = Field(True, description="one scale per output channel of weights; false: one")
    names: tuple[str, ...] = Field(
        (),
        description="layers to quantize, no others: modules or ONNX nodes, names or patterns such as "
        "`encoder.*`",
    )
    ignored_names: tuple[str, ...] = Field(
        (), description="layers to keep in floating point: names or patterns"
    )
    output_tail: output_tails.OutputTail = "float"
    types: tuple[Literal["MatMul", "Conv"], ...] = Field(
        (), description="operator types to quantize, of ONNX models; default: MatMul, Gemm with it"
    )
    reduce_range: bool | None = Field(
        None,
        description="weights of 7 bits, of ONNX models: without VNNI sums of 8-bit products saturate; "
        "default: by this CPU",
    )

    @model_validator(mode="after")
    def _options_of_one_format(self) -> Self:
        if self.engine is not None and (self.types or self.reduce_range is not None):
            raise ValueError("`engine` is for torch networks, `types` and `reduce_range` for ONNX")
        return self

    def run(self, source: Artifact, job: Job) -> Made:
        if source.format == Format.ONNX:
            return self._run_onnx(source, job)
        return quantize_layers(
            source,
            job,
            "dynamic",
            self.names,
            self.ignored_names,
            engine=self.engine or "torchao",
            per_channel=self.per_channel,
        )

    def _run_onnx(self, source: Artifact, job: Job) -> Made:
        require_floats(source.precision)
        with tempfile.TemporaryDirectory(dir=job.work_folder) as folder, quiet():
            work = Path(folder)
            why = "older ones know no scale per channel"
            model = modern(
                onnx_format.open(source.path), PER_CHANNEL_OPSET, job, why, full_precision=True
            )
            model = prepared(model, work / "prepared", job)
            # The quantizer turns weights round and trips over the shapes that were noted for them.
            drop_notes_of_weights(model)
            onnx_format.save(model, work / "prepared")
            tail = self._float_tail(model)
            self._quantize(work / "prepared", model, tail, job)
        quantized = onnx_format.outline(job.out)
        operators = Counter(node.op_type for node in quantized.graph.node)
        products = DYNAMIC & PRODUCT_OF.keys()
        counts = Counter(PRODUCT_OF[kind] for kind in operators.elements() if kind in products)
        if not counts:
            raise StepError(
                f"ONNX Runtime found no {' or '.join(self._types())} with constant weights to quantize",
                hint="a network of convolutions takes static quantization: quantize_onnxruntime",
            )
        convolutions = operators["Conv"]
        if convolutions:
            job.warn(
                f"{counted(convolutions, 'convolution stays', 'convolutions stay')} in fp32: dynamic"
                " quantization does not pay there"
            )
        facts: dict[str, Any] = {
            "engine": "onnxruntime",
            "reduce_range": self._reduce_range(),
            "quantized_operators": dict(sorted(counts.items())),
            OUTPUT_TAIL: tail,
            **({"kept_in_fp32": {"Conv": convolutions}} if convolutions else {}),
        }
        return Made(precision="int8-dynamic", facts=facts)

    def _float_tail(self, model: ModelProto) -> list[str]:
        """The products of the output tail that stay in floating point: those that are not named."""
        nodes = {node.name: node.op_type for node in model.graph.node}
        named = matching(self.names, nodes, "names")
        tail = output_tails.in_onnx(model) if self.output_tail == "float" else []
        return [name for name in tail if nodes[name] in PRODUCTS and name not in named]

    def _quantize(self, folder: Path, model: ModelProto, tail: list[str], job: Job) -> None:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        nodes = {node.name: node.op_type for node in model.graph.node}
        names = matching(self.names, nodes, "names")
        ignored = {*tail} | matching(self.ignored_names, nodes, "ignored_names")
        if names and not names - ignored:
            raise StepError(
                "every layer in `names` is in `ignored_names` too", hint="shorten one of the lists"
            )
        for chosen in (names, ignored):
            # What the quantizer calls the product that it takes out of a Gemm before it looks at names.
            chosen |= {f"{name}_MatMul" for name in chosen if nodes[name] == "Gemm"}
        job.progress(None, "quantizing")
        hint = "keep the nodes that it fails on in floating point, with `ignored_names`"
        with raised_as(StepError, "ONNX Runtime's quantizer failed", hint=hint):
            quantize_dynamic(
                folder / onnx_format.FILE,
                job.out / onnx_format.FILE,
                op_types_to_quantize=self._types(),
                per_channel=self.per_channel,
                reduce_range=self._reduce_range(),
                weight_type=QuantType.QInt8,
                nodes_to_quantize=sorted(names - ignored),
                nodes_to_exclude=sorted(ignored),
                use_external_data_format=onnx_format.bytes_in(folder) > onnx_format.ONE_FILE_BYTES,
            )

    def _types(self) -> list[str]:
        return list(self.types) or ["MatMul"]

    def _reduce_range(self) -> bool:
        if self.reduce_range is not None:
            return self.reduce_range
        return environment.sums_saturate(environment.isa())
