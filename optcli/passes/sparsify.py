"""Sparsity without smaller layers: two of every four weights become zero."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError
from optcli.models.formats import torch as torch_format
from optcli.models.formats import torch_modules
from optcli.passes import Job, Made, Pass
from optcli.passes._torch.networks import matching, network, within

if TYPE_CHECKING:
    import torch

_GROUP = 4


class Sparsify(Pass):
    """Sets the smaller two of every four weights to zero, along the input channels (the pattern 2:4).

    NVIDIA GPUs from Ampere on compute that faster with TensorRT's sparse kernels. Shapes, file size
    and, on CPUs, speed stay as they are: to be faster on a CPU, use `prune`. Nothing is trained here:
    `finetune` after it keeps the zeros and brings accuracy back.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH,)
    needs: ClassVar[Needs] = Needs(("torch",))

    keep: tuple[str, ...] = Field(
        (), description="modules to leave as they are: names or patterns such as `head*`"
    )

    def run(self, source: Artifact, job: Job) -> Made:
        import torch

        model = network(source)
        weights = dict(self._weights(model))
        if not weights:
            raise StepError(
                "no weight can be made sparse: wanted layers that `keep` does not name, with FP32 "
                "weights and input channels by fours",
                hint="shorten keep, or put sparsify before passes that quantize",
            )
        with torch.no_grad():
            for index, (name, weight) in enumerate(weights.items()):
                job.progress(index / len(weights), name)
                weight.mul_(_two_of_four(weight))
        description = torch_format.read(source.path)
        torch_format.save(model, job.out, description, source.path / torch_format.CODE)
        job.warn("zeros make no CPU runtime faster, see the measured speed-up; to be faster, use prune")
        return Made(facts={"sparsity": self._facts(model, weights)})

    def _weights(self, model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The matrices and filters that may be thinned out, each once, by the parameter's name."""
        import torch

        modules = dict(torch_modules.named_modules(model))
        kept = matching(self.keep, filter(None, modules), "keep")
        kinds = (torch.nn.Linear, torch.nn.modules.conv._ConvNd, torch.nn.MultiheadAttention)
        for name, parameter in torch_modules.named_parameters(model):
            module, _, own = name.rpartition(".")
            if not isinstance(modules[module], kinds) or own not in ("weight", "in_proj_weight"):
                continue
            if within(module, kept):
                continue
            if getattr(modules[module], "transposed", False) or parameter.shape[1] % _GROUP:
                continue
            if parameter.dtype == torch.float32:
                yield name, parameter

    def _facts(self, model: torch.nn.Module, weights: dict[str, torch.nn.Parameter]) -> dict[str, Any]:
        shares = {name: float((weight == 0).float().mean()) for name, weight in weights.items()}
        zeros = sum(int((value == 0).sum()) for value in torch_modules.parameters(model))
        layers = [
            n for n, v in torch_modules.named_parameters(model) if v.ndim > 1 and n not in weights
        ]
        return {
            "pattern": "2:4",
            "share_of_all_parameters": zeros
            / sum(value.numel() for value in torch_modules.parameters(model)),
            "layers": shares,
            "left_dense": layers,
        }


def _two_of_four(weight: torch.Tensor) -> torch.Tensor:
    """1 at the two largest of every four along the input channels, 0 at the others.

    That is the pattern of TensorRT's `SPARSE_WEIGHTS`: for `[out, in, ...]` four neighbours in `in`.
    """
    import torch

    last = weight.movedim(1, -1)
    fours = last.reshape(*last.shape[:-1], -1, _GROUP)
    largest = torch.argsort(fours.abs(), dim=-1, stable=True)[..., _GROUP // 2 :]
    mask = torch.zeros_like(fours).scatter_(-1, largest, 1.0)
    return mask.reshape(last.shape).movedim(-1, 1)
