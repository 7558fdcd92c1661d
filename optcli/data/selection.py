"""Which samples of a source are taken (splits, an even choice), and which of two roles are the same.

Standard library only: the choice is part of a key and must not move with a library's version.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from optcli.data.image_files import id_of
from optcli.data.settings import DataSettings, Split
from optcli.data.text_files import text_of
from optcli.errors import InputError, counted, did_you_mean, excerpt
from optcli.files import regular_files
from optcli.sample import SampleSet

Identity = tuple[str, str]


def choose(settings: DataSettings, folder: Path, ids: Sequence[str], root: str = "") -> list[int]:
    """Positions in `ids` of the chosen samples, in the order of `ids`.

    `ids` are those of the named part where the split has one; `folder` is the recipe's; `root` is
    the name of the data's own folder, which a listed id may begin with. Raises `InputError`.
    """
    if not ids:
        raise InputError(
            "no samples were found", place=settings.source, hint="look into the data: it is empty"
        )
    chosen = list(range(len(ids)))
    if settings.split and settings.split.file:
        chosen = _listed(settings.split, folder, ids, root)
    if settings.split and settings.split.seed is not None:
        chosen = _part_of_shuffle(settings.split, settings.split.seed, ids)
    if not chosen:
        raise InputError(
            "the split holds no samples",
            place=settings.source,
            hint="widen from and to, or fill the list",
        )
    absent = {*settings.without}
    taken = [position for position in _spread(chosen, settings) if ids[position] not in absent]
    if not taken:
        hint = "name fewer ids under `without`"
        raise InputError("no samples are left", place=settings.source, hint=hint)
    return taken


def split_digest(settings: DataSettings, folder: Path, digest: Any) -> str | None:
    """Digest of the file that lists ids, where there is one. `digest` takes a path."""
    if not settings.split or not settings.split.file:
        return None
    return str(digest(folder / regular_files.expanded(settings.split.file)))


def _spread(chosen: list[int], settings: DataSettings) -> list[int]:
    """`samples` of the chosen: one from each of that many equal stretches, drawn by seed.

    Even across a source sorted by class, and, as each is drawn anew, across one with a period.
    """
    wanted, count = settings.samples, len(chosen)
    if wanted is None or wanted == count:
        return chosen
    if wanted > count:
        raise InputError(
            f"found {counted(count, 'sample')}, wanted {wanted}",
            place=settings.source,
            hint=f"set samples to {count} or less, or leave it out for all",
        )
    draw = random.Random(settings.seed)  # noqa: S311 - for choosing samples, not for secrets
    edges = [count * step // wanted for step in range(wanted + 1)]
    picks = (low + int(draw.random() * (high - low)) for low, high in pairwise(edges))
    return [chosen[pick] for pick in picks]


def _part_of_shuffle(split: Split, seed: int, ids: Sequence[str]) -> list[int]:
    """The part `from`..`to` of the ids in the order of their seeded hashes."""
    marks = [hashlib.sha256(f"{seed}:{name}".encode()).digest() for name in ids]
    order = sorted(range(len(ids)), key=marks.__getitem__)
    return sorted(order[round(split.start * len(ids)) : round(split.stop * len(ids))])


def _listed(split: Split, folder: Path, ids: Sequence[str], root: str) -> list[int]:
    """Positions of the ids that the split's file lists."""
    place = folder / regular_files.expanded(str(split.file))
    positions = {name: position for position, name in enumerate(ids)}
    chosen: set[int] = set()
    missing: list[str] = []
    for name in _read_list(place, split.name):
        inner = name.removeprefix("./").removeprefix(f"{root}/") if root else name
        position = positions.get(name.removeprefix("./"), positions.get(inner))
        if position is None:
            missing.append(name)
        else:
            chosen.add(position)
    if missing:
        raise InputError(
            f"{len(missing)} listed ids are not in the data, the first is {excerpt(missing[0])!r}",
            place=str(place),
            hint=f"ids are written relative to the data's root, such as {excerpt(ids[0])!r}",
        )
    return sorted(chosen)


def _read_list(place: Path, name: str | None) -> list[str]:
    hint = "wanted a list of ids: a text file, or JSON"
    text = text_of(place, hint, regular_files.MOST_JSON_BYTES)
    if place.suffix.lower() != ".json":
        if name is not None:
            hint = "leave name out, or write a JSON mapping from names to lists"
            raise _wrong(place, f"a text file has no part {name!r}", hint)
        return [id_of(line.strip()) for line in text.splitlines() if line.strip()]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        hint = "correct the file, or list one id a line in a .txt file"
        raise _wrong(place, f"not JSON: {error}", hint) from error
    if isinstance(value, dict):
        value = _named(value, name, place)
    elif name is not None:
        hint = f'write {{"{name}": [...]}}, or leave `name` away'
        raise _wrong(place, f"found a list, wanted a mapping with {name!r}", hint)
    if not isinstance(value, list) or not all(isinstance(item, str | int) for item in value):
        message = "wanted a list of ids, or a mapping from names to lists"
        raise _wrong(place, message, 'such as ["a/1.png", "b/2.png"]')
    return [str(item) for item in value]


def _named(value: dict[str, Any], name: str | None, place: Path) -> Any:
    if name is None:
        hint = did_you_mean("", [*value]) or "the file has no parts"
        hint = f"set name to {hint}"
        raise _wrong(place, "the file lists several parts and none is named", hint)
    if name not in value:
        raise _wrong(place, f"no part {name!r} in the file", did_you_mean(name, [*value]))
    return value[name]


def _wrong(place: Path, message: str, hint: str) -> InputError:
    return InputError(message, place=str(place), hint=hint)


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
