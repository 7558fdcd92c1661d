"""The devices of a recipe: their names, and who is measured where."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optcli.errors import did_you_mean
from optcli.recipe.names import name_problem
from optcli.recipe.nodes import Node, Problems
from optcli.recipe.validation import found
from optcli.settings.devices import HERE, DeviceSettings


def check_devices(
    recipe: Node, sections: Mapping[str, Any], variants: Mapping[str, Node], problems: Problems
) -> None:
    """Note devices whose names are no folder's, and lists of devices that name unknown ones.

    `variants` are the variants as they are written.
    """
    devices: dict[str, DeviceSettings] | None = sections.get("devices")
    if devices is None:  # something in them is wrong already
        return
    listed = recipe.get("devices")
    seen: dict[str, str] = {}
    for name, node in listed.items() if listed is not None else ():
        wrong = name_problem(name)
        if name == HERE and devices[name].ray is not None:
            wrong = (f"{HERE} is the machine that runs optcli, found ray", "choose another name")
        elif name.lower() in seen:
            wrong = (f"it differs from {seen[name.lower()]!r} in capitals only", "rename one of them")
        if wrong is not None:
            problems.add(node.start, f"the device {found(name)}: {wrong[0]}", wrong[1])
        seen.setdefault(name.lower(), name)
    for section in ("latency", "gate"):
        _listed(recipe.get(section), f"{section}.devices", devices, problems)
    for name, node in variants.items():
        _listed(node, f"devices of {name}", devices, problems)


def _listed(
    owner: Node | None, where: str, devices: Mapping[str, DeviceSettings], problems: Problems
) -> None:
    """Names in a list of devices: known, and no machine twice."""
    node = None if owner is None else owner.get("devices")
    machines: dict[str | None, str] = {}
    for item in node.elements() if node is not None else ():
        name = item.value
        if not isinstance(name, str):
            continue
        if name not in devices and name != HERE:
            message = f"{where}: there is no device {found(name)}"
            known = [*devices, *([] if HERE in devices else [HERE])]
            problems.add(item.place, message, _meant(name, known))
            continue
        is_here = name == HERE or devices[name].ray is None
        machine = HERE if is_here else name
        if machine in machines:
            other = machines[machine]
            same = "is named twice" if other == name else f"is the same machine as {other!r}"
            problems.add(item.place, f"{where}: {name!r} {same}", "name each machine once")
        machines.setdefault(machine, name)


def _meant(name: str, known: list[str]) -> str:
    near = did_you_mean(name, known)
    return near if "did you mean" in near else f"{near}; add it to devices: {{{name}: {{ray: ...}}}}"
