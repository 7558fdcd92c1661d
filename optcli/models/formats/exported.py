"""Exported programs: `model.pt2`, written by `torch.export.save`.

The program takes one tensor per input, by position in the recipe's order, and gives a tensor or a flat
tuple of tensors in the order of the artifact's output names.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import zipfile
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

_CONFIG = re.compile(r"data/(weights|constants)/\w+_\1_config\.json")

# Unpickled, unless a config says that they are the bytes of a tensor.
_PAYLOAD = re.compile(r"data/(weights|constants|sample_inputs)/.+")

# Objects of classes: of TorchScript's own and of Python.
_OBJECT = re.compile(r"data/constants/(custom|opaque)_obj_.*")

_OPERATOR = re.compile(r"torch\.ops\.(\w+)\.(\w+)")

# Bytes of an element by torch.export's number of its type; others are taken for one byte.
_ELEMENT_BYTES = {3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8, 11: 16, 13: 2, 28: 2, 34: 4, 35: 8}

_OLD_MODEL = "serialized_exported_program.json"

# The first torch that wrote them called pickles .json.
_OLD_PICKLE = re.compile(r"serialized_(state_dict|constants|example_inputs)\.(pt|json)")

FILE = "model.pt2"

QUANTIZED = LIBRARIES["quantized_decomposed"]

# Facts can come from elsewhere, with a baseline or a copied folder: of the libraries that they say an
# artifact needs (`imports`), only those that our own passes and sources name are imported.
OPERATOR_LIBRARIES = frozenset({QUANTIZED, "torchao.quantization", "torchvision", "timm"})


def doubts(folder: Path) -> tuple[str, ...]:
    """What a person must trust in it. Where there is any, `open` needs `trust`."""
    return tuple(scan(folder / FILE).doubts)


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
    findings = scan(path)
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

    Raises `InputError` where it is no such archive, can be read in two ways, or holds what does not
    belong together.
    """
    findings = Scan()
    with torch_archive.opened(path, "a sound archive of torch.export") as archive:
        names = archive.namelist()
        if _OLD_MODEL in names:
            models: Iterable[str] = [_OLD_MODEL]
            pickles = {name: name for name in names if _OLD_PICKLE.fullmatch(name)}
        else:
            members = torch_archive.below_top(archive, path)
            models = [name for member, name in members.items() if _MODEL.fullmatch(member)]
            pickles = _pickles(archive, members, path, findings)
        if not models:
            raise InputError(
                "the archive holds no exported program",
                place=str(path),
                hint="save it with torch.export.save",
            )
        for name in models:
            for space, operator in _OPERATOR.findall(archive.read(name).decode()):
                findings.call(space, operator, LIBRARIES)
        for member, name in pickles.items():
            _scan_pickle(archive.read(name), member, path, findings)
    return findings


def _pickles(
    archive: zipfile.ZipFile, members: dict[str, str], path: Path, findings: Scan
) -> dict[str, str]:
    """The members that torch may unpickle: all payloads but the bytes of tensors, which must fit.

    One that a config reads as bytes and another unpickles is among them.
    """
    raw: set[str] = set()
    unpickled: set[str] = set()
    configs = {member: match[1] for member in members if (match := _CONFIG.fullmatch(member))}
    for member, kind in configs.items():
        for payload in _read_config(archive.read(members[member]), member):
            target = f"data/{kind}/{payload.get('path_name')}"
            if target not in members:
                raise InputError(
                    f"the archive lacks {target[:80]!r}", place=str(path), hint="copy it again"
                )
            if payload.get("use_pickle") is False:
                raw.add(target)
                record_bytes = archive.getinfo(members[target]).file_size
                _check_place(payload.get("tensor_meta"), target, record_bytes)
            else:
                unpickled.add(target)
    payloads = {member for member in members if _PAYLOAD.fullmatch(member)} - configs.keys()
    for member in sorted(filter(_OBJECT.fullmatch, payloads)):
        findings.doubt(f"{member!r} holds more than tensors")
        payloads.remove(member)
    return {member: members[member] for member in members if member in payloads - (raw - unpickled)}


def _check_place(about: Any, member: str, record_bytes: int) -> None:
    """Raise `ValueError` for a tensor that reaches behind its record."""
    about = about if isinstance(about, dict) else {}
    numbers = [about.get("sizes"), about.get("strides"), [about.get("storage_offset")]]
    try:
        sizes, strides, (offset,) = ([each["as_int"] for each in part] for part in numbers)
    except (TypeError, KeyError) as error:
        raise ValueError(f"{member!r} has a shape that is none") from error
    needed_bytes = torch_archive.reach(sizes, strides, offset) * _ELEMENT_BYTES.get(
        about.get("dtype"), 1
    )
    if needed_bytes > record_bytes:
        raise ValueError(f"a tensor takes {needed_bytes} bytes of {member!r}, which has {record_bytes}")


def _read_config(data: bytes, member: str) -> list[dict[str, object]]:
    config = json.loads(data.decode())
    payloads = config.get("config") if isinstance(config, dict) else None
    if not isinstance(payloads, dict) or not all(isinstance(one, dict) for one in payloads.values()):
        raise ValueError(f"{member!r} lists no tensors")
    return list(payloads.values())


def _scan_pickle(data: bytes, member: str, path: Path, findings: Scan) -> None:
    import torch

    if not data:  # torch reads nothing of it
        return
    torch_archive.check_saved(path, data)
    try:
        torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        findings.doubt(f"{member!r} holds more than tensors ({first_line(error)[:120]})")


def bring_operators(names: Iterable[object]) -> None:
    """Import libraries of operators. Raises `TrustError` for any other module, ImportError as ever."""
    for name in names:
        if not isinstance(name, str) or name not in OPERATOR_LIBRARIES:
            raise TrustError(
                f"the artifact wants {str(name)[:80]!r} to be imported, which brings no operators",
                hint=f"known are {', '.join(sorted(OPERATOR_LIBRARIES))}: build the artifact again",
            )
        libraries.bring_in([name])
