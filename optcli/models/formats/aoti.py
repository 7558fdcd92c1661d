"""AOTInductor packages: `model.pt2`, a zip with shared libraries that hold code and weights.

It holds one model for any batch size, models of one batch size each, or both (`aoti_models.py`). A
library runs as soon as it is loaded: open a package only from the own store, after its digest was
checked, or where the person said that they trust it.
"""

from __future__ import annotations

import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from optcli.errors import InputError, TrustError
from optcli.files.folders import require_executable
from optcli.models.formats import torch_devices
from optcli.models.formats.aoti_models import Models, Routes

FILE = "model.pt2"
_MEMBER = re.compile(r"(?:^|/)data/aotinductor/([^/]+)/")


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
    if not _models(names):
        raise InputError(
            "the package holds no compiled model", place=str(path), hint="build it with aot_inductor"
        )


def models(folder: Path) -> dict[str, int]:
    """The names of the compiled models and the bytes of each; nothing is loaded."""
    sizes_bytes: dict[str, int] = {}
    with zipfile.ZipFile(folder / FILE) as archive:
        names = _models(archive.namelist())
        for member in archive.infolist():
            match = _MEMBER.search(member.filename)
            if match is not None and match[1] in names:
                sizes_bytes[match[1]] = sizes_bytes.get(match[1], 0) + member.file_size
    return sizes_bytes


def _models(names: Sequence[str]) -> list[str]:
    """The names of the models that have a library, in the order of the members."""
    matches = (_MEMBER.search(name) for name in names if name.endswith(".so"))
    return list(dict.fromkeys(match[1] for match in matches if match))


def write(folder: Path, files: Mapping[str, Sequence[Any]]) -> None:
    """Write the package from what AOTInductor left for each model, by the models' names."""
    from torch._inductor.package import package_aoti

    package_aoti(os.fspath(folder / FILE), {name: list(each) for name, each in files.items()})


def open(folder: Path, device: str = "cpu", routes: Mapping[str, Any] | None = None) -> Models:
    """The compiled models: call them with one tensor per input. Runs native code of the package.

    torch unpacks it into a temporary folder of its own; nothing is written beside it. `device` is
    `cpu` or `cuda:N`, of the kind that it was compiled for; `routes` is the artifact's fact of that
    name, where it has one. Raises `MissingError` where nothing can run from that folder.
    """
    require_executable(tempfile.gettempdir())
    kind, _, number = device.partition(":")
    if kind == torch_devices.CUDA:
        import torch

        torch.cuda.init()
    index = int(number or -1)
    path, names = os.fspath(folder / FILE), list(models(folder))
    loaded = {name: _loaded(path, name, index) for name in names}
    model_routes = Routes.of_names(names) if routes is None else Routes.from_record(routes)
    return Models(loaded, model_routes)


def _loaded(path: str, name: str, index: int) -> Callable[..., Any]:
    """One model of a package, by what `torch._inductor.aoti_load_package` wraps.

    That function imports torch's compiler first, and may call g++ to find out about the processor. Its
    models read their own description on every call. What that takes: benchmarks/README.md.
    """
    import torch
    from torch.utils import _pytree as pytree

    try:
        loader = torch._C._aoti.AOTIModelPackageLoader(path, name, False, 1, index)
    except (AttributeError, TypeError, RuntimeError):
        # Another version of torch, or an operator that torch's compiler registers. For everything else
        # the public function raises its own error.
        from torch._inductor.package import load_package

        public: Callable[..., Any] = load_package(path, name, device_index=index)
        return public
    outputs = pytree.treespec_loads(loader.get_call_spec()[1])

    def model(*tensors: torch.Tensor) -> Any:
        return pytree.tree_unflatten(loader.boxed_run([*tensors]), outputs)

    return model
