"""Formats: one file is one format on disk.

Every module `<format>.py` of this folder fixes the file names inside an artifact's folder and has

    open(folder: Path) -> ...       the model in its own library; raises `InputError` for an unsound one
    save(model, folder: Path)       writes it
    check(folder: Path) -> None     raises `InputError`, where opening a model does not check all of it

Formats of programs (`artifact.SCANNED`) also have `doubts(folder: Path) -> tuple[str, ...]`, and their
`open` takes `trust`.

Heavy libraries are imported inside these functions.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from optcli.artifact import SCANNED, Format


def module(format: Format) -> ModuleType:
    """The module of a format. Raises ModuleNotFoundError for one that has none yet."""
    return importlib.import_module(f"{__name__}.{format.value}")


def check(format: Format, folder: Path, *, trust: bool = False) -> None:
    """Raise `InputError` where the folder does not hold a sound model of the format.

    `TrustError` for what needs `trust` in who made it, without that.
    """
    of_format = module(format)
    check = getattr(of_format, "check", of_format.open)
    check(folder, **({"trust": trust} if format in SCANNED else {}))


def doubts(format: Format, folder: Path) -> tuple[str, ...]:
    """What a person must trust in a program; of other formats nothing."""
    return tuple(module(format).doubts(folder)) if format in SCANNED else ()
