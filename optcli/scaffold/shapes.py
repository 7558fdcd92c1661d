"""What a network takes: as its weights declare it, as its file says, or found by trying."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from optcli.data import hf
from optcli.errors import InputError, first_line
from optcli.models.formats import torch_build, torch_libraries, torch_modules
from optcli.models.formats import torchscript as torchscript_format
from optcli.models.sources import _network
from optcli.scaffold.wording import spec
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import torch

    from optcli.models.sources import Source

_VIDEO = 5  # dimensions: batch, channels, frames, height, width
# Usual sizes of square images, the most usual first.
_SIZES = (224, 32, 28, 64, 96, 128, 256, 299, 384, 416, 512, 640)
# Channels, height and width; the preset of the preparation; weights that are here already.
_LibraryInput = tuple[tuple[int, int, int], str | None, str | None]
_ONE = '--input "image:float32[batch,3,224,224]"'
_HINT = f"say it: {_ONE}, once for each input, in their order"


def image(size: tuple[int, int, int], name: str = "image") -> TensorSpec:
    """An input of images, channels first."""
    return spec(name, "float32", ["batch", *size])


def from_file(tensor: dict[str, Any], bounds: dict[str, list[int]]) -> TensorSpec:
    """An input as a file describes it; sizes that vary keep their names where these are words.

    `bounds` holds the least and the largest size by the names in the file.
    """
    if tensor["shape"] == []:
        raise InputError(
            f"input {tensor['name']!r} is a single number, and inputs of recipes have dimensions",
            place=tensor["name"],
            hint="export the model with this number as a constant",
        )
    if tensor["shape"] is None:
        raise InputError(
            f"the file does not say the shape of {tensor['name']!r}",
            place=tensor["name"],
            hint="say it: --input NAME:DTYPE[SIZES]",
        )
    sizes: list[int | str] = []
    limits: dict[str, list[int]] = {}
    for index, size in enumerate(tensor["shape"]):
        if isinstance(size, int) and size > 0:
            sizes.append(size)
            continue
        if index == 0:
            sizes.append("batch")
        else:
            word = re.sub(r"\W", "_", str(size or ""))
            sizes.append(word if word.isidentifier() and word != "batch" else f"size_{index}")
        if size in bounds:
            limits[str(sizes[-1])] = bounds[size]
    return spec(tensor["name"], tensor["dtype"], sizes, limits)


def of_torchvision(name: str) -> _LibraryInput:
    """Image size of the default weights, the preset of their preparation, their file if it is here."""
    import torch
    from torchvision import models

    # The source says what is wrong with a name that torchvision does not have.
    if name not in models.list_models() or not len(entries := models.get_model_weights(name)):
        return (3, 224, 224), None, None
    entry = entries.DEFAULT
    transforms = entry.transforms()
    crop = getattr(transforms, "crop_size", None) or getattr(transforms, "resize_size", None) or [224]
    size = crop[0] if isinstance(crop, list | tuple) else crop
    file = Path(torch.hub.get_dir()) / "checkpoints" / Path(entry.url).name
    preset = f"torchvision:{name}" if "crop_size" in vars(transforms) else None
    return (3, size, size), preset, "DEFAULT" if file.is_file() else None


def of_own_transform(model: torch.nn.Module) -> tuple[int, int] | None:
    """Height and width that a network resizes images to, as torchvision's detectors do; else None.

    Such a network normalizes them as well: it takes values from 0 to 1.
    """
    transform: Any = getattr(model, "transform", None)
    if not all(hasattr(transform, name) for name in ("image_mean", "image_std", "min_size")):
        return None
    width, height = getattr(transform, "fixed_size", None) or (max(transform.min_size),) * 2
    return int(height), int(width)


def of_detector(name: str, size: tuple[int, int]) -> TensorSpec:
    """The input of a network with such a transform: one image."""
    return TensorSpec.model_validate(
        {"name": name, "dtype": "float32", "shape": [1, 3, *size], "range": (0, 1)}
    )


def of_timm(name: str) -> _LibraryInput:
    """As `of_torchvision`, for a model of timm."""
    torch_libraries.require_timm_name(name, "model.source")
    timm = torch_libraries.library("timm")
    config = timm.get_pretrained_cfg(name)
    if config is None:
        return (3, 224, 224), None, None
    import huggingface_hub

    file = None
    if config.hf_hub_id:
        file = huggingface_hub.try_to_load_from_cache(config.hf_hub_id, "model.safetensors")
    preset = f"timm:{name}" if config.crop_mode in ("center", "squash") else None
    return tuple(config.input_size), preset, "DEFAULT" if isinstance(file, str) else None


def of_hf(source: Source, notes: list[str]) -> _LibraryInput:
    """As `of_torchvision`, for a folder of transformers: its processor's steps, written out."""
    folder = torch_libraries.snapshot(source.target, source.folder, revision=source.revision)
    try:
        (height, width), steps, why = hf.one_size(f"hf:{folder}")
    except InputError as error:
        notes.append(error.message)
        size = torch_libraries.read_json(folder / torch_libraries.CONFIG).get("image_size", 224)
        size = size[0] if isinstance(size, list) else size
        return (3, size, size), None, None
    if why:
        notes.append(f"all images are resized to {height} x {width}: {why}")
    return (3, height, width), _written(steps), None


