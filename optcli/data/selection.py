"""Which samples of a source are taken: splits by a list of ids or by seed, and an even choice.

Standard library only: the choice is part of a key and must not move with a library's version.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from optcli.data.image_files import id_of
from optcli.data.settings import DataSettings, Split
from optcli.data.text_files import text_of
from optcli.errors import InputError, counted, did_you_mean, excerpt
from optcli.files import regular_files


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
