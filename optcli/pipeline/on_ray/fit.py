"""Whether a step has the same key on this machine as where it was planned; if not, what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from optcli import data, environment, runners
from optcli.errors import OptcliError, first_line
from optcli.files.digest import FileDigests, of_value
from optcli.passes import Traits
from optcli.pipeline.keys import PACKAGE
from optcli.pipeline.messages import PassRequest
from optcli.pipeline.on_ray.messages import NodePart
from optcli.pipeline.remote_devices.fit import USERS, of_code, of_cpu, of_device
from optcli.settings import user_code


def differences(
    ingredients: Mapping[str, Any],
    made_of: Mapping[str, Mapping[str, Any]],
    traits: Traits,
    digests: FileDigests,
) -> tuple[str, ...]:
    """What would make the key another one here, a phrase each: versions, optcli's own code, devices.

    `made_of` are the ingredients of the samples that the step reads, by role.
    """
    differing = [each.what for each in environment.missing(traits.needs)]
    differing += of_code(ingredients.get("code", {}), digests)
    differing += _versions(ingredients.get("versions", {}))
    for role in made_of.values():
        differing += _versions(role.get("versions", {}))
        if "code" in role and role["code"] != digests.of_folder(PACKAGE / "data"):
            differing.append("its optcli reads data in another way")
    if "device" in ingredients:
        differing += of_device(ingredients["device"], traits)
    return tuple(dict.fromkeys(differing))


def of_project(
    request: PassRequest,
    ingredients: Mapping[str, Any],
    made_of: Mapping[str, Mapping[str, Any]],
    digests: FileDigests,
) -> tuple[str, ...]:
    """What differs in the files of the recipe's folder: the user's pass and the samples."""
    differing = []
    try:
        traits = request.traits
        code = ingredients.get("code", {}).get(USERS)
        if traits.reference is not None and code is not None:
            here = user_code.digest(traits.reference, request.folder, digests)
            if here != code:
                differing.append(f"{traits.reference}, or what it imports, differs there")
        for role, wanted in made_of.items():
            here_too = data.ingredients(request.data[role], request.folder, digests)
            if of_value({"step": "samples", **here_too}) != of_value(wanted):
                differing.append(f"the samples of {role} differ there")
    except (OptcliError, OSError) as error:
        differing.append(f"the recipe's code or data cannot be read there: {first_line(error)}")
    return tuple(differing)


def of_evaluation(part: NodePart, digests: FileDigests) -> tuple[str, ...]:
    """As `differences`, of an evaluation: its outputs are those of one kind of processor."""
    runner = runners.find(part.request.runner).model_validate(part.request.options)
    differing = [each.what for each in environment.missing(runner.requires())]
    differing += of_code(part.ingredients.get("code", {}), digests)
    differing += _versions(part.ingredients.get("versions", {}))
    differing += of_cpu(part.ingredients.get("cpu", {}))
    return tuple(dict.fromkeys(differing))


def of_judging(part: NodePart, digests: FileDigests) -> tuple[str, ...]:
    """As `of_project`, of an evaluation: the user's metric, what follows the model, and the samples."""
    folder = part.request.folder
    differing = []
    try:
        users = [user_code.digest(each, folder, digests) for each in part.references]
        if users != part.ingredients.get("users"):
            differing.append(f"{', '.join(part.references)}, or what it imports, differs there")
        of = data.ingredients(part.request.data, folder, digests)
        if of_value({"step": "samples", **of}) != part.samples:
            differing.append("the samples of evaluation differ there")
    except (OptcliError, OSError) as error:
        differing.append(f"the recipe's code or data cannot be read there: {first_line(error)}")
    return tuple(differing)


def _versions(versions: Mapping[str, str | None]) -> Iterator[str]:
    for name, wanted in versions.items():
        here = environment.version(name)
        if here != wanted:
            yield f"{name} {here or 'is not installed'}, wanted {wanted or 'none'}"
