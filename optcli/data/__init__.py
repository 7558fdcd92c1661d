"""Where samples come from and how they are prepared: one file is one kind of source.

`npz:digits.npz` is read by `optcli/data/layouts/npz.py`. Checking and keys need no heavy library;
samples are opened in workers, decoded one at a time, and every one is checked against the model's
inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import environment, regular_files
from optcli.data import layouts
from optcli.data.collection import Collection, Finding
from optcli.data.identity import disjoint
from optcli.data.preparation import Preparation
from optcli.data.settings import DataSettings
from optcli.digest import FileDigests
from optcli.environment import version
from optcli.errors import InputError, MissingError, did_you_mean, excerpt, raised_as
from optcli.settings import TensorSpec, fed

if TYPE_CHECKING:
    from optcli.data.samples import PreparedSet

__all__ = [
    "DataSettings",
    "Preparation",
    "class_names",
    "disjoint",
    "ingredients",
    "listed",
    "open",
    "problems",
]


def problems(settings: DataSettings, folder: Path) -> list[Finding]:
    """What is wrong with a role's data, without a heavy import: (field, message, hint).

    `folder` is the one that paths are relative to. Looks at what exists, not into the samples.
    """
    known = layouts.names()
    if settings.kind not in known:
        hint = did_you_mean(settings.kind, known)
        return [("source", f"unknown data source {settings.kind!r}", hint)]
    findings = []
    split = settings.split
    if split and split.file:
        path = folder / regular_files.expanded(split.file)
        if wrong := regular_files.problem(path, excerpt(split.file)):
            findings.append(("split.file", wrong, "a path relative to the recipe"))
    try:
        return findings + _collection(settings, folder).problems()
    except OSError as error:
        reason = error.strerror or str(error)
        return [*findings, ("source", f"cannot be read: {reason}", "look at its permissions")]


def ingredients(settings: DataSettings, folder: Path, digests: FileDigests) -> dict[str, Any]:
    """Everything that decides the samples, by content: never a path. Plain JSON data.

    Imports nothing heavy. Raises `InputError` where files are missing.
    """
    message = "cannot read the data"
    hint = "look at its permissions"
    collection = _collection(settings, folder)
    with raised_as(InputError, message, of=OSError, reason=str, place=settings.source, hint=hint):
        content = collection.ingredients(digests)
    preset, colon, _ = ((settings.prepare and settings.prepare.preset) or "").partition(":")
    libraries = {"numpy", "pillow", *collection.needs.packages, *([preset] if colon else [])}
    return {
        "settings": settings.without_paths(),
        "content": content,
        "code": digests.of_folder(Path(__file__).parent),
        "versions": {name: version(name) for name in sorted(libraries)},
    }


def listed(settings: DataSettings, folder: Path) -> Iterator[Path]:
    """Files whose names take part in the choice of samples: `ingredients` need not read all of them."""
    return _collection(settings, folder).listed()


def open(settings: DataSettings, folder: Path, inputs: Sequence[TensorSpec]) -> PreparedSet:
    """The samples of a role, prepared for a model's inputs and decoded one at a time.

    Inputs with a value are filled here, whatever the source.
    Raises `InputError` for data that cannot be used as declared, `TrustError` for pickled arrays.
    A sample that does not fit the inputs raises `InputError` when it is read.
    """
    from optcli.data.samples import PreparedSet

    return PreparedSet(settings, _collection(settings, folder).open(fed(inputs)), inputs)


def class_names(settings: DataSettings, folder: Path) -> tuple[str, ...] | None:
    """What the classes are called, that of label 0 first; None where the source does not say.

    Names come from class folders, COCO's categories and torchvision's data sets. Raises as `open` does.
    """
    return _collection(settings, folder).class_names()


def _collection(settings: DataSettings, folder: Path) -> Collection:
    """The source of a role. Raises `InputError`, and `MissingError` where its library is not here."""
    known = layouts.names()
    if settings.kind not in known:
        hint = did_you_mean(settings.kind, known)
        raise InputError(f"unknown data source {settings.kind!r}", place=settings.source, hint=hint)
    kind = layouts.find(settings.kind)
    for missing in environment.missing(kind.needs):
        raise MissingError(missing.what, place=settings.source, hint=missing.hint)
    return kind(settings, folder)
