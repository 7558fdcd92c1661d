"""Structured pruning: remove whole blocks and channels, so that the network really gets smaller."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError, counted, excerpt, first_line
from optcli.models.formats import torch as torch_format
from optcli.models.formats import torch_modules, torch_transforms
from optcli.models.formats.torch_calls import arguments, example_inputs, flatten_outputs
from optcli.passes import Job, Made, Pass, Role
from optcli.passes._torch.blocks import OutputChange, removable, remove_named, remove_weakest
from optcli.passes._torch.channels import ChannelCut, ChannelSelection, Criteria, choose
from optcli.passes._torch.examples import ExampleSet, spread
from optcli.passes._torch.learning import Loss, caller
from optcli.passes._torch.networks import matching, network, within
from optcli.passes._torch.reconstruction import reconstruct
from optcli.passes._torch.tracing import plain_attention
from optcli.settings import TensorSpec, batch_range

if TYPE_CHECKING:
    import torch

    from optcli.passes._torch.learning import Outputs

_RATIO = 0.3

_DEPTH = ("blocks", "block_ratio", "remove")


class Prune(Pass):
    """Removes the least important channels, or whole blocks; the network gets smaller and faster.

    Torch-Pruning removes channels, together with those that depend on them. It keeps channels that
    reach an output or are shuffled, and the width of attention. In a vision transformer it prunes the
    hidden layers of the MLPs. `blocks` and `block_ratio` remove blocks with a shortcut, before any
    channel: residual blocks, transformer layers, and units as in ShuffleNet, which join their input
    with what they compute. In a network without shortcuts they remove modules that consist of others
    and give outputs of their input's shape, such as Fire modules of SqueezeNet. The pass runs the
    network without each of them on calibration samples. It removes the one without which the outputs
    change least, relative to its cost, and tries again those that may be next. The cost is a block's
    multiply-accumulates, and 100,000 more for each of its operators. Nothing is trained here, so
    accuracy drops. `reconstruct` brings much of it back in seconds, `finetune` nearly all.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH,)
    needs: ClassVar[Needs] = Needs(("torch", "torch_pruning"))
    uses: ClassVar[tuple[Role, ...]] = ("calibration",)

    ratio: float | None = Field(
        None, gt=0, lt=1, description="share of the channels to remove; default: 0.3, and none where "
        "blocks are removed",
    )  # fmt: skip
    blocks: int | None = Field(
        None,
        ge=1,
        description="how many blocks to remove, such as residual blocks or transformer layers",
    )
    block_ratio: float | None = Field(
        None, gt=0, le=1, description="share of the blocks to remove, of those that can be removed"
    )
    remove: tuple[str, ...] = Field(
        (), description="modules to remove, before `blocks` are chosen: names or patterns such as "
        "`layer3.[12]`; each must give an output of the shape of its input",
    )  # fmt: skip
    block_samples: int = Field(64, ge=1, description="the most calibration samples to rank blocks by")
    importance: Literal["magnitude", "taylor", "batchnorm", "random"] = Field(
        "magnitude",
        description="what makes a channel worth keeping: the L2 norm of its weights; what the loss on "
        "calibration samples would be without it, to first order; its batch norm's scale; or chance",
    )
    reconstruct: bool = Field(
        False, description="fit the layers that are left to what they gave before, in closed form, on "
        "calibration samples: without labels or training",
    )  # fmt: skip
    samples: int = Field(
        256, ge=1, description="with `taylor` or `reconstruct`: the most calibration samples to use"
    )
    global_ranking: bool = Field(
        False, description="rank the channels of all layers together instead of layer by layer"
    )
    round_to: int = Field(8, ge=1, description="channel counts become multiples of this")
    max_ratio: float = Field(0.8, gt=0, lt=1, description="largest share to remove from one layer")
    keep: tuple[str, ...] = Field(
        (), description="modules to leave as they are: names or patterns such as `layer4.*`"
    )

    @model_validator(mode="before")
    @classmethod
    def _channels_unless_blocks(cls, value: Any) -> Any:
        if not isinstance(value, Mapping) or value.get("ratio") is not None:
            return value
        return value if any(value.get(name) for name in _DEPTH) else {**value, "ratio": _RATIO}

    @model_validator(mode="after")
    def _one_count(self) -> Self:
        if self.blocks is not None and self.block_ratio is not None:
            raise ValueError("`blocks` and `block_ratio` both say how many: leave one of them out")
        return self

    def produces(self, source: Format) -> Format:
        return Format.TORCH

    def requires(self) -> Needs:
        return self.needs if self.ratio is not None else Needs(("torch",))

    def roles(self) -> tuple[Role, ...]:
        by_samples = self.ratio is not None and self.importance == "taylor"
        return ("calibration",) if by_samples or self._choose_blocks or self.reconstruct else ()

    @property
    def _choose_blocks(self) -> bool:
        return self.blocks is not None or self.block_ratio is not None

    def run(self, source: Artifact, job: Job) -> Made:
        import torch

        torch.manual_seed(job.seed)
        model = network(source)
        whole = copy.deepcopy(model) if self.reconstruct else None
        before = _measured(model, job.inputs)
        origin = description = torch_format.read(source.path)
        facts: dict[str, Any] = {}
        if self.remove or self._choose_blocks:
            removed, facts = self._remove_blocks(model, job)
            description = description.after(torch_transforms.record_of_blocks(removed))
        if self.ratio is not None:
            model, record, more = self._remove_channels(model, source, job, before)
            description, facts = description.after(record), facts | more
        after = self._checked(model, job.inputs, before)
        if whole is not None:
            records = description.transforms[len(origin.transforms) :]
            job.progress(0.8, "fitting the layers that are left")
            facts["reconstruction"] = reconstruct(
                whole,
                model,
                lambda each: reduce(torch_format.transformed, records, each),
                job,
                self.samples,
            )
        torch_format.save(model, job.out, description, source.path / torch_format.CODE)
        return Made(facts=_facts(before, after, facts))

    def _remove_blocks(self, model: torch.nn.Module, job: Job) -> tuple[list[str], dict[str, Any]]:
        """Remove the blocks that are named and those to be chosen; gives their names and facts."""
        names = [name for name, _ in torch_modules.named_modules(model) if name]
        protected = matching(self.keep, names, "keep")
        named = _outermost(matching(self.remove, names, "remove"))
        for name in named:
            if any(within(name, [module]) or within(module, [name]) for module in protected):
                raise StepError(
                    f"`remove` and `keep` both name {name} or a part of it",
                    hint="shorten one of them",
                )
        remove_named(model, named, job.inputs)
        facts: dict[str, Any] = {"blocks_removed": named}
        if not self._choose_blocks:
            return named, facts
        candidates = [
            block
            for name, block in removable(model, job.inputs).items()
            if not any(within(name, [module]) or within(module, [name]) for module in protected)
        ]
        examples = ExampleSet(job.calibration, "calibration")
        change = OutputChange(model, examples, job.inputs, self.block_samples)
        share = self.block_ratio
        removals = remove_weakest(
            model,
            candidates,
            self.blocks or (lambda count: max(1, round(count * (share or 0)))),
            change,
            lambda fraction, text: job.progress(0.5 * fraction, text),
        )
        chosen = [removal.block.name for removal in removals]
        return named + chosen, {
            "blocks_removed": named + chosen,
            "blocks_found": len(candidates),
            "block_samples": change.samples,
            "block_choices": [
                {
                    "name": removal.block.name,
                    "output_change": removal.change,
                    "macs": removal.block.macs,
                    "operators": removal.block.operators,
                }
                for removal in removals
            ],
        }

    def _remove_channels(
        self, model: torch.nn.Module, source: Artifact, job: Job, before: dict[str, Any]
    ) -> tuple[torch.nn.Module, dict[str, Any], dict[str, Any]]:
        """Remove channels; gives the smaller network, the record of it and facts."""
        ranked: dict[str, Any] = {"importance": self.importance}
        if self.importance == "taylor":
            ranked |= weigh_by_loss(model, source, job, self.samples)
        with torch_transforms.traceable(model):
            job.progress(0.5, "tracing which channels depend on which")
            try:
                graph = torch_transforms.trace(model, job.inputs)
                choice = choose(model, graph, self._criteria())
            except StepError:
                raise
            except Exception as error:
                raise self._cannot(error, "trace this network") from error
        job.progress(0.7, f"removing channels from {len(choice.picked)} of {choice.groups} groups")
        self._require_any(choice)
        cutting = _Cutting(model, job.inputs, before["shapes"])
        cuts = cutting.sound(choice.picked)
        broken = [each.module for each in choice.picked if each not in cuts]
        lost = choice.lost + broken
        if lost:
            named = excerpt(", ".join(lost), 200)
            job.observer.warned("", f"Torch-Pruning cannot follow the channels of {named}: they stay")
        if not cuts:
            raise StepError(
                f"no channel can be removed: without some of {excerpt(', '.join(lost), 200)} the"
                f" network does not run ({cutting.reason})",
                hint="remove whole blocks (`block_ratio` without `ratio`), or only quantize",
            )
        smaller, record = cutting.cut(cuts)
        return (
            smaller,
            record,
            ranked
            | {
                "groups": choice.groups,
                "groups_not_followed": len(lost),
                "modules_not_followed": lost,
                "groups_pruned": len(cuts),
                "layers_pruned": [layer for cut in cuts for layer in cut.layers],
            },
        )

    def _criteria(self) -> Criteria:
        return Criteria(
            ratio=self.ratio or 0.0,
            importance=self.importance,
            global_ranking=self.global_ranking,
            round_to=self.round_to,
            max_ratio=self.max_ratio,
            keep=self.keep,
        )

    def _require_any(self, choice: ChannelSelection) -> None:
        if not choice.picked:
            names = excerpt(", ".join(choice.lost), 200)
            lost = f" ({len(choice.lost)} cannot be followed: {names})" if choice.lost else ""
            raise StepError(
                "no channel can be removed:"
                f" {counted(choice.groups, 'group of layers was', 'groups of layers were')} found, "
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
        reason = (str(error).strip().splitlines() or [""])[0]
        return StepError(
            f"Torch-Pruning cannot {what}: {type(error).__name__}: {reason}",
            hint="a forward() with fixed sizes or unusual layers: name the modules concerned in `keep`",
        )


class _Cutting:
    """Cuts copies of a network, whose outputs must keep their `shapes`.

    `reason` says why the last one was not sound.
    """

    def __init__(
        self, model: torch.nn.Module, inputs: Sequence[TensorSpec], shapes: dict[str, list[int]]
    ) -> None:
        self._model, self._inputs, self._shapes = model, inputs, shapes
        self._last: tuple[list[ChannelCut], torch.nn.Module] | None = None
        self.reason = ""

    def cut(self, cuts: Sequence[ChannelCut]) -> tuple[torch.nn.Module, dict[str, Any]]:
        """A smaller copy, and the record that cuts a fresh network alike."""
        record = {
            "name": "prune",
            "inputs": [spec.model_dump(mode="json") for spec in self._inputs],
            "history": [[each.module, True, each.channels] for each in cuts],
        }
        if self._last is None or self._last[0] != list(cuts):
            smaller = torch_transforms.prune(copy.deepcopy(self._model), record)
            self._last = list(cuts), smaller
        return self._last[1], record

    def sound(self, cuts: Sequence[ChannelCut]) -> list[ChannelCut]:
        """As many of the cuts as the network still runs with, by halves of them."""
        if not cuts or self._is_sound(cuts):
            return list(cuts)
        if len(cuts) == 1:
            return []
        middle = len(cuts) // 2
        first, second = self.sound(cuts[:middle]), self.sound(cuts[middle:])
        if not (first and second) or self._is_sound([*first, *second]):
            return [*first, *second]
        return max(first, second, key=len)

    def _is_sound(self, cuts: Sequence[ChannelCut]) -> bool:
        try:
            smaller, _ = self.cut(cuts)
            shapes = _measured(smaller, self._inputs)["shapes"]
        except Exception as error:
            self.reason = f"{type(error).__name__}: {first_line(error)}"
            return False
        self.reason = f"its outputs would be {shapes}"
        return bool(shapes == self._shapes)


def _measured(model: torch.nn.Module, inputs: Sequence[TensorSpec]) -> dict[str, Any]:
    """Multiply-accumulates of one sample, parameters, and the outputs' shapes."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    size = min(2, batch_range(inputs).max)
    positional, keyword = arguments(model, inputs).split(example_inputs(inputs, size))
    # Fused attention would not be counted.
    with torch.no_grad(), plain_attention(), FlopCounterMode(display=False) as counter:
        outputs = flatten_outputs(model(*positional, **keyword))
    return {
        "macs": counter.get_total_flops() // (2 * size),
        "parameters": sum(value.numel() for value in torch_modules.parameters(model)),
        "shapes": {name: list(value.shape) for name, value in outputs.items()},
    }


def _facts(before: dict[str, Any], after: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "parameters": after["parameters"],
        "pruning": {
            "macs_before": before["macs"],
            "macs": after["macs"],
            "parameters_before": before["parameters"],
            "parameters": after["parameters"],
            **facts,
        },
    }


def _outermost(names: set[str]) -> list[str]:
    """The modules that lie in no other of them."""
    return sorted(name for name in names if not within(name, names - {name}))


def weigh_by_loss(
    model: torch.nn.Module, source: Artifact, job: Job, most_samples: int
) -> dict[str, Any]:
    """Give every parameter a `grad` with |weight · grad| = the mean of |w · dL/dw| over samples.

    That is the first-order Taylor estimate of what the loss would change by without the weight
    (Molchanov et al., "Importance Estimation for Neural Network Pruning", CVPR 2019). The mean is over
    magnitudes, since the gradients themselves add up to nothing in a trained network. The loss is
    cross-entropy where the samples have labels that fit the first output, else half the energy of all
    outputs. Gives what the facts should say. Raises `StepError` where a gradient is not finite.
    """
    import torch

    examples = ExampleSet(job.calibration, "calibration", kept_bytes=0)
    positions = spread(len(examples), most_samples)
    size = max((s for spec in job.inputs if isinstance(s := spec.shape[0], int)), default=1)
    call = caller(torch_modules.evaluating(model), job.inputs, "cpu")
    output = (source.facts.get("outputs") or ["output"])[0]
    loss = Loss(output, 0.0, 1.0, 0.0)
    labelled = examples.labelled and _fits(loss, examples, call(examples.batch(positions[:1] * size)))
    worth = {name: torch.zeros_like(value) for name, value in torch_modules.named_parameters(model)}
    for index in range(0, len(positions), size):
        batch = examples.batch([positions[(index + i) % len(positions)] for i in range(size)])
        model.zero_grad()
        outputs = call(batch)
        (loss(outputs, batch.labels, None) if labelled else _energy(outputs)).backward()
        for name, value in torch_modules.named_parameters(model):
            if value.grad is not None:
                worth[name] += (value.detach() * value.grad).abs()
        job.progress(0.1 * index / len(positions), f"gradients of {index + size} samples")
    if not all(bool(torch.isfinite(value).all()) for value in worth.values()):
        raise StepError(
            "the loss has no finite gradient on the calibration samples",
            hint="take another importance: `magnitude` needs no gradients",
        )
    for name, value in torch_modules.named_parameters(model):
        tiny = torch.finfo(value.dtype).tiny
        value.grad = worth[name] / value.detach().abs().clamp_min(tiny) / len(positions)
    kind = "cross-entropy" if labelled else "output energy"
    return {"calibration_samples": len(positions), "loss": kind}


def _fits(loss: Loss, examples: ExampleSet, outputs: Outputs) -> bool:
    """Whether the first output holds a score per class for labels such as the samples have."""
    labels = examples.batch([0]).labels
    logits = loss.logits(outputs)
    return labels is not None and logits.ndim > 1 and labels.shape[1:] == logits.shape[2:]


def _energy(outputs: Outputs) -> torch.Tensor:
    parts = [value.square().mean() / 2 for value in outputs.values() if value.is_floating_point()]
    return sum(parts[1:], parts[0])
