"""Reading a `.pt2` archive of torch.export without letting it run code.

`torch.export.load` unpickles without limits where the archive tells it to. So an archive is read first:
every member must be one that torch.export writes, the model's graph must only compute, and whatever is
unpickled must hold tensors alone. What cannot be shown to be harmless is a doubt (`formats.scanning`);
an archive whose parts do not fit together is refused.

Two layouts are known: all members below one folder (torch 2.8 and later), and all of them at the top
(up to torch 2.7).
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from optcli.errors import InputError, first_line
from optcli.formats import exported_program, storages, zip_archive
from optcli.formats.scanning import Scan

# Plain data that torch.export and torch's own zip writer put beside model and weights.
_PLAIN = re.compile(
    r"(archive_format|archive_version|version|byteorder|\.data/(version|serialization_id)"
    r"|\.format_version|\.storage_alignment|extra/.+)"
)
_MODEL = re.compile(r"models/(\w+)\.json")
_CONFIG = re.compile(r"data/(weights|constants)/(\w+)_\1_config\.json")
_PAYLOAD = re.compile(r"data/(weights/weight_\d+|constants/tensor_\d+)")
# Objects of classes: of TorchScript's own and of Python.
_OBJECT = re.compile(r"data/constants/(custom|opaque)_obj_.*")
# Unpickled for the model of that name.
_PICKLE = re.compile(r"data/(?:weights|constants|sample_inputs)/(\w+)\.pt")

# Bytes of an element by torch.export's number of its type; others are taken for one byte.
_ELEMENT_BYTES = {3: 2, 4: 4, 5: 8, 6: 2, 7: 4, 8: 8, 9: 4, 10: 8, 11: 16, 13: 2, 28: 2, 34: 4, 35: 8}

_OLD_MODEL = "serialized_exported_program.json"
_OLD_PLAIN = re.compile(r"version|extra_files/.+|byteorder|\.data/.+")
# The first torch that wrote them called pickles .json.
_OLD_PICKLE = re.compile(r"serialized_(state_dict|constants|example_inputs)\.(pt|json)")


def scan(path: Path) -> Scan:
    """Read an archive without loading it.

    Raises `InputError` where it is no such archive, can be read in two ways, or holds what does not
    belong together.
    """
    findings = Scan()
    with zip_archive.opened(path, "a sound archive of torch.export") as archive:
        names = archive.namelist()
        if _OLD_MODEL in names:
            _scan_old(archive, names, path, findings)
        else:
            _scan_members(archive, names, path, findings)
    return findings


def _scan_members(archive: zipfile.ZipFile, names: list[str], path: Path, findings: Scan) -> None:
    """Every member is a model, plain data, the bytes of a tensor, or a pickle of tensors alone."""
    tops = {name.partition("/")[0] for name in names}
    members = {name.partition("/")[2]: name for name in names}
    models = {match[1] for member in members if (match := _MODEL.fullmatch(member))}
    if not models:
        raise InputError(
            "the archive holds no exported program",
            place=str(path),
            hint="save it with torch.export.save",
        )
    if len(tops) != 1:
        raise _refused(f"it has {len(tops)} folders at the top, wanted one", path)
    raw, pickled = _payloads(archive, members, models, path, findings)
    for member, name in members.items():
        pickle = _PICKLE.fullmatch(member)
        if _MODEL.fullmatch(member):
            exported_program.read(archive.read(name).decode(), findings)
        elif (pickle and pickle[1] in models) or member in pickled:
            _scan_pickle(archive.read(name), member, path, findings)
        elif _OBJECT.fullmatch(member):
            findings.doubt(f"{member!r} holds more than tensors")
        elif member not in raw and not _PLAIN.fullmatch(member) and not _CONFIG.fullmatch(member):
            findings.doubt(f"it holds {member!r}, which torch.export does not write")


def _payloads(
    archive: zipfile.ZipFile, members: dict[str, str], models: set[str], path: Path, findings: Scan
) -> tuple[set[str], set[str]]:
    """The members that are read as the bytes of a tensor, and those that are unpickled.

    One that a config reads as bytes and another unpickles is among the unpickled, as is one that no
    config names.
    """
    raw: set[str] = set()
    unpickled: set[str] = set()
    for member, name in members.items():
        config = _CONFIG.fullmatch(member)
        if config is None:
            continue
        if config[2] not in models:
            raise _refused(f"{member!r} belongs to no model in it", path)
        for payload in _read_config(archive.read(name), member, findings):
            target = f"data/{config[1]}/{payload.get('path_name')}"
            if _OBJECT.fullmatch(target):
                findings.doubt(f"{target!r} holds more than tensors")
            elif not _PAYLOAD.fullmatch(target):
                raise _refused(f"{member!r} names {str(payload.get('path_name'))[:80]!r}", path)
            if target not in members:
                raise InputError(f"the archive lacks {target!r}", place=str(path), hint="copy it again")
            is_raw = payload.get("use_pickle") is False
            (raw if is_raw else unpickled).add(target)
            if is_raw:
                _check_place(
                    payload.get("tensor_meta"), target, archive.getinfo(members[target]).file_size
                )
    raw -= unpickled
    return raw, {member for member in members if _PAYLOAD.fullmatch(member)} - raw


def _check_place(about: Any, member: str, record_bytes: int) -> None:
    """Raise `ValueError` for a tensor that reaches behind its record."""
    about = about if isinstance(about, dict) else {}
    numbers = [about.get("sizes"), about.get("strides"), [about.get("storage_offset")]]
    try:
        sizes, strides, (offset,) = ([each["as_int"] for each in part] for part in numbers)
    except (TypeError, KeyError) as error:
        raise ValueError(f"{member!r} has a shape that is none") from error
    needed_bytes = storages.reach(sizes, strides, offset) * _ELEMENT_BYTES.get(about.get("dtype"), 1)
    if needed_bytes > record_bytes:
        raise ValueError(f"a tensor takes {needed_bytes} bytes of {member!r}, which has {record_bytes}")


def _read_config(data: bytes, member: str, findings: Scan) -> list[dict[str, object]]:
    config = json.loads(data.decode())
    exported_program.read_config(config, findings)
    payloads = config.get("config") if isinstance(config, dict) else None
    if not isinstance(payloads, dict) or not all(isinstance(one, dict) for one in payloads.values()):
        raise ValueError(f"{member!r} lists no tensors")
    return list(payloads.values())


def _scan_old(archive: zipfile.ZipFile, names: list[str], path: Path, findings: Scan) -> None:
    """The layout up to torch 2.7: everything at the top, and what holds tensors is a pickle."""
    for name in names:
        if _OLD_PICKLE.fullmatch(name):
            _scan_pickle(archive.read(name), name, path, findings)
        elif name != _OLD_MODEL and not _OLD_PLAIN.fullmatch(name):
            findings.doubt(f"it holds {name!r}, which torch.export does not write")
    exported_program.read(archive.read(_OLD_MODEL).decode(), findings)


def _scan_pickle(data: bytes, member: str, path: Path, findings: Scan) -> None:
    import torch

    if not data:  # torch reads nothing of it
        return
    storages.check_saved(path, data)
    try:
        torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:
        findings.doubt(f"{member!r} holds more than tensors ({first_line(error)[:120]})")


def _refused(what: str, path: Path) -> InputError:
    return InputError(
        f"this is no archive as torch.export writes it: {what}",
        place=str(path),
        hint="export the network again from its source; --trust opens no such file",
    )
