"""LiteRT, once TensorFlow Lite: for Android, iOS, Raspberry Pi and other small boards."""

from __future__ import annotations

import os
from typing import ClassVar, Literal

from pydantic import Field

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError, raised_as
from optcli.models.formats import exported as exported_format
from optcli.models.formats import litert as litert_format
from optcli.passes import Job, Made, Pass
from optcli.passes._torch.networks import network
from optcli.passes._torch.tracing import IMPORTS_AHEAD, example, flat, plain_attention
from optcli.settings import TensorSpec


class ToLitert(Pass):
    """Converts a PyTorch network to a LiteRT model (`.tflite`).

    A LiteRT file has fixed sizes, and so one batch size. The runner computes larger batches piece by
    piece. Inputs and outputs keep the recipe's names, as the file's signature.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH, Format.EXPORTED)
    needs: ClassVar[Needs] = Needs(("torch", "litert_torch", "ai_edge_litert"))
    tolerance: ClassVar[float | None] = 1e-3
    computes_on_one_core: ClassVar[bool] = True
    imports_ahead: ClassVar[tuple[str, ...]] = IMPORTS_AHEAD

    batch_size: int | None = Field(
        None, ge=1, description="batch size of the file; default: the smallest that the recipe has"
    )
    layout: Literal["nchw", "nhwc"] = Field(
        "nchw",
        description="order of images in the file: `nhwc` takes them as cameras and Android give them; "
        "data of the recipe stay as they are",
    )

    def produces(self, source: Format) -> Format:
        return Format.LITERT

    def run(self, source: Artifact, job: Job) -> Made:
        import torch

        specs = [self._fixed(spec) for spec in job.inputs]
        turned = [
            place for place, spec in enumerate(specs) if self.layout == "nhwc" and len(spec.shape) == 4
        ]
        if source.format == Format.EXPORTED:
            program = exported_format.open(source.path, trust=source.trusted)
            model = program.module(check_guards=False)
        else:
            model = flat(network(source), job.inputs)
        samples = list(example(specs))
        hint = "the log names the operator and the line of the network that calls it"
        with raised_as(StepError, "LiteRT's converter failed", hint=hint):
            import litert_torch

            if turned:
                model = litert_torch.to_channel_last_io(model, args=turned)
                for place in turned:
                    samples[place] = samples[place].permute(0, 2, 3, 1).contiguous()
            with torch.no_grad(), plain_attention():
                converted = litert_torch.convert(model, tuple(samples))
            converted.export(os.fspath(job.out / litert_format.FILE))
        names = [spec.name for spec in specs]
        litert_format.rename(job.out, names, source.facts["outputs"])
        facts = {"batch_size": _batch(specs), "layout": self.layout}
        return Made(facts={**facts, litert_format.CHANNELS_LAST: [names[place] for place in turned]})

    def _fixed(self, spec: TensorSpec) -> TensorSpec:
        """The input with its batch size as a number. Raises `StepError` for other sizes that vary."""
        shape: list[int] = []
        for size in spec.shape:
            if isinstance(size, int):
                shape.append(size)
            elif size == spec.batch_symbol:
                shape.append(self.batch_size or spec.ranges[size].min)
            else:
                raise StepError(
                    f"a LiteRT file has fixed sizes, and {size} of {spec.name!r} varies",
                    hint=f"write a number in place of {size} under `inputs:`",
                )
        return spec.model_copy(update={"shape": tuple(shape), "ranges": {}})


def _batch(specs: list[TensorSpec]) -> int:
    """The batch size of fixed inputs."""
    return next((size for spec in specs for size in spec.shape[:1] if isinstance(size, int)), 1)
