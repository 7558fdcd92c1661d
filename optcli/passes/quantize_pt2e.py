"""INT8 quantization of PyTorch graphs: PT2E, with torchao."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from optcli.artifact import RUINED_LAYERS, Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError, raised_as
from optcli.passes import Job, Made, Pass, Role
from optcli.passes._quantization import layer_errors, output_tails
from optcli.passes._quantization.calibration import CalibrationFeeds
from optcli.passes._quantization.graph_quantizers import (
    graph_inputs,
    graph_of,
    module_names,
    not_told_apart,
    quantizer,
    saturates,
    this_cpu,
    write_graph,
)
from optcli.passes._torch.networks import matching, require_fp32
from optcli.passes._torch.tracing import example

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch.fx import GraphModule

_SAMPLES = 128


class QuantizePt2e(Pass):
    """Quantizes a PyTorch graph to INT8 after training (PT2E, torchao), for a compiler behind it.

    Static (ranges of activations from calibration samples) or dynamic (linear layers only, ranges found
    while it runs). The result says where integers belong; computing with them takes a compiler behind
    this pass: `aot_inductor`, or `to_executorch` for `quantizer: xnnpack`. Run as it is, it shows the
    accuracy, not the speed.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH, Format.EXPORTED)
    needs: ClassVar[Needs] = Needs(("torch", "torchao"))
    uses: ClassVar[tuple[Role, ...]] = ("calibration",)
    device_bound: ClassVar[bool] = True

    dynamic: bool = Field(
        False, description="linear layers only, ranges of activations found at run time: no calibration"
    )
    method: Literal["histogram", "minmax"] | None = Field(
        None,
        description="ranges of activations: where a histogram's error is smallest (the default), or "
        "the extremes",
    )
    samples: int | None = Field(
        None, ge=1, description=f"the most calibration samples to use; default: {_SAMPLES}"
    )
    per_channel: bool = Field(True, description="one scale per output channel of weights; false: one")
    reduce_range: bool | None = Field(
        None,
        description="activations of 7 bits: without VNNI sums of 8-bit products saturate; default: by "
        "this CPU",
    )
    quantizer: Literal["auto", "x86", "arm", "xnnpack"] = Field(
        "auto",
        description="whose kernels decide what is quantized: those of Inductor for a kind of CPU "
        "(`auto`: this one), or XNNPACK's, for `to_executorch` behind this pass",
    )
    output_tail: output_tails.OutputTail = "float"
    least_layer_sqnr: layer_errors.LeastSqnr = layer_errors.LEAST_SQNR_DB
    ignored_modules: tuple[str, ...] = Field(
        (), description="modules to keep in floating point: names or patterns such as `layer4.*`"
    )
    strict: bool | None = Field(
        None,
        description="trace Python bytecode (true) or run the code (false); default: trace it, which "
        "tells calls of a shared module apart, and run the code where that fails",
    )

    @model_validator(mode="after")
    def _dynamic_reads_no_samples(self) -> Self:
        for name in ("method", "samples"):
            if self.dynamic and getattr(self, name) is not None:
                raise ValueError(f"`{name}` is for calibration, which `dynamic: true` does without")
        return self

    def produces(self, source: Format) -> Format:
        return Format.EXPORTED

    def roles(self) -> tuple[Role, ...]:
        return () if self.dynamic else self.uses

    def requires(self) -> Needs:
        if self.quantizer != "xnnpack":
            return self.needs
        return Needs((*self.needs.packages, "executorch"))

    def run(self, source: Artifact, job: Job) -> Made:
        import torch

        require_fp32(source)
        with torch.no_grad():
            inductor = self.quantizer != "xnnpack"
            traced = graph_of(source, job, self.strict, self.output_tail, inductor=inductor)
            ignored = matching(self.ignored_modules, module_names(traced.graph), "ignored_modules")
            prepared = self._prepared(traced.graph, ignored, source)
            feeds = self._calibrate(prepared, job)
            ruined: dict[str, float] = {}
            if feeds and self.least_layer_sqnr is not None:
                tensors = (_tensors(feed, job) for feed in feeds)
                ruined = layer_errors.keep_ruined_in_floats(prepared, tensors, self.least_layer_sqnr)
            counts = write_graph(self._converted(prepared), job)
        facts = {
            **traced.facts,
            "quantizer": self._quantizer(),
            "reduce_range": self._reduce_range(),
            "quantized_operators": counts,
            RUINED_LAYERS: ruined,
            **({"calibration_samples": feeds.samples} if feeds else {}),
        }
        return Made(precision="int8-dynamic" if self.dynamic else "int8", facts=facts)

    def _prepared(self, graph: GraphModule, ignored: set[str], source: Artifact) -> GraphModule:
        from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

        configured = quantizer(
            self._quantizer(),
            ignored,
            reduce_range=self._reduce_range(),
            dynamic=self.dynamic,
            per_channel=self.per_channel,
            histogram=self.method != "minmax",
        )
        try:
            return prepare_pt2e(graph, configured)
        except Exception as error:
            raise not_told_apart(source, error) from error

    def _calibrate(self, prepared: GraphModule, job: Job) -> CalibrationFeeds | None:
        if self.dynamic:
            # Weights are looked at when the graph runs, whatever it runs on.
            prepared(*example(job.inputs))
            return None
        feeds = CalibrationFeeds(job, graph_inputs(job), self.samples or _SAMPLES)
        for feed in feeds:
            prepared(*_tensors(feed, job))
        return feeds

    def _converted(self, prepared: GraphModule) -> GraphModule:
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

        with raised_as(StepError, "torchao cannot quantize this graph"):
            return convert_pt2e(prepared)

    def _quantizer(self) -> str:
        return this_cpu() if self.quantizer == "auto" else self.quantizer

    def _reduce_range(self) -> bool:
        if self.reduce_range is not None:
            return self.reduce_range
        return saturates(self._quantizer())


def _tensors(feed: dict[str, np.ndarray], job: Job) -> tuple[torch.Tensor, ...]:
    import torch

    return tuple(torch.from_numpy(feed[spec.name]) for spec in job.inputs)
