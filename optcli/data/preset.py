"""The preparation that belongs to torchvision weights, read from their transforms."""

from __future__ import annotations

from typing import Any

from optcli.data.preparation import Preparation
from optcli.errors import InputError, MissingError, did_you_mean


def resolved(steps: Preparation) -> Preparation:
    """The same preparation with its preset spelled out; needs torchvision only if there is one.

    Fields that are set beside the preset win. Raises `InputError` for unknown weights.
    """
    if steps.preset is None:
        return steps
    own = {name: getattr(steps, name) for name in steps.model_fields_set - {"preset"}}
    return Preparation(**{**_declared(_transforms(steps.preset), steps.preset), **own})


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
        known = models.list_models()
        if dot:
            known = [
                f"{models.get_model_weights(known_model).__name__}.DEFAULT" for known_model in known
            ]
        raise InputError(
            f"torchvision has no weights {name!r}", place="prepare", hint=did_you_mean(name, known)
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
