"""Whether a step has the same key on this machine as where it was planned; if not, what differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import optcli
from optcli import data, environment, passes, runners
from optcli.errors import OptcliError, first_line
from optcli.files.digest import FileDigests, of_value
from optcli.passes import Traits
from optcli.pipeline.keys import PACKAGE
from optcli.pipeline.messages import PassRequest
from optcli.pipeline.on_ray.messages import NodePart
from optcli.settings import user_code

_MOST_NAMED = 3
# In the code of a step: a pass of the user's own, by the digest of its source.
_USERS = "pass"


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
        code = ingredients.get("code", {}).get(_USERS)
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
    differing += _cpu(part.ingredients.get("cpu", {}))
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


def of_code(code: Mapping[str, str], digests: FileDigests) -> tuple[str, ...]:
    """Which of optcli's own modules, digests by file, are other ones here: a phrase, or nothing."""
    other = []
    for file, digest in code.items():
        if file == _USERS:
            continue
        try:
            same = digests.of(PACKAGE / file) == digest
        except OSError:
            same = False
        if not same:
            other.append(file)
    if other:
        named = ", ".join(other[:_MOST_NAMED]) + (", ..." if len(other) > _MOST_NAMED else "")
        return (f"its optcli ({optcli.__version__}) differs in {named}",)
    return ()


def _versions(versions: Mapping[str, str | None]) -> Iterator[str]:
    for name, wanted in versions.items():
        here = environment.version(name)
        if here != wanted:
            yield f"{name} {here or 'is not installed'}, wanted {wanted or 'none'}"


def of_device(device: Mapping[str, Any], traits: Traits) -> tuple[str, ...]:
    """What tells that this is not the device that a result is bound to: a phrase, or nothing."""
    if "cpu" in device:
        return _cpu(device["cpu"])
    if traits.reference is not None:  # only its own code could tell
        return (
            "a pass of your own that is bound to a device runs on the machine that planned it only",
        )
    bound_to = passes.find(traits.name).model_validate(traits.options).bound_to()
    if of_value(bound_to) != of_value(dict(device)):
        other = sorted(name for name in device if bound_to.get(name) != device[name])
        named = ", ".join(other[:_MOST_NAMED]) or "nothing is known of it"
        return (f"it is another device: {named}",)
    return ()


def _cpu(cpu: Mapping[str, Any]) -> tuple[str, ...]:
    if dict(cpu) == environment.cpu():
        return ()
    return (f"its CPU is {environment.cpu()['model']}, wanted {cpu.get('model')}",)
