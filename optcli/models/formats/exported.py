"""Exported programs: `model.pt2`, written by `torch.export.save`.

The program takes one tensor per input, by position in the recipe's order, and gives a tensor or a flat
tuple of tensors in the order of the artifact's output names.
"""

from __future__ import annotations

import importlib
import os
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from optcli.errors import InputError, MissingError, first_line
from optcli.models.formats import exported_archive, torch_devices

if TYPE_CHECKING:
    from torch.export import ExportedProgram

FILE = "model.pt2"

QUANTIZED = exported_archive.LIBRARIES["quantized_decomposed"]


def doubts(folder: Path) -> tuple[str, ...]:
    """What a person must trust in it. Where there is any, `open` needs `trust`."""
    return tuple(exported_archive.scan(folder / FILE).doubts)


def open(folder: Path, *, trust: bool = False) -> ExportedProgram:
    """The program, once its archive is known to be sound and to unpickle tensors alone.

    One from elsewhere is opened in a confined worker, or where the person trusts it. With `trust` its
    objects of classes and its libraries are opened, too. Raises `InputError` where it is no sound
    program as torch.export writes it, `TrustError` for what needs `trust`.
    """
    import torch

    path = folder / FILE
    if not path.is_file():
        raise InputError(f"there is no {FILE}", place=str(folder), hint="build again")
    findings = exported_archive.scan(path)
    findings.require(path, "exported program", trust=trust)
    for namespace in sorted(findings.namespaces):
        _bring(namespace, path)
    if trust:
        findings.bring_unknown()
    try:
        # Every torch.load in the block then unpickles tensors alone, whatever it asks for.
        tensors_alone = torch_devices.variables(TORCH_FORCE_WEIGHTS_ONLY_LOAD="1")
        with nullcontext() if findings.doubts else tensors_alone:
            return _without_traces(torch.export.load(os.fspath(path)))
    except Exception as error:
        raise findings.unreadable(path, "exported program", "torch.export.save", error) from error


def _bring(namespace: str, path: Path) -> None:
    library = exported_archive.LIBRARIES[namespace]
    try:
        importlib.import_module(library)
    except ImportError as error:
        package = library.partition(".")[0]
        raise MissingError(
            f"the program calls operators of {package}, which cannot be imported: {first_line(error)}",
            place=str(path),
            hint=f"pip install {package}",
        ) from error


def save(program: ExportedProgram, folder: Path) -> None:
    """Write the program. Its traces are left out: they hold the paths of this machine."""
    import torch

    torch.export.save(_without_traces(program), os.fspath(folder / FILE))


def _without_traces(program: ExportedProgram) -> ExportedProgram:
    """The program without its stack traces: texts of any form that compilers write into code."""
    for module in program.graph_module.modules():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            node.meta.pop("stack_trace", None)
    return program
