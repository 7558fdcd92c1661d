"""Which devices a recipe asks for, and which variants are measured on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optcli.recipe import Recipe
from optcli.settings.devices import HERE, DeviceSettings, RayPlace

# Below a recipe's results: what the devices after the first one measured.
FOLDER = "devices"


@dataclass(frozen=True)
class Device:
    """A machine to measure on, and the variants that are measured there, the baseline among them.

    `name` is None where the recipe asks for no device: then it is this machine. A device on a cluster
    has `ray`, one that ssh reaches `ssh`, and this machine neither.
    """

    name: str | None
    ray: RayPlace | None
    variants: tuple[str, ...]
    ssh: bool = False

    @property
    def is_here(self) -> bool:
        """Whether it is this machine."""
        return self.ray is None and not self.ssh


def devices_of(recipe: Recipe, names: Sequence[str], baseline: str) -> tuple[Device, ...]:
    """The devices on which these variants are measured, in the recipe's order; at least one.

    Those of `latency.devices` come first, then those that only variants name. The baseline is measured
    on each: a speed-up holds within a device.
    """
    asked = {name: recipe.variants[name].devices for name in names}
    usual = recipe.latency.devices
    if usual is None and not any(asked.values()):
        return (Device(None, None, tuple(names)),)
    of_variant = {name: own or usual or (_here(recipe),) for name, own in asked.items()}
    order = dict.fromkeys([*(usual or ()), *(each for own in of_variant.values() for each in own)])
    devices = []
    for name in order:
        members = [each for each in names if name in of_variant[each]]
        if members:
            there = tuple(each for each in names if each in members or each == baseline)
            devices.append(device_of(recipe, name, there))
    return tuple(devices)


def at_home(recipe: Recipe) -> Recipe:
    """The recipe without devices to measure on: everything is measured on this machine."""
    return recipe.model_copy(
        update={
            "latency": recipe.latency.model_copy(update={"devices": None}),
            "variants": {
                name: variant.model_copy(update={"devices": None})
                for name, variant in recipe.variants.items()
            },
        }
    )


def device_of(recipe: Recipe, name: str, variants: tuple[str, ...]) -> Device:
    """A device that the recipe names, or this machine, with the variants that are measured there."""
    settings = recipe.devices.get(name, DeviceSettings())
    return Device(name, settings.ray, variants, settings.ssh)


def _here(recipe: Recipe) -> str:
    """What the recipe calls this machine."""
    named = [name for name, settings in recipe.devices.items() if settings.is_here]
    return HERE if HERE in named or not named else named[0]
