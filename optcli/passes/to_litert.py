"""LiteRT, once TensorFlow Lite: for Android, iOS, Raspberry Pi and other small boards."""

from __future__ import annotations

import os
from functools import partial
from typing import ClassVar, Literal

from pydantic import Field

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.models.formats import litert as litert_format
from optcli.passes import Job, Made, Pass
from optcli.passes._torch.networks import by_layer, function_of
from optcli.passes._torch.tracing import (
    IMPORTS_AHEAD,
    example,
    fixed,
    following,
    plain_attention,
    program_of,
)
from optcli.settings import batch_range


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

        specs = fixed(job.inputs, self.batch_size, "LiteRT")
        turned = [
            place for place, spec in enumerate(specs) if self.layout == "nhwc" and len(spec.shape) == 4
        ]
        model = function_of(source, job.inputs)
        samples = list(example(specs))
        hint = "write this part of the network with other operators; the log has the converter's words"
        trace = partial(program_of, model, tuple(samples))
        with by_layer("LiteRT's converter failed", trace, hint):
            import litert_torch

            if turned:
                model = litert_torch.to_channel_last_io(model, args=turned)
                for place in turned:
                    samples[place] = samples[place].permute(0, 2, 3, 1).contiguous()
            with torch.no_grad(), plain_attention(), following():
                converted = litert_torch.convert(model, tuple(samples))
            converted.export(os.fspath(job.out / litert_format.FILE))
        names = [spec.name for spec in specs]
        litert_format.rename(job.out, names, source.facts["outputs"])
        facts = {"batch_size": batch_range(specs).opt, "layout": self.layout}
        return Made(facts={**facts, litert_format.CHANNELS_LAST: [names[place] for place in turned]})
