"""Structured pruning: remove whole channels, so that every layer really gets smaller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError
from optcli.formats import torch as torch_format
from optcli.formats import torch_modules, torch_pruning
from optcli.formats.torch_calls import arguments, example_inputs, flatten_outputs
from optcli.passes import Job, Made, Pass, Role
from optcli.passes._torch.channels import Choice, Criteria, choose
from optcli.passes._torch.networks import network
from optcli.passes._torch.saliency import weigh_by_loss
from optcli.passes._torch.tracing import plain_attention
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import torch


class Prune(Pass):
    """Removes the least important channels with Torch-Pruning; the network gets smaller and faster.

    Channels that depend on each other go together. What reaches an output is kept, and so is the
    width of attention: of a vision transformer the hidden layers of its MLPs are pruned. Nothing is
    trained here, so accuracy drops with the ratio: `finetune` brings it back.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH,)
    needs: ClassVar[Needs] = Needs(("torch", "torch_pruning"))
    uses: ClassVar[tuple[Role, ...]] = ("calibration",)

    ratio: float = Field(0.3, gt=0, lt=1, description="share of the channels to remove")
    importance: Literal["magnitude", "taylor", "batchnorm", "random"] = Field(
        "magnitude",
        description="what makes a channel worth keeping: the L2 norm of its weights; what the loss on "
        "calibration samples would be without it, to first order; its batch norm's scale; or chance",
    )
    samples: int = Field(256, ge=1, description="with `taylor`: the most calibration samples to use")
    global_ranking: bool = Field(
        False, description="rank the channels of all layers together instead of layer by layer"
    )
    round_to: int = Field(8, ge=1, description="channel counts become multiples of this")
    max_ratio: float = Field(0.8, gt=0, lt=1, description="largest share to remove from one layer")
    keep: tuple[str, ...] = Field(
        (), description="modules to leave as they are: names or patterns such as `layer4.*`"
    )

    def produces(self, source: Format) -> Format:
        return Format.TORCH

    def roles(self) -> tuple[Role, ...]:
        return ("calibration",) if self.importance == "taylor" else ()

    def run(self, source: Artifact, job: Job) -> Made:
        import torch

        torch.manual_seed(job.seed)
        model = network(source)
        before = _measured(model, job.inputs)
        ranked: dict[str, Any] = {"importance": self.importance}
        if self.importance == "taylor":
            ranked |= weigh_by_loss(model, source, job, self.samples)
        with torch_pruning.traceable(model):
            job.progress(0.1, "tracing which channels depend on which")
            try:
                graph = torch_pruning.trace(model, job.inputs)
                choice = choose(model, graph, self._criteria())
            except StepError:
                raise
            except Exception as error:
                raise self._cannot(error, "trace this network") from error
            job.progress(0.5, f"removing channels from {len(choice.picked)} of {choice.groups} groups")
            self._require_any(choice)
            try:
                for module, prune, indices in choice.picked:
                    graph.get_pruning_group(module, prune, indices).prune()
            except Exception as error:
                raise self._cannot(error, "cut this network") from error
        after = self._checked(model, job.inputs, before)
        record = {
            "name": "prune",
            "inputs": [spec.model_dump(mode="json") for spec in job.inputs],
            "history": [
                [name, bool(out), [int(i) for i in ids]] for name, out, ids in graph.pruning_history()
            ],
        }
        description = torch_format.read(source.path).after(record)
        torch_format.save(model, job.out, description, source.path / torch_format.CODE)
        return Made(facts=_facts(before, after, choice, ranked))

    def _criteria(self) -> Criteria:
        return Criteria(
            ratio=self.ratio,
            importance=self.importance,
            global_ranking=self.global_ranking,
            round_to=self.round_to,
            max_ratio=self.max_ratio,
            keep=self.keep,
        )

    def _require_any(self, choice: Choice) -> None:
        if not choice.picked:
            lost = f" ({choice.lost} cannot be followed through reshapes)" if choice.lost else ""
            raise StepError(
                f"no channel can be removed: {choice.groups} groups of layers were found, "
                f"{choice.kept} of them are kept{lost}, the others are too narrow",
                hint=f"lower round_to ({self.round_to}), raise ratio ({self.ratio}), or shorten keep",
            )

    def _checked(
        self, model: torch.nn.Module, inputs: Sequence[TensorSpec], before: dict[str, Any]
    ) -> dict[str, Any]:
        """Measure the pruned network; its outputs must have the shapes they had."""
        try:
            after = _measured(model, inputs)
        except Exception as error:
            raise self._cannot(error, "run this network once it is pruned") from error
        if after["shapes"] != before["shapes"]:
            raise StepError(
                f"pruning changed the outputs' shapes from {before['shapes']} to {after['shapes']}",
                hint="name the layers that make the outputs in `keep`",
            )
        return after

    def _cannot(self, error: Exception, what: str) -> StepError:
        if isinstance(error, ZeroDivisionError):  # its mapping of channels through a reshape
            return StepError(
                f"Torch-Pruning cannot {what}: it shuffles channels (as ShuffleNet does), which cannot "
                "be followed",
                hint="leave prune out: quantize this network instead",
            )
        reason = (str(error).strip().splitlines() or [""])[0]
        return StepError(
            f"Torch-Pruning cannot {what}: {type(error).__name__}: {reason}",
            hint="a forward() with fixed sizes or unusual layers: name the modules concerned in `keep`",
        )


def _measured(model: torch.nn.Module, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Multiply-accumulates of one sample, parameters, and the outputs' shapes."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    size = min(2, inputs[0].batch_range().max)
    positional, keyword = arguments(model, inputs).split(example_inputs(inputs, size))
    # Fused attention would not be counted.
    with torch.no_grad(), plain_attention(), FlopCounterMode(display=False) as counter:
        outputs = flatten_outputs(model(*positional, **keyword))
    return {
        "macs": counter.get_total_flops() // (2 * size),
        "parameters": sum(value.numel() for value in torch_modules.parameters(model)),
        "shapes": {name: list(value.shape) for name, value in outputs.items()},
    }


def _facts(
    before: dict[str, Any], after: dict[str, Any], choice: Choice, ranked: dict[str, Any]
) -> dict[str, Any]:
    return {
        "parameters": after["parameters"],
        "pruning": {
            **ranked,
            "macs_before": before["macs"],
            "macs": after["macs"],
            "parameters_before": before["parameters"],
            "parameters": after["parameters"],
            "groups": choice.groups,
            "groups_not_followed": choice.lost,
            "groups_pruned": len(choice.picked),
            "layers_pruned": choice.layers,
        },
    }