def _written(steps: dict[str, Any]) -> str:
    """Steps as a recipe writes them."""
    plain = yaml.safe_dump(
        json.loads(json.dumps(steps)), default_flow_style=True, sort_keys=False, width=10_000
    )
    return str(plain).strip().replace(f"scale: {1 / 255}", "scale: 1/255")


def tried(source: Source, notes: list[str]) -> list[TensorSpec]:
    """The input of a network in code: its first layer says channels, trying the size.

    Raises `InputError` where there are several inputs, or where nothing usual fits.
    """
    known = {"reference": source.target, "name": source.target.partition(".")[0]}
    model = torch_build.build(
        {"kind": source.kind, **known, "arguments": source.arguments}, source.folder
    )
    _network.refuse_lazy(model)
    return _fitting(model, _required(model), source.target, notes)


def of_script(path: Path, notes: list[str], *, trust: bool = False) -> list[TensorSpec]:
    """The input of a TorchScript file, also by trying usual sizes. Raises as `tried` does."""
    model = torchscript_format.read(path, trust=trust)
    return _fitting(model, torchscript_format.required(model), path.name, notes)


def _fitting(
    model: torch.nn.Module, names: list[str], place: str, notes: list[str]
) -> list[TensorSpec]:
    if len(names) > 1:
        each = " ".join(_ONE.replace("image", name) for name in names)
        raise InputError(
            f"the network takes {len(names)} inputs ({', '.join(names)}), which cannot be guessed",
            place=place,
            hint=f"say the type and the shape of each: {each}",
        )
    name = names[0] if names else "image"
    candidates = _candidates(model, name)
    whys: list[str] = []
    for candidate in candidates:
        whys.append(_refused(model, candidate))
        if not whys[-1] and len(candidate.shape) == _VIDEO:  # each further try takes seconds
            break
    fitting = [candidate for candidate, why in zip(candidates, whys, strict=False) if not why]
    if not fitting:
        for candidate in candidates:
            _network.require_tensors(model, {name: _zeros(candidate)})
        raise InputError(
            f"no usual size of images fits the network: {whys[0]}", place=place, hint=_HINT
        )
    if len(fitting) > 1:
        others = ", ".join(str(candidate.shape[-1]) for candidate in fitting[1:4])
        notes.append(
            f"the network takes images of {fitting[0].shape[-1]} pixels, and of others ({others}):"
            " set the size that it was trained with"
        )
    return fitting[:1]


def _required(model: torch.nn.Module) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(model.forward).parameters.values()
    return [p.name for p in parameters if p.kind in kinds and p.default is p.empty]


def _candidates(model: torch.nn.Module, name: str) -> list[TensorSpec]:
    import torch

    layers = (getattr(module, "weight", None) for module in torch_modules.modules(model))
    # Layers first: a mean, a position or the gain of a weight norm has as many dimensions.
    for weight in (*layers, *torch_modules.parameters(model)):
        if not isinstance(weight, torch.Tensor):
            continue
        if weight.ndim == _VIDEO:
            sizes = [(16, 112), (16, 224), (8, 224), (16, 64), (16, 32)]
            return [
                spec(name, "float32", ["batch", int(weight.shape[1]), frames, size, size])
                for frames, size in sizes
            ]
        if weight.ndim == 4:
            return [image((int(weight.shape[1]), size, size), name) for size in _SIZES]
        if weight.ndim == 2:
            width = int(weight.shape[1])
            squares = [
                image((channels, size, size), name)
                for channels in (1, 3)
                for size in _SIZES
                if channels * size * size == width
            ]
            return [*squares, spec(name, "float32", ["batch", width])]
    return [image((channels, size, size), name) for channels in (3, 1) for size in _SIZES]


def _refused(model: torch.nn.Module, candidate: TensorSpec) -> str:
    """Why a network does not take an input; empty where it does."""
    import torch

    try:
        with torch.no_grad():
            model(_zeros(candidate))
    except Exception as error:  # whatever a network raises: it does not take this
        return f"{type(error).__name__}: {first_line(error)}"
    return ""


def _zeros(candidate: TensorSpec) -> torch.Tensor:
    import torch

    return torch.zeros(candidate.concrete(2))
