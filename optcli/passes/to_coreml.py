"""Core ML: for iPhones, iPads and Macs."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError
from optcli.models.formats import coreml as coreml_format
from optcli.models.formats.torch_calls import flatten_outputs
from optcli.passes import Job, Made, Pass
from optcli.passes._torch.networks import by_layer, function_of, require_fp32
from optcli.passes._torch.tracing import IMPORTS_AHEAD, example, fixed, plain_attention, program_of
from optcli.settings import TensorSpec, batch_range

if TYPE_CHECKING:
    import torch

# What Core ML takes for the element types of recipes.
_DTYPES = {"float32": "float32", "float16": "float16", "int32": "int32", "int64": "int32"}


class ToCoreml(Pass):
    """Converts a PyTorch network to a Core ML model (`.mlpackage`).

    Every system converts, and macOS alone runs the result: elsewhere a build reports it as built, and
    `optcli verify-accuracy --predictions` judges what a Mac or a phone answered. The file has fixed
    sizes, and so one batch size, which the Neural Engine wants. Inputs and outputs keep the recipe's
    names. For smaller weights put `quantize_coreml` behind it.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH, Format.EXPORTED)
    needs: ClassVar[Needs] = Needs(("torch", "coremltools"))
    imports_ahead: ClassVar[tuple[str, ...]] = IMPORTS_AHEAD

    precision: Literal["fp16", "fp32"] = Field(
        "fp16",
        description="what the network computes in; `fp32` keeps it off the Neural Engine",
    )
    target: Literal["iOS15", "iOS16", "iOS17", "iOS18"] = Field(
        "iOS17",
        description="the oldest system that must run it, with macOS and the others of that year; "
        "`quantize_coreml` does more for newer ones",
    )
    batch_size: int | None = Field(
        None, ge=1, description="batch size of the file; default: the smallest that the recipe has"
    )

    def produces(self, source: Format) -> Format:
        return Format.COREML

    def run(self, source: Artifact, job: Job) -> Made:
        require_fp32(source)
        specs = fixed(job.inputs, self.batch_size, "Core ML")
        for spec in specs:
            if spec.dtype not in _DTYPES:
                raise StepError(
                    f"Core ML takes no {spec.dtype}, which is what the input {spec.name!r} is",
                    hint=f"take {', '.join(_DTYPES)}, and convert inside the network",
                )
        model = function_of(source, job.inputs)
        samples = example(specs)
        hint = "write this part of the network with other operators; the log has the converter's words"
        with by_layer("Core ML's converter failed", partial(program_of, model, samples), hint):
            if source.format == Format.EXPORTED:  # TorchScript traces no sizes that vary
                model = program_of(model, samples).module(check_guards=False)
            converted = self._converted(model, samples, specs, source.facts["outputs"])
            coreml_format.save(converted, job.out)
        facts = {"batch_size": batch_range(specs).opt, "target": self.target}
        return Made(precision=self.precision, facts=facts)

    def _converted(
        self,
        model: torch.nn.Module,
        samples: tuple[torch.Tensor, ...],
        specs: list[TensorSpec],
        outputs: list[str],
    ) -> Any:
        import coremltools
        import numpy as np
        import torch

        with torch.no_grad(), plain_attention():
            traced = torch.jit.trace(model, samples, check_trace=False)
            given = flatten_outputs(traced(*samples)).values()
        # Its own choice for networks in half precision is half precision outside as well.
        kinds = [np.float32 if each.is_floating_point() else None for each in given]
        return coremltools.convert(
            traced,
            inputs=[
                coremltools.TensorType(spec.name, spec.shape, np.dtype(_DTYPES[spec.dtype]).type)
                for spec in specs
            ],
            outputs=[
                coremltools.TensorType(name, dtype=kind)
                for name, kind in zip(outputs, kinds, strict=True)
            ],
            convert_to="mlprogram",
            compute_precision=coremltools.precision[f"FLOAT{self.precision[2:]}"],
            minimum_deployment_target=coremltools.target[self.target],
            skip_model_load=True,
        )
