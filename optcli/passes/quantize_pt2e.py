"""INT8 quantization of PyTorch graphs: PT2E, with torchao."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from optcli import environment
from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import OptcliError, StepError, first_line
from optcli.formats import exported as exported_format
from optcli.formats import torch as torch_format
from optcli.passes import Job, Made, Pass, Role
from optcli.passes._calibration import Feeds, ModelInput
from optcli.passes._graph_quantizers import (
    count_quantized,
    drop_unused,
    keep_single_channels,
    module_names,
    quantizer,
)
from optcli.passes._selection import matching
from optcli.passes._tracing import example, flat, trace

if TYPE_CHECKING:
    from torch.fx import GraphModule

# With these a sum of products of 8-bit integers does not saturate.
_FULL_RANGE = frozenset({"avx512_vnni", "avx_vnni", "amx_int8"})

_SAMPLES = 128


class QuantizePt2e(Pass):
    """Quantizes a PyTorch graph to INT8 after training (PT2E, torchao): made for `aot_inductor`.

    Static (ranges of activations from calibration samples) or dynamic (linear layers only, ranges found
    while it runs). The result says where integers belong; computing with them takes a compiler:
    `aot_inductor` behind this pass. Run as it is, it shows the accuracy, not the speed.
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
    quantizer: Literal["auto", "x86", "arm"] = Field(
        "auto", description="kind of CPU whose kernels decide what is quantized; `auto`: this one"
    )
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

    def attempts(self) -> tuple[Pass, ...]:
        if self.strict is not None:
            return (self,)
        return tuple(self.model_copy(update={"strict": strict}) for strict in (True, False))

    def run(self, source: Artifact, job: Job) -> Made:
        import torch

        if source.precision != "fp32":
            raise StepError(
                f"the model is {source.precision}, wanted fp32",
                hint="quantize the FP32 model that it was made from",
            )
        with torch.no_grad():
            graph = self._graph(source, job)
            ignored = matching(self.ignored_modules, module_names(graph), "ignored_modules")
            dynamic_sizes = any(spec.symbols for spec in job.inputs)
            kept = keep_single_channels(graph) if dynamic_sizes else []
            prepared = self._prepared(graph, ignored, source)
            feeds = self._calibrate(prepared, job)
            job.progress(None, "writing the quantized graph")
            quantized = self._converted(prepared)
            counts = count_quantized(quantized)
            if not counts:
                raise StepError(
                    "torchao found nothing to quantize in this model"
                    + (" (dynamic quantization is for linear layers)" if self.dynamic else ""),
                    hint="take modules out of ignored_modules, or drop the pass",
                )
            drop_unused(quantized)
            exported_format.save(trace(quantized, job, strict=bool(self.strict)), job.out)
        facts = {
            "imports": [exported_format.QUANTIZED],
            "strict": bool(self.strict),
            "quantizer": self._quantizer(),
            "reduce_range": self._reduce_range(),
            "quantized_operators": dict(sorted(counts.items())),
            **({"kept_in_fp32": dict.fromkeys(kept, "its input has one channel")} if kept else {}),
            **({"calibration_samples": feeds.samples} if feeds else {}),
        }
        return Made(precision="int8-dynamic" if self.dynamic else "int8", facts=facts)

    def _graph(self, source: Artifact, job: Job) -> GraphModule:
        if source.format == Format.EXPORTED:
            return exported_format.open(source.path).module()
        try:
            model = flat(torch_format.open(source.path), job.inputs)
            return trace(model, job, strict=bool(self.strict)).module()
        except OptcliError:
            raise
        except Exception as error:
            raise StepError(
                f"torch.export failed: {first_line(error)}",
                hint="the log shows the line of the network that it cannot follow",
            ) from error

    def _prepared(self, graph: GraphModule, ignored: set[str], source: Artifact) -> GraphModule:
        from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

        configured = quantizer(
            self._quantizer(),
            dynamic=self.dynamic,
            reduce_range=self._reduce_range(),
            per_channel=self.per_channel,
            histogram=self.method != "minmax",
            ignored=ignored,
        )
        try:
            return prepare_pt2e(graph, configured)
        except Exception as error:
            raise StepError(
                f"torchao cannot tell the layers of this graph apart: {first_line(error)}",
                hint="leave `export` out before quantize_pt2e, or set `export: {strict: true}`"
                if source.format == Format.EXPORTED
                else "set `strict: true`, or give layers that are called twice modules of their own",
            ) from error

    def _calibrate(self, prepared: GraphModule, job: Job) -> Feeds | None:
        import torch

        if self.dynamic:
            # Weights are looked at when the graph runs, whatever it runs on.
            prepared(*example(job.inputs))
            return None
        feeds = Feeds(job, _inputs(job), self.samples or _SAMPLES)
        for feed in feeds:
            prepared(*(torch.from_numpy(feed[spec.name]) for spec in job.inputs))
        return feeds

    def _converted(self, prepared: GraphModule) -> GraphModule:
        from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

        try:
            return convert_pt2e(prepared)
        except Exception as error:
            raise StepError(f"torchao cannot quantize this graph: {first_line(error)}") from error

    def _quantizer(self) -> str:
        if self.quantizer != "auto":
            return self.quantizer
        return "arm" if environment.cpu()["machine"] in ("aarch64", "arm64") else "x86"

    def _reduce_range(self) -> bool:
        if self.reduce_range is not None:
            return self.reduce_range
        return self._quantizer() == "x86" and not _FULL_RANGE.intersection(environment.cpu()["flags"])


def _inputs(job: Job) -> list[ModelInput]:
    """What the graph takes; a batch that must have several samples is calibrated with as many."""
    found = []
    for spec in job.inputs:
        first, *others = (size if isinstance(size, int) else None for size in spec.shape)
        least = spec.batch_range().min
        batch = least if first is None and least > 1 else first
        found.append(ModelInput(spec.name, spec.dtype, (batch, *others)))
    return found
