"""TorchScript from PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError, raised_as
from optcli.models.formats import torch_devices, torch_modules
from optcli.models.formats import torchscript as torchscript_format
from optcli.models.formats.torch_calls import example_inputs, flatten_outputs
from optcli.passes import Job, Made, Pass
from optcli.passes._on_gpu import needs_of
from optcli.passes._torch.networks import network
from optcli.passes._torch.tracing import flat, plain_attention
from optcli.settings import batch_range

if TYPE_CHECKING:
    import torch

_DEPRECATED = (
    "PyTorch calls torch.jit deprecated: TorchScript is for servers that need it; "
    "`aot_inductor` and `torch_compile` take its place"
)


class Torchscript(Pass):
    """Makes a network TorchScript: a file that torch runs, in C++ too, without your Python code.

    PyTorch has deprecated it and points to `torch_compile` and `aot_inductor`. Sizes stay dynamic.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH,)
    needs: ClassVar[Needs] = Needs(("torch",))
    tolerance: ClassVar[float | None] = 1e-4

    device: Literal["cpu", "cuda"] = Field(
        "cpu",
        description="where it is traced; the file then always makes the network's own tensors there",
    )
    method: Literal["trace", "script"] = Field(
        "trace",
        description="record what one run does, or translate the code, which keeps `if` and loops that "
        "depend on the input",
    )
    freeze: bool = Field(
        True, description="make weights constants and fold batch norms into convolutions"
    )
    optimize_for_inference: bool = Field(
        False,
        description="let torch use its fastest operators for this CPU; done anew at each loading, "
        "since torch cannot save the result",
    )

    @model_validator(mode="after")
    def _frozen_first(self) -> Self:
        if self.optimize_for_inference and not self.freeze:
            raise ValueError("optimize_for_inference works on frozen networks: leave freeze on")
        return self

    def produces(self, source: Format) -> Format:
        return Format.TORCHSCRIPT

    def requires(self) -> Needs:
        return needs_of(self.device, self.needs)

    def run(self, source: Artifact, job: Job) -> Made:
        import torch

        job.warn(_DEPRECATED)
        torch_devices.require(job.device)
        model = network(source, eager=True)
        decisions = 0
        other = "script" if self.method == "trace" else "trace"
        hint = f"set `method: {other}`; the log shows the line of the network that it cannot follow"
        with (
            raised_as(StepError, f"torch.jit.{self.method} failed", hint=hint),
            torchscript_format.quiet(),
            torch.no_grad(),
            plain_attention(),
        ):
            if self.method == "script":
                scripted = torch.jit.script(torch_modules.on(model, job.device))
            else:
                scripted, decisions = _traced(model, job)
            if self.freeze:
                scripted = torch.jit.freeze(scripted.eval())
        torchscript_format.save(scripted, job.out)
        return Made(
            facts={
                "method": self.method,
                "frozen": self.freeze,
                "optimize_for_inference": self.optimize_for_inference,
                # What tracing found to depend on the input's values and made constant.
                "fixed_decisions": decisions,
                **({torch_devices.FACT: job.device} if job.device != torch_devices.CPU else {}),
            }
        )


def _traced(model: torch.nn.Module, job: Job) -> tuple[torch.jit.ScriptModule, int]:
    """The network traced at batch size 2: at 1 torch would take the batch for a constant of 1.

    Also how many choices of its code the trace made constant. Raises `StepError` where one of them
    was the batch.
    """
    import torch

    flattened, span = flat(model, job.inputs).to(job.device), batch_range(job.inputs)
    size = max(span.min, min(2, span.max))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", torch.jit.TracerWarning)
        traced = torch.jit.trace(flattened, _feed(job, size), check_trace=False)
    fixed = sum(issubclass(each.category, torch.jit.TracerWarning) for each in heard)
    other = size + 1 if size < span.max else span.min
    if other != size and _shapes(traced, job, other) != _shapes(flattened, job, other):
        raise StepError(
            f"the trace holds at batch size {size} alone: the network's code turns it into a constant",
            hint="set `method: script`, or let forward() use x.shape[0] and not int(x.shape[0])",
        )
    return traced, fixed


def _feed(job: Job, size: int) -> tuple[torch.Tensor, ...]:
    feed = example_inputs(job.inputs, size)
    return tuple(feed[spec.name].to(job.device) for spec in job.inputs)


def _shapes(model: Callable[..., Any], job: Job, size: int) -> list[tuple[int, ...]] | None:
    """The shapes of the outputs at a batch size; None where it does not run."""
    try:
        return [tuple(value.shape) for value in flatten_outputs(model(*_feed(job, size))).values()]
    except RuntimeError:
        return None
