"""Quantizing linear layers of a torch artifact, as a transform that comes back from its record."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

from optcli.artifact import Artifact
from optcli.errors import StepError, counted, raised_as
from optcli.models.formats import torch as torch_format
from optcli.models.formats import torch_modules, torch_transforms
from optcli.models.formats.torch_calls import arguments, example_inputs
from optcli.passes import Job, Made
from optcli.passes._torch.networks import matching, require_uncompiled, within
from optcli.settings import batch_range

if TYPE_CHECKING:
    import torch


def quantize_layers(
    source: Artifact,
    job: Job,
    kind: Literal["dynamic", "weights"],
    names: Sequence[str],
    ignored_names: Sequence[str],
    engine: torch_transforms.Engine = "torchao",
    per_channel: bool = True,
    group_size: int | None = None,
) -> Made:
    """Quantize the linear layers that are named (all, where none is) and write the artifact.

    Raises `StepError` where there is none: convolutions cannot be quantized in this way.
    """
    require_uncompiled(source)
    require_fp32(source)
    model = torch_format.open(source.path)
    layers = _layers(model, engine, names, ignored_names, group_size)
    record = {
        "name": torch_transforms.QUANTIZE,
        "engine": engine,
        "kind": kind,
        "modules": layers,
        "per_channel": per_channel,
        "group_size": group_size,
    }
    hint = "the log names the layer: keep it with `ignored_names`"
    with raised_as(StepError, f"{engine} cannot quantize this network", hint=hint):
        model = torch_transforms.quantize(model, record)
        _run_once(model, job)
    description = torch_format.read(source.path).after(record)
    torch_format.save(model, job.out, description, source.path / torch_format.CODE)
    facts: dict[str, Any] = {"engine": engine, "quantized_operators": {"Linear": len(layers)}}
    others = _convolutions(model)
    if others:
        facts["kept_in_fp32"] = dict(others)
        job.warn(
            f"{counted(sum(others.values()), 'convolution stays', 'convolutions stay')} in fp32: this"
            " pass quantizes linear layers alone"
        )
    return Made(precision=torch_transforms.quantized_precision(model), facts=facts)


def require_fp32(source: Artifact) -> None:
    """Raise `StepError` for a model that is in another precision already."""
    if source.precision != "fp32":
        raise StepError(
            f"the model is {source.precision}, wanted fp32",
            hint="quantize the FP32 model that it was made from",
        )


def _layers(
    model: torch.nn.Module,
    engine: torch_transforms.Engine,
    names: Sequence[str],
    ignored_names: Sequence[str],
    group_size: int | None,
) -> list[str]:
    modules = [name for name, _ in torch_modules.named_modules(model) if name]
    named = matching(names, modules, "names")
    ignored = matching(ignored_names, modules, "ignored_names")
    possible = torch_transforms.linear_layers(model, engine)
    layers = [
        name for name in possible if (not names or within(name, named)) and not within(name, ignored)
    ]
    if group_size is not None:
        sizes = {name: model.get_submodule(name).in_features for name in layers}
        layers = [name for name in layers if sizes[name] % group_size == 0]
    if not layers:
        raise StepError(
            f"nothing can be quantized: of {len(possible)} linear layers none is left"
            if possible
            else "nothing can be quantized: the network has no linear layers, and convolutions stay "
            "in floating point",
            hint="change names, ignored_names or group_size"
            if possible
            else "quantize with quantize_pt2e, or after export_onnx with quantize_nncf",
        )
    return layers


def _convolutions(model: torch.nn.Module) -> Counter[str]:
    import torch

    kinds = (torch.nn.modules.conv._ConvNd,)
    return Counter(
        type(module).__name__ for module in torch_modules.modules(model) if isinstance(module, kinds)
    )


def _run_once(model: torch.nn.Module, job: Job) -> None:
    """Call the network, so that none is stored that does not run."""
    import torch

    feed = example_inputs(job.inputs, batch_range(job.inputs).min)
    positional, keyword = arguments(model, job.inputs).split(feed)
    with torch.no_grad():
        model(*positional, **keyword)
