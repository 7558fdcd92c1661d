"""Formats: one file is one format on disk.

Every module `optcli/formats/<format>.py` fixes the file names inside an artifact's folder and has

    check(folder: Path) -> None     raises `InputError` where the files are not a sound model
    open(folder: Path) -> ...       the model in its own library
    save(model, folder: Path)       writes it

Heavy libraries are imported inside these functions.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

from optcli.artifact import Format


def module(format: Format) -> ModuleType:
    """The module of a format. Raises ModuleNotFoundError for one that has none yet."""
    return importlib.import_module(f"{__name__}.{format.value}")


def check(format: Format, folder: Path) -> None:
    """Raise `InputError` where the folder does not hold a sound model of the format."""
    module(format).check(folder)
