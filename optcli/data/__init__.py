"""Where samples come from and how they are prepared: one file is one kind of source.

`npz:digits.npz` is read by `optcli/data/npz.py`. Checking and keys need no heavy library; samples
are opened in workers, decoded one at a time, and every one is checked against the model's inputs.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli import registry, regular_files
from optcli.data.collection import Collection, Finding
from optcli.data.identity import disjoint
from optcli.data.preparation import Preparation
from optcli.data.settings import DataSettings
from optcli.digest import FileDigests
from optcli.environment import version
from optcli.errors import InputError, did_you_mean, excerpt, raised_as
from optcli.settings import TensorSpec, fed

if TYPE_CHECKING:
    from optcli.data.samples import PreparedSet

__all__ = [
    "KINDS",
    "DataSettings",
    "Preparation",
    "class_names",
    "disjoint",
    "ingredients",
    "open",
    "problems",
]

KINDS = ("coco", "imagefolder", "npz", "python", "torchvision")


def problems(settings: DataSettings, folder: Path) -> list[Finding]:
    """What is wrong with a role's data, without a heavy import: (field, message, hint).

    `folder` is the one that paths are relative to. Looks at what exists, not into the samples.
    """
    if settings.kind not in KINDS:
        return [
            ("source", f"unknown data source {settings.kind!r}", did_you_mean(settings.kind, KINDS))
        ]
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
    with raised_as(InputError, message, of=OSError, reason=str, place=settings.source, hint=hint):
        content = _collection(settings, folder).ingredients(digests)
    libraries = ["numpy", "pillow"]
    preset = (settings.prepare and settings.prepare.preset) or ""
    if settings.kind == "torchvision" or preset.startswith("torchvision:"):
        libraries.append("torchvision")
    if preset.startswith("timm:"):
        libraries.append("timm")
    return {
        "settings": settings.without_paths(),
        "content": content,
        "code": digests.of_folder(Path(__file__).parent),
        "versions": {name: version(name) for name in libraries},
    }


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
    if settings.kind not in KINDS:
        hint = did_you_mean(settings.kind, KINDS)
        raise InputError(f"unknown data source {settings.kind!r}", place=settings.source, hint=hint)
    module = importlib.import_module(f"{__name__}.{settings.kind}")
    kind = registry.only_subclass(module, Collection)  # type: ignore[type-abstract]
    return kind(settings, folder)
