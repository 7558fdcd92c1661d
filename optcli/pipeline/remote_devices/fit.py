"""Whether this machine has the optcli of another one, and is the device that something was made for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optcli
from optcli import environment, passes
from optcli.files.digest import FileDigests, of_value
from optcli.passes import Traits
from optcli.pipeline.keys import PACKAGE

_MOST_NAMED = 3
# In the code of a step: a pass of the user's own, by the digest of its source.
USERS = "pass"


def of_code(code: Mapping[str, str], digests: FileDigests) -> tuple[str, ...]:
    """Which of optcli's own modules, digests by file, are other ones here: a phrase, or nothing."""
    other = []
    for file, digest in code.items():
        if file == USERS:
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


def of_device(device: Mapping[str, Any], traits: Traits) -> tuple[str, ...]:
    """What tells that this is not the device that a result is bound to: a phrase, or nothing."""
    if "cpu" in device:
        return of_cpu(device["cpu"])
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


def of_cpu(cpu: Mapping[str, Any]) -> tuple[str, ...]:
    """What tells that this is not the processor of a description: a phrase, or nothing."""
    if dict(cpu) == environment.cpu():
        return ()
    return (f"its CPU is {environment.cpu()['model']}, wanted {cpu.get('model')}",)
