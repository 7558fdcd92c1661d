"""Exported programs: `model.pt2`, written by `torch.export.save`.

The program takes one tensor per input, by position in the recipe's order, and gives a tensor or a flat
tuple of tensors in the order of the artifact's output names.
"""

from __future__ import annotations

import importlib
import os
import pickle
import re
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from optcli.errors import InputError, MissingError, TrustError, first_line
from optcli.models.formats import torch_archive, torch_devices
from optcli.models.formats.torch_archive import Scan
from optcli.workers import libraries

if TYPE_CHECKING:
    from torch.export import ExportedProgram

# What must be imported before a program can be read that calls operators of these namespaces.
LIBRARIES = {
    # It also teaches Inductor to make integer kernels of a quantized graph.
    "quantized_decomposed": "torchao.quantization.pt2e.quantizer.x86_inductor_quantizer",
    "torchao": "torchao.quantization",
    "torchvision": "torchvision",
}

_MODEL = re.compile(r"models/\w+\.json")

# Objects of classes: of TorchScript's own and of Python.
_OBJECT = re.compile(r"data/constants/(custom|opaque)_obj_.*")

_OPERATOR = re.compile(r"torch\.ops\.(\w+)\.(\w+)")

_OLD_MODEL = "serialized_exported_program.json"

FILE = "model.pt2"

QUANTIZED = LIBRARIES["quantized_decomposed"]

# Facts can come from elsewhere, with a baseline or a copied folder: of the libraries that they say an
# artifact needs (`imports`), only those that our own passes and sources name are imported.
OPERATOR_LIBRARIES = frozenset({QUANTIZED, "torchao.quantization", "torchvision", "timm"})


def doubts(folder: Path) -> tuple[str, ...]:
    """What a person must trust in it. Where there is any, `open` needs `trust`."""
    return tuple(scan(folder / FILE).doubts)


def open(folder: Path, *, trust: bool = False) -> ExportedProgram:
    """The program, once its archive is known to be sound; torch unpickles tensors alone.

    One from elsewhere is opened in a confined worker, or where the person trusts it. With `trust` its
    objects of classes, pickles of any kind and its libraries are opened, too. Raises `InputError` where
    it is no sound program as torch.export writes it, `TrustError` for what needs `trust`.
    """
    import torch

    path = folder / FILE
    if not path.is_file():
        raise InputError(f"there is no {FILE}", place=str(folder), hint="build again")
    findings = scan(path)
    findings.require(path, "exported program", trust=trust)
    for namespace in sorted(findings.namespaces):
        _bring(namespace, path)
    if trust:
        findings.bring_unknown()
    try:
        # Every torch.load in the block then unpickles tensors alone, whatever it asks for.
        tensors_alone = torch_devices.variables(TORCH_FORCE_WEIGHTS_ONLY_LOAD="1")
        with nullcontext() if trust else tensors_alone:
            return _without_traces(torch.export.load(os.fspath(path)))
    except Exception as error:
        if isinstance(error, pickle.UnpicklingError) and not trust:
            findings.doubt("a pickle in it holds more than tensors, or is damaged")
            findings.require(path, "exported program", trust=False)
        raise findings.unreadable(path, "exported program", "torch.export.save", error) from error


def _bring(namespace: str, path: Path) -> None:
    library = LIBRARIES[namespace]
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


def scan(path: Path) -> Scan:
    """Read an archive without loading it.

    Raises `InputError` where it is no such archive, or can be read in two ways.
    """
    findings = Scan()
    with torch_archive.opened(path, "a sound archive of torch.export") as archive:
        names = archive.namelist()
        if _OLD_MODEL in names:
            models: Iterable[str] = [_OLD_MODEL]
        else:
            members = torch_archive.below_top(archive, path)
            models = [name for member, name in members.items() if _MODEL.fullmatch(member)]
            for member in sorted(filter(_OBJECT.fullmatch, members)):
                findings.doubt(f"{member!r} holds more than tensors")
        if not models:
            raise InputError(
                "the archive holds no exported program",
                place=str(path),
                hint="save it with torch.export.save",
            )
        for name in models:
            for space, operator in _OPERATOR.findall(archive.read(name).decode()):
                findings.call(space, operator, LIBRARIES)
    return findings


def bring_operators(names: Iterable[object]) -> None:
    """Import libraries of operators. Raises `TrustError` for any other module, ImportError as ever."""
    for name in names:
        if not isinstance(name, str) or name not in OPERATOR_LIBRARIES:
            raise TrustError(
                f"the artifact wants {str(name)[:80]!r} to be imported, which brings no operators",
                hint=f"known are {', '.join(sorted(OPERATOR_LIBRARIES))}: build the artifact again",
            )
        libraries.bring_in([name])
