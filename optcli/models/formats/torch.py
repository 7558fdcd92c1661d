"""The torch format: a network in Python that comes back without unpickling any code.

    model.json            source, transforms, inputs and the names of the outputs
    weights.safetensors   or weights.pth, read with weights_only, where safetensors cannot hold them
    code/                 a copy of the user's code that the network needs

Opening builds the network from its source, applies the transforms in order and loads the weights.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from optcli.errors import InputError
from optcli.files import regular_files
from optcli.models.formats import (
    torch_build,
    torch_compiled,
    torch_modules,
    torch_transforms,
    torch_weights,
)
from optcli.models.formats.torch_calls import short
from optcli.settings import Settings, TensorSpec

if TYPE_CHECKING:
    import torch

    # A network, and a record of what was done to it after it was built.
    _Transform = Callable[[torch.nn.Module, dict[str, Any]], torch.nn.Module]

DESCRIPTION = "model.json"
CODE = "code"


class Description(Settings):
    """What `model.json` holds: all of an artifact but its weights.

    `source` is `{kind: torchvision, name, weights, arguments}`, `{kind: timm, name, arguments}`,
    `{kind: hf, architecture, config}` or `{kind: python, reference, arguments}`.
    `transforms` are records with a `name` of `_TRANSFORMS`, in the order they were applied: plain JSON
    data. Applying the same record to the same network always gives the same network.
    """

    source: dict[str, Any]
    transforms: tuple[dict[str, Any], ...] = ()
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[str, ...] = ()
    schema_version: int = Field(1, alias="schema")

    def after(self, record: dict[str, Any]) -> Description:
        """The description of the network after one more transform."""
        return self.model_copy(update={"transforms": (*self.transforms, record)})


def read(folder: Path) -> Description:
    """Read the description. Raises `InputError` where it is missing or damaged."""
    path = folder / DESCRIPTION
    try:
        return Description.model_validate_json(regular_files.read(path))
    except (OSError, ValueError) as error:
        raise InputError(
            f"this is not a torch artifact: {str(error).splitlines()[0]}",
            place=str(path),
            hint="delete the artifact and build again",
        ) from error


def open(folder: Path) -> torch.nn.Module:
    """The network, in evaluation mode on the CPU. Raises `InputError` where it cannot be rebuilt."""
    description = read(folder)
    model = torch_build.build(description.source, folder / CODE)
    for record in description.transforms:
        model = transformed(model, record)
    torch_weights.load_into(model, torch_weights.read_own(folder))
    return torch_modules.evaluating(model)


def save(
    model: torch.nn.Module, folder: Path, description: Description, code: Path | None = None
) -> None:
    """Write a network; `code` is the folder of user code that its source needs."""
    folder.mkdir(parents=True, exist_ok=True)
    if code is not None and code.is_dir() and code != folder / CODE:
        shutil.copytree(code, folder / CODE, ignore=shutil.ignore_patterns("__pycache__"))
    torch_weights.write(model, folder)
    record = description.model_dump(mode="json", by_alias=True)
    (folder / DESCRIPTION).write_text(json.dumps(record, indent=1) + "\n")


def precision(model: torch.nn.Module) -> str:
    """What the weights are held in: `fp32`, `fp16`, `bf16`, `fp64`, or several joined with `+`.

    Of a quantized network, what it is quantized to: `int8`, `int8-dynamic` or `int8-weights`.
    """
    quantized = torch_transforms.quantized_precision(model)
    if quantized is not None:
        return quantized
    tensors: Sequence[torch.Tensor] = [*torch_modules.parameters(model)] or [
        *torch_modules.buffers(model)
    ]
    kinds = {tensor.dtype for tensor in tensors if tensor.is_floating_point()}
    return "+".join(sorted(map(short, kinds))) or "fp32"


def _unchanged(model: torch.nn.Module, record: dict[str, Any]) -> torch.nn.Module:
    """A record about how the network is called, which whoever runs it reads."""
    return model


def _channels_last(model: torch.nn.Module, record: dict[str, Any]) -> torch.nn.Module:
    import torch

    converted: torch.nn.Module = model.to(memory_format=torch.channels_last)
    for module in torch_modules.modules(converted):
        # With one channel both layouts are the same numbers: Inductor takes the output for the other
        # one than the convolution makes, and reads it in the wrong order.
        if isinstance(module, torch.nn.Conv2d) and module.in_channels == 1:
            module.weight.data = module.weight.detach().clone(memory_format=torch.contiguous_format)
    return converted


_TRANSFORMS: dict[str, _Transform] = {
    "prune": torch_transforms.prune,
    torch_transforms.REMOVE_BLOCKS: torch_transforms.remove_blocks,
    "channels_last": _channels_last,
    "autocast": _unchanged,
    torch_compiled.NAME: _unchanged,
    torch_transforms.QUANTIZE: torch_transforms.quantize,
}


def transformed(model: torch.nn.Module, record: dict[str, Any]) -> torch.nn.Module:
    """The network after one transform. Raises `InputError` for a name that is not in the table."""
    transform = _TRANSFORMS.get(record["name"])
    if transform is None:
        raise InputError(
            f"the artifact needs a transform {record['name']!r} that this optcli does not know",
            hint="it was written by a newer optcli: update, or build again",
        )
    return transform(model, record)
