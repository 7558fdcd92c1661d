"""The preparation that belongs to weights of torchvision, timm or transformers, as these declare it."""

from __future__ import annotations

import math
from typing import Any

from optcli.data import hf
from optcli.data.preparation import Preparation
from optcli.errors import InputError, MissingError, did_you_mean
from optcli.models.formats import torch_libraries


def resolved(steps: Preparation) -> Preparation:
    """The same preparation with its preset spelled out; its library is needed only if there is one.

    Fields that are set beside the preset win. Raises `InputError` for unknown weights.
    """
    if steps.preset is None:
        return steps
    own = {name: getattr(steps, name) for name in steps.model_fields_set - {"preset"}}
    if steps.preset.startswith("hf:"):
        declared = hf.steps_of(steps.preset)
    elif steps.preset.startswith("timm:"):
        declared = _timm(steps.preset)
    else:
        declared = _declared(_transforms(steps.preset), steps.preset)
    return Preparation(**{**declared, **own})


def _timm(preset: str) -> dict[str, Any]:
    """What timm's own evaluation transform does (`timm.data.transforms_imagenet_eval`)."""
    torch_libraries.require_timm_name(preset.partition(":")[2], preset)
    from timm import get_pretrained_cfg
    from timm.data import resolve_data_config

    pretrained = get_pretrained_cfg(preset.partition(":")[2])
    if pretrained is None:
        hint = "declare the steps instead: resize, crop, scale, mean, std"
        raise InputError("timm says nothing about this model's preparation", place=preset, hint=hint)
    config = resolve_data_config({}, pretrained_cfg=pretrained.to_dict())
    channels, *size = config["input_size"]
    ratio = config["crop_pct"]
    scaled = tuple(math.floor(side / ratio) for side in size)
    if config["crop_mode"] not in ("center", "squash") or (
        config["crop_mode"] == "center" and scaled[0] != scaled[1]
    ):
        raise InputError(
            f"timm prepares {preset} in a way that `prepare` does not have: {config['crop_mode']} to"
            f" {size[0]} x {size[1]}",
            place=preset,
            hint="declare the steps instead: resize, crop, scale, mean, std",
        )
    return {
        "resize": scaled if config["crop_mode"] == "squash" else scaled[0],
        "crop": tuple(size),
        "interpolation": config["interpolation"],
        "channel_order": "grey" if channels == 1 else "rgb",
        "scale": 1 / 255,
        "mean": tuple(config["mean"]),
        "std": tuple(config["std"]),
    }


def _transforms(preset: str) -> Any:
    try:
        from torchvision import models
    except ImportError as error:
        hint = "pip install torchvision"
        raise MissingError(f"{preset} needs torchvision: {error}", place=preset, hint=hint) from error
    name = preset.partition(":")[2]
    model, dot, _ = name.partition(".")
    try:
        weights = models.get_weight(name) if dot else models.get_model_weights(model).DEFAULT
    except (ValueError, KeyError) as error:
        names = models.list_models()
        if dot:
            names = [f"{models.get_model_weights(model_name).__name__}.DEFAULT" for model_name in names]
        raise InputError(
            f"torchvision has no weights {name!r}", place="prepare", hint=did_you_mean(name, names)
        ) from error
    return weights.transforms()


def _declared(transforms: Any, preset: str) -> dict[str, Any]:
    """The fields of a preset. Every preset brings 8-bit values to 0..1 first."""
    fields: dict[str, Any] = {"scale": 1 / 255}
    if type(transforms).__name__ == "ObjectDetection":
        return fields
    if type(transforms).__name__ not in ("ImageClassification", "SemanticSegmentation"):
        raise InputError(
            f"the transforms of these weights are {type(transforms).__name__}, wanted those of images",
            place=preset,
            hint="declare the steps instead: resize, crop, scale, mean, std",
        )
    sizes = getattr(transforms, "resize_size", None)
    if sizes:
        fields["resize"] = sizes[0] if len(sizes) == 1 else tuple(sizes)
    crop = getattr(transforms, "crop_size", None)
    if crop:
        fields["crop"] = crop[0] if len(crop) == 1 else tuple(crop)
    fields["interpolation"] = transforms.interpolation.value
    return {**fields, "mean": tuple(transforms.mean), "std": tuple(transforms.std)}
