"""Reading a TorchScript archive before torch does: members, storages, and whose operators it calls.

torch reads the pickles without Python. The code is not judged: it can call nothing but operators, and a
worker that can only read opens it, or the person trusts it. Operators of a library that torch lacks are
a doubt (`formats.scanning`).
"""

from __future__ import annotations

import re
from pathlib import Path

from optcli.errors import InputError
from optcli.models.formats import storages, zip_archive
from optcli.models.formats.scanning import Scan

# Packages that bring the operators of their name.
_LIBRARIES = frozenset({"torchvision"})
_CODE = re.compile(r"code/[\w./]+\.py")
# Operators, and objects of classes that libraries bring.
_CALL = re.compile(r"\b(?:ops|torch\.classes)\.(\w+)\.(\w+)")
# What it was traced with (torch leaves the values out), and tables that lead from code to the lines
# that it was written in.
_NO_TENSORS = re.compile(r"traced_inputs\.pkl|code/[\w./]+\.py\.debug_pkl|debug/.+\.pkl")


def scan(path: Path) -> Scan:
    """Read a file without loading it; the namespaces are packages whose operators it calls.

    Raises `InputError` for what is no TorchScript file, can be read in two ways, or has tensors that
    reach behind their records.
    """
    findings = Scan()
    with zip_archive.opened(path, "a TorchScript file") as archive:
        members = zip_archive.below_top(archive, path)
        if "constants.pkl" not in members:
            raise InputError(
                "this is not a TorchScript file: the archive holds no TorchScript",
                place=str(path),
                hint="save it with torch.jit.save(torch.jit.script(model), FILE)",
            )
        for member, name in members.items():
            if _CODE.fullmatch(member):
                for space, operator in _CALL.findall(archive.read(name).decode()):
                    findings.call(space, operator, _LIBRARIES)
            elif member.casefold().endswith("pkl") and not _NO_TENSORS.fullmatch(member):
                sizes = storages.sizes_in(archive, name.rpartition(".")[0])
                storages.check(archive.read(name), sizes)
    return findings
