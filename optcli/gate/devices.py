"""The devices whose latency decides."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from optcli.errors import UsageError
from optcli.observer import Observer
from optcli.pipeline.devices import Device, place_of
from optcli.pipeline.on_devices import joined
from optcli.pipeline.places import HERE as THIS_MACHINE
from optcli.pipeline.places import Here, Place
from optcli.pipeline.plan import Plan
from optcli.settings import GateSettings
from optcli.settings.devices import HERE
from optcli.store import Store


@contextmanager
def reached(
    ray: str | None, settings: GateSettings, plan: Plan, store: Store, observer: Observer
) -> Iterator[tuple[Place, ...]]:
    """The places of `gate.devices` in their order; this machine where it names none.

    Raises `UsageError` where a device needs `--ray` or is none of the recipe's, `MissingError` where no
    node of the cluster is the device.
    """
    if settings.devices is None:
        yield (THIS_MACHINE,)
        return
    recipe = plan.recipe
    for name in settings.devices:
        if name != HERE and name not in recipe.devices:
            raise UsageError(
                f"the baseline was judged on a device {name!r}, which the recipe does not have",
                place="gate.devices",
                hint="bring it back, or declare the change: --accept rule",
            )
    variants = tuple(each.name for each in plan.variants)
    devices = [Device(name, place_of(recipe, name), variants) for name in settings.devices]
    with joined(ray, plan, devices, store, observer) as far:
        yield tuple(far.get(name) or Here(name) for name in settings.devices)
