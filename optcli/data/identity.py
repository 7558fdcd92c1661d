"""Which samples are the same, by content: an evaluation must not see what a model was made with."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from optcli.errors import InputError
from optcli.sample import SampleSet

Identity = tuple[str, str]


def identities(samples: SampleSet) -> list[Identity]:
    """(id, digest of the content) of every sample.

    The content is what lies in the source, before preparation and without the label: a file's bytes, an
    array's row, an item of a torchvision set. For other sample sets it is the prepared inputs.
    """
    identity_of = getattr(samples, "identity", None) or (lambda index: _of_inputs(samples, index))
    return [identity_of(index) for index in range(len(samples))]


def overlap(one: list[Identity], other: list[Identity]) -> list[tuple[str, str]]:
    """The samples of `one` whose content is in `other` too: (id in one, id in other)."""
    there = {digest: name for name, digest in reversed(other)}
    return [(name, there[digest]) for name, digest in one if digest in there]


def disjoint(roles: Mapping[str, SampleSet]) -> None:
    """Raise `InputError` where `evaluation` shares a sample with any other role, by content."""
    if "evaluation" not in roles or len(roles) < 2:
        return
    judged = identities(roles["evaluation"])
    for role, samples in roles.items():
        if role == "evaluation":
            continue
        shared = overlap(judged, identities(samples))
        if shared:
            few = ", ".join(
                name if name == other else f"{name} = {other}" for name, other in shared[:3]
            )
            raise InputError(
                f"evaluation and {role} share {len(shared)} of {len(judged)} samples by content: {few}"
                + (", ..." if len(shared) > 3 else ""),
                place="data",
                hint=f"give evaluation and {role} different splits, or remove the copies",
            )


def _of_inputs(samples: SampleSet, index: int) -> Identity:
    sample = samples[index]
    return sample.id, digest_of(sample.inputs)


def digest_of(values: Mapping[str, Any]) -> str:
    """Digest of arrays and PIL images by their names."""
    mark = hashlib.sha256()
    for name, value in sorted(values.items()):
        form = (value.mode, value.size) if hasattr(value, "mode") else (value.dtype, value.shape)
        mark.update(f"{name}{form}".encode())
        mark.update(value.tobytes())
    return mark.hexdigest()
