"""Weights of a cut network in closed form: each layer gives what it gave in the whole network.

Every convolution and linear layer is fitted anew, in the order in which they compute, by ridge
regression from its inputs in the cut network to its outputs in the whole one ("Channel Pruning for
Accelerating Very Deep Neural Networks", He, Zhang and Sun, ICCV 2017; the choice of channels is not
theirs). So a layer makes up for the channels that it no longer reads, and for the removed blocks and
the errors before it. No labels are read, and no gradient is computed.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from optcli.errors import StepError
from optcli.models.formats import torch_modules
from optcli.passes import Job
from optcli.passes._torch.blocks import OutputChange
from optcli.passes._torch.examples import ExampleSet, spread
from optcli.passes._torch.learning import caller
from optcli.settings import batch_range

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

# How strongly weights are held to what the cut left, relative to the mean square of a layer's inputs:
# this by the number of samples. With 1.5 to 24, ResNet-20 without half of its channels reached 57 to
# 60 % from 32 samples, and 63 to 64 % from 64.
_RIDGE = 6.0
# At how many places of its output a layer is fitted: so many for each of its inputs, and at the least.
_PLACES_PER_INPUT, _LEAST_PLACES = 4, 4096
# A layer that is as exact as this has lost nothing.
_EXACT = 1e-5
_MOST_ACTIVATION_BYTES = 256 << 20
# Samples that no layer is fitted to: one in so many, and the most.
_HELD_OUT, _MOST_HELD_OUT = 5, 64


def reconstruct(
    whole: nn.Module,
    smaller: nn.Module,
    cut: Callable[[nn.Module], nn.Module],
    job: Job,
    most_samples: int,
) -> dict[str, Any]:
    """Fit the layers of `smaller` in place to what they give in `whole`; gives facts about it.

    `cut` makes of a copy of `whole` what `smaller` is, in place or not. The samples are calibration
    samples, at most so many and as many as memory has room for, in one batch. One in five of them is
    held out: where the outputs on these do not come closer to those of `whole`, the weights stay as
    they were. They also stay where the network does not run on such a batch; that is a warning.
    """
    examples = ExampleSet(job.calibration, "calibration")
    held = examples
    if len(examples) >= _HELD_OUT:
        examples, held = examples.divided(min(len(examples) // _HELD_OUT, _MOST_HELD_OUT))
    cut_weights = copy.deepcopy(torch_modules.state(smaller))
    sizes = batch_range(job.inputs)
    try:
        is_fixed = 1 < sizes.min == sizes.max
        count = sizes.min if is_fixed else _room(whole, examples, job, most_samples)
        positions = spread(len(examples), count)
        batch = examples.batch([positions[index % len(positions)] for index in range(count)])
        change = OutputChange(whole, held, job.inputs, _MOST_HELD_OUT)
        before = change(smaller)

        def run(model: nn.Module) -> None:
            caller(torch_modules.evaluating(model), job.inputs, "cpu")(batch)

        layers = fit(whole, smaller, output_channels(whole, cut), run, job.seed)
        after = change(smaller)
    except StepError as error:
        smaller.load_state_dict(cut_weights)
        job.observer.warned("", f"the weights are not reconstructed: {error}")
        return {"layers": 0}
    if before is None or after is None or after >= before:
        smaller.load_state_dict(cut_weights)
        layers, after = [], before
    return {
        "layers": len(layers),
        "samples": len(positions),
        "held_out": change.samples,
        "output_change_before": before,
        "output_change": after,
    }


def output_channels(model: nn.Module, cut: Callable[[nn.Module], nn.Module]) -> dict[str, list[int]]:
    """Which output channels `cut` leaves of each convolution and linear layer; it may cut in place."""
    import torch

    numbered = copy.deepcopy(model)
    with torch.no_grad():
        for _, layer in _layers(numbered):
            shape = (-1, *[1] * (layer.weight.ndim - 1))
            layer.weight.copy_(torch.arange(len(layer.weight)).view(shape).expand_as(layer.weight))
    return {
        name: layer.weight.detach().flatten(1)[:, 0].round().long().tolist()
        for name, layer in _layers(cut(numbered))
    }


def fit(
    whole: nn.Module,
    smaller: nn.Module,
    channels: dict[str, list[int]],
    run: Callable[[nn.Module], object],
    seed: int,
) -> list[str]:
    """Fit the layers of `smaller`, in place; gives the names of those that changed.

    `run` runs a network once, on all samples in one batch. `channels` are the output channels of
    `whole` that each layer still has. Layers that a run calls twice stay as they are.
    """
    import torch

    targets = _targets(whole, run, channels, torch.Generator().manual_seed(seed))
    modules = dict(torch_modules.named_modules(smaller))
    changed: list[str] = []

    def hook(name: str, module: Any) -> Any:
        def before(layer: Any, inputs: tuple[Tensor, ...]) -> None:
            if _fit(layer, inputs[0], targets[name], modules.get(targets[name].norm)):
                changed.append(name)

        return module.register_forward_pre_hook(before) if name in targets else None

    with torch.no_grad(), _hooked(smaller, hook):
        run(smaller)
    return changed


@dataclass(frozen=True)
class _Target:
    """What a layer gives in the whole network.

    `places`, `[samples, p]`: which places of its output are looked at. `values`, `[samples, p,
    channels]`: what it gives there. `norm` names the batch norm that reads it, or is empty.
    """

    places: Tensor
    values: Tensor
    norm: str = ""


def _targets(
    whole: nn.Module,
    run: Callable[[nn.Module], object],
    channels: dict[str, list[int]],
    generator: torch.Generator,
) -> dict[str, _Target]:
    """What each layer that a run calls once gives on its `channels`, at places that are drawn."""
    import torch

    calls: Counter[str] = Counter()
    targets: dict[str, _Target] = {}
    last: tuple[Tensor | None, str] = None, ""

    def hook(name: str, module: Any) -> Any:
        def note(layer: Any, _: object, output: Tensor) -> None:
            nonlocal last
            last = output, name
            calls[name] += 1
            rows = _rows(layer, output)
            samples, places = rows.shape[:2]
            wanted = max(_LEAST_PLACES, _PLACES_PER_INPUT * layer.weight[0].numel())
            count = min(places, -(-wanted // samples))
            drawn = torch.rand(samples, places, generator=generator).argsort(1)[:, :count]
            values = rows[torch.arange(samples)[:, None], drawn][..., channels[name]]
            targets[name] = _Target(drawn, values)

        def join(_: object, inputs: tuple[Tensor, ...]) -> None:
            output, layer = last
            if inputs[0] is output:
                targets[layer] = replace(targets[layer], norm=name)

        if isinstance(module, torch.nn.BatchNorm1d | torch.nn.BatchNorm2d):
            return module.register_forward_pre_hook(join)
        return module.register_forward_hook(note) if name in channels else None

    with torch.no_grad(), _hooked(whole, hook):
        run(whole)
    return {name: target for name, target in targets.items() if calls[name] == 1}


def _fit(layer: Any, inputs: Tensor, target: _Target, norm: Any) -> bool:
    """Fit one layer, in place, where it does not give its target anyway."""
    import torch

    columns = _columns(layer, inputs, target.places).double()  # [groups, inputs, places]
    groups = len(columns)
    weight = layer.weight.double().view(groups, len(layer.weight) // groups, -1)
    wanted = target.values.flatten(0, 1).double().t().reshape(groups, weight.shape[1], -1)
    given = weight @ columns
    if layer.bias is not None:
        given = given + layer.bias.double().view(groups, -1, 1)
    rest = wanted - given
    if rest.norm() <= _EXACT * wanted.norm():
        return False
    moves = layer.bias is not None or getattr(norm, "running_mean", None) is not None
    middle = columns.mean(2, keepdim=True) if moves else torch.zeros_like(columns[..., :1])
    offset = rest.mean(2, keepdim=True) if moves else torch.zeros_like(rest[..., :1])
    centered = columns - middle
    gram = centered @ centered.transpose(1, 2) / centered.shape[2]
    scale = gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(torch.finfo(torch.float32).tiny)
    ridge = _RIDGE / len(target.places) * scale[:, None, None]
    gram = gram + ridge * torch.eye(gram.shape[1], dtype=gram.dtype)
    moment = rest @ centered.transpose(1, 2) / centered.shape[2]
    change = torch.linalg.solve(gram, moment.transpose(1, 2)).transpose(1, 2)
    layer.weight.add_(change.reshape(layer.weight.shape).to(layer.weight.dtype))
    if moves:
        shift = (offset - change @ middle).flatten().to(layer.weight.dtype)
        if layer.bias is not None:
            layer.bias.add_(shift)
        else:
            norm.running_mean.sub_(shift)
    return True


def _columns(layer: Any, inputs: Tensor, places: Tensor) -> Tensor:
    """What a layer multiplies at some places of its output: `[groups, inputs, samples * places]`."""
    import torch
    from torch.nn import functional

    if isinstance(layer, torch.nn.Linear):
        rows = inputs.reshape(len(inputs), -1, inputs.shape[-1])
        return rows[torch.arange(len(rows))[:, None], places].flatten(0, 1).t()[None]
    padded = functional.pad(inputs, layer._reversed_padding_repeated_twice)
    parts = [
        functional.unfold(one[None], layer.kernel_size, layer.dilation, 0, layer.stride)[0][:, chosen]
        for one, chosen in zip(padded, places, strict=True)
    ]
    return torch.cat(parts, 1).view(layer.groups, -1, places.numel())


def _rows(layer: Any, output: Tensor) -> Tensor:
    """An output as `[samples, places, channels]`."""
    import torch

    if isinstance(layer, torch.nn.Linear):
        return output.reshape(len(output), -1, output.shape[-1])
    return output.flatten(2).transpose(1, 2)


def _layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """The layers that can be fitted: linear ones, and convolutions of images padded with zeros."""
    import torch

    for name, module in torch_modules.named_modules(model):
        if type(module) is torch.nn.Conv2d:
            fits = module.padding_mode == "zeros"
        else:
            fits = type(module) is torch.nn.Linear
        if fits and module.weight.dtype == torch.float32:
            yield name, module


@contextmanager
def _hooked(model: nn.Module, hook: Callable[[str, Any], Any]) -> Iterator[None]:
    """Hooks on modules: `hook` registers one, by name and module, and gives its handle or None."""
    handles = [hook(name, module) for name, module in torch_modules.named_modules(model)]
    try:
        yield
    finally:
        for handle in filter(None, handles):
            handle.remove()


def _room(model: nn.Module, examples: ExampleSet, job: Job, most_samples: int) -> int:
    """How many samples one batch may have: as many as the widest layer's values have room for."""
    import torch

    widest = 1

    def hook(_: str, module: Any) -> Any:
        def note(_: object, inputs: tuple[Any, ...], output: Any) -> None:
            nonlocal widest
            tensors = [each for each in (*inputs, output) if isinstance(each, torch.Tensor)]
            widest = max(widest, *(each.nbytes for each in tensors), 1)

        return module.register_forward_hook(note)

    size = batch_range(job.inputs).min
    with torch.no_grad(), _hooked(model, hook):
        caller(torch_modules.evaluating(model), job.inputs, "cpu")(examples.batch([0] * size))
    room = _MOST_ACTIVATION_BYTES * size // widest
    return max(size, min(len(examples), most_samples, room))
