"""Sparsity without smaller layers: the least weights become zero."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

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
    """Sets the smallest weights to zero; shapes, file size and, on CPUs, speed stay as they are.

    `unstructured` takes any weight: for study, for compression by other tools, and as a step of
    training. `2:4` leaves two of every four along the input channels, which NVIDIA GPUs from Ampere
    on compute faster with TensorRT's sparse kernels. Nothing is trained here: `finetune` after it
    keeps the zeros and brings accuracy back. To be faster on a CPU, use `prune`.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH,)
    needs: ClassVar[Needs] = Needs(("torch",))

    pattern: Literal["unstructured", "2:4"] = Field(
        "unstructured", description="which weights may go: any, or two of every four input channels"
    )
    ratio: float = Field(0.5, gt=0, lt=1, description="share of the weights that become zero")
    global_ranking: bool = Field(
        False, description="rank the weights of all layers together instead of layer by layer"
    )
    keep: tuple[str, ...] = Field(
        (), description="modules to leave as they are: names or patterns such as `head*`"
    )

    @model_validator(mode="after")
    def _the_pattern_decides(self) -> Self:
        if self.pattern == "2:4" and self.ratio != 0.5:
            raise ValueError("`pattern: 2:4` makes half of the weights zero: leave out `ratio`")
        if self.pattern == "2:4" and self.global_ranking:
            raise ValueError("`pattern: 2:4` ranks within four weights: leave out `global_ranking`")
        return self

    def run(self, source: Artifact, job: Job) -> Made:
        import torch

        model = network(source)
        weights = dict(self._weights(model))
        if not weights:
            raise StepError(
                f"no weight can be made sparse {_where(self.pattern)}: wanted layers with FP32 weights "
                "that `keep` does not name",
                hint="shorten keep, or put sparsify before passes that quantize",
            )
        with torch.no_grad():
            if self.pattern == "2:4":
                for index, (name, weight) in enumerate(weights.items()):
                    job.progress(index / len(weights), name)
                    weight.mul_(_two_of_four(weight))
            else:
                self._zero_smallest(weights, job)
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
            if parameter.dtype == torch.float32 and self._fits(modules[module], parameter):
                yield name, parameter

    def _fits(self, module: torch.nn.Module, weight: torch.Tensor) -> bool:
        """Whether the pattern can be laid over a layer: 2:4 needs input channels by fours."""
        if self.pattern == "unstructured":
            return True
        return not getattr(module, "transposed", False) and weight.shape[1] % _GROUP == 0

    def _zero_smallest(self, weights: dict[str, torch.nn.Parameter], job: Job) -> None:
        import torch

        groups = [list(weights.values())] if self.global_ranking else [[w] for w in weights.values()]
        for index, group in enumerate(groups):
            job.progress(index / len(groups), "ranking the weights")
            sizes = torch.cat([weight.abs().flatten() for weight in group])
            count = round(len(sizes) * self.ratio)
            if count == 0:
                continue
            gone = torch.zeros(len(sizes), dtype=torch.bool)
            gone[torch.argsort(sizes, stable=True)[:count]] = True
            parts = gone.split([weight.numel() for weight in group])
            for weight, part in zip(group, parts, strict=True):
                weight[part.view_as(weight)] = 0

    def _facts(self, model: torch.nn.Module, weights: dict[str, torch.nn.Parameter]) -> dict[str, Any]:
        shares = {name: float((weight == 0).float().mean()) for name, weight in weights.items()}
        zeros = sum(int((value == 0).sum()) for value in torch_modules.parameters(model))
        layers = [
            n for n, v in torch_modules.named_parameters(model) if v.ndim > 1 and n not in weights
        ]
        return {
            "pattern": self.pattern,
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


def _where(pattern: str) -> str:
    return "in the pattern 2:4" if pattern == "2:4" else "in this network"
