"""AOTInductor packages: `model.pt2`, a zip with a shared library that holds code and weights.

The library runs as soon as it is loaded: open a package only from the own store, after its digest was
checked, or where the person said that they trust it.
"""

from __future__ import annotations

import os
import zipfile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from optcli.errors import InputError, TrustError

if TYPE_CHECKING:
    from torch.export.pt2_archive._package import AOTICompiledModel

FILE = "model.pt2"


def check(folder: Path) -> None:
    """Raise `InputError` where `model.pt2` is no complete package; nothing in it is loaded or run.

    `TrustError` where a member would be unpacked outside its folder.
    """
    path = folder / FILE
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            damaged = archive.testzip()
    except (OSError, zipfile.BadZipFile) as error:
        raise InputError(
            f"this is not an AOTInductor package: {error}",
            place=str(path),
            hint="build it again with aot_inductor",
        ) from error
    for name in names:
        member = PurePosixPath(name)
        if member.is_absolute() or ".." in member.parts or "\\" in name:
            raise TrustError(
                f"the package would write outside its folder: {name!r}",
                place=str(path),
                hint="build it again with aot_inductor",
            )
    if damaged is not None:
        raise InputError(
            f"the package is damaged at {damaged!r}", place=str(path), hint="build it again"
        )
    if not any("/data/aotinductor/" in name and name.endswith(".so") for name in names):
        raise InputError(
            "the package holds no compiled model", place=str(path), hint="build it with aot_inductor"
        )


def open(folder: Path, device: str = "cpu") -> AOTICompiledModel:
    """The compiled model: call it with one tensor per input. Runs native code of the package.

    torch unpacks it into a temporary folder of its own; nothing is written beside it. `device` is
    `cpu` or `cuda:N`, of the kind that it was compiled for.
    """
    import torch._inductor

    index = int(device.partition(":")[2] or -1)
    return torch._inductor.aoti_load_package(os.fspath(folder / FILE), device_index=index)
