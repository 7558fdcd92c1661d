"""The memory layout that convolutions like best on CPUs."""

from __future__ import annotations

from typing import ClassVar

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.models.formats import torch as torch_format
from optcli.models.formats import torch_modules
from optcli.passes import Job, Made, Pass
from optcli.passes._torch.networks import require_uncompiled


class ChannelsLast(Pass):
    """Keeps images and convolution weights with their channels last in memory, in PyTorch.

    Nothing else changes: shapes are the same, and so are results up to rounding. Convolutions become
    faster. The pass leaves a network without convolutions as it was, and says so.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH,)
    needs: ClassVar[Needs] = Needs(("torch",))
    tolerance: ClassVar[float | None] = 1e-4

    def produces(self, source: Format) -> Format:
        return Format.TORCH

    def run(self, source: Artifact, job: Job) -> Made:
        import torch

        require_uncompiled(source)
        description = torch_format.read(source.path).after({"name": "channels_last"})
        model = torch_format.open(source.path).to(memory_format=torch.channels_last)
        convolutions = sum(
            isinstance(module, torch.nn.Conv2d | torch.nn.ConvTranspose2d)
            for module in torch_modules.modules(model)
        )
        if not convolutions:
            job.warn("the network has no convolutions over images: channels_last changes nothing")
        torch_format.save(model, job.out, description, source.path / torch_format.CODE)
        return Made(facts={"channels_last": True, "convolutions": convolutions})
