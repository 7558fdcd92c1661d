"""Reading a TorchScript archive before torch does: its code and its pickles.

The code is in TorchScript's own language and can call nothing but torch's operators; a few of them read
and write files. Some of it runs as soon as the archive is opened (`__setstate__`). So all of it is read
first: proven is what is of the form that torch writes and calls operators that only compute. The
pickles are read by torch without Python, and may make objects of the archive's own classes and of
torch's packed weights. Anything else is a doubt (`formats.scanning`).
"""

from __future__ import annotations

import ast
import io
import pickletools
import re
import tokenize
import zipfile
from pathlib import Path

from optcli.errors import InputError
from optcli.formats import storages, torchscript_loops, zip_archive
from optcli.formats.scanning import Scan
from optcli.formats.torch_operators import only_computes

# Whose operators may be called, and the package that brings them where torch itself does not.
_NAMESPACES = {
    **dict.fromkeys(("prim", "aten", "quantized", "_quantized", "mkldnn", "mkldnn_prepacked")),
    **dict.fromkeys(("onednn", "prepacked", "sparse", "profiler")),
    "torchvision": "torchvision",
}
_CLASSES = frozenset({"quantized", "mkldnn", "sparse", "rnn", "xnnpack"})
_CODE = re.compile(r"code/[\w./]+\.py")
# What it was traced with: torch leaves the values out, and reads the shapes only where it is asked to.
_EXAMPLES = "traced_inputs.pkl"
# Tables that lead from code to the lines that it was written in; read when something fails.
_LINES = re.compile(r"code/[\w./]+\.py\.debug_pkl|debug/.+\.pkl")
_GLOBAL = re.compile(
    r"__torch__(\.(?!torch\.classes\b)\w+)* \w+"
    rf"|__torch__\.torch\.classes\.({'|'.join(sorted(_CLASSES))}) \w+"
    r"|torch\.jit\._pickle (build_\w+|restore_type_tag)"
    r"|torch\._utils _rebuild_(?!sparse)\w+|torch\._tensor _rebuild_\w+"
    r"|torch \w+|collections OrderedDict"
)
# What torch writes: other characters end lines and words elsewhere for other readers.
_TEXT = re.compile(r"[\n\x20-\x7e]*")
_NO_WORDS = (tokenize.NL, tokenize.COMMENT, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)


def scan(path: Path) -> Scan:
    """Read a file without loading it; the namespaces are packages whose operators it calls.

    Raises `InputError` for what is no TorchScript file, or can be read in two ways.
    """
    findings = Scan()
    with zip_archive.opened(path, "a TorchScript file") as archive:
        members = {name.partition("/")[2]: name for name in archive.namelist()}
        if "constants.pkl" not in members:
            raise InputError(
                "this is not a TorchScript file: the archive holds no TorchScript",
                place=str(path),
                hint="save it with torch.jit.save(torch.jit.script(model), FILE)",
            )
        tops = {name.partition("/")[0] for name in archive.namelist()}
        if len(tops) != 1:
            raise _refused(f"it has {len(tops)} folders at the top, wanted one", path)
        for member, name in members.items():
            _scan_member(archive, member, name, path, findings)
        codes = [
            archive.read(name).decode() for member, name in members.items() if _CODE.fullmatch(member)
        ]
    if torchscript_loops.on_opening(codes):
        findings.doubt("it runs a loop, or calls within calls, as soon as it is opened")
    return findings


def _scan_member(archive: zipfile.ZipFile, member: str, name: str, path: Path, findings: Scan) -> None:
    folded = member.casefold()
    if _CODE.fullmatch(member):
        scan_code(archive.read(name).decode(), path, findings)
    elif folded == "model.json":  # of torch before 1.4: it can name any member as code
        raise _refused("it is in a form that torch no longer writes", path)
    elif folded.endswith(".py") or (folded.startswith("code/") and not _LINES.fullmatch(member)):
        raise _refused(f"it has code in {member!r}", path)
    elif folded.endswith("pkl") and not _LINES.fullmatch(member):
        _scan_pickle(archive.read(name), member, findings)
        if member != _EXAMPLES:
            storages.check(archive.read(name), storages.sizes_in(archive, name.removesuffix(".pkl")))


def _scan_pickle(data: bytes, member: str, findings: Scan) -> None:
    """Every global is one that torch writes. Raises `ValueError` for what is no pickle."""
    for operation, argument, _ in pickletools.genops(data):
        if operation.name in ("GLOBAL", "INST"):
            if not _GLOBAL.fullmatch(str(argument)):
                findings.doubt(f"it makes an object of {str(argument)[:80]!r} in {member}")
        elif operation.name in ("STACK_GLOBAL", "EXT1", "EXT2", "EXT4"):
            findings.doubt(f"it has a pickle that torch does not write ({member})")


def scan_code(code: str, path: Path, findings: Scan) -> None:
    """Read a member's code. Raises `InputError` where it cannot be read."""
    try:
        _scan_words(code, findings)
    except (tokenize.TokenError, SyntaxError) as error:
        raise InputError(
            f"its code cannot be read: {error}",
            place=str(path),
            hint="write it again with torch.jit.save",
        ) from error


def _scan_words(code: str, findings: Scan) -> None:
    if not _TEXT.fullmatch(code):
        findings.doubt("it holds characters that torch does not write")
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(code).readline)
        if token.type not in _NO_WORDS
    ]
    words = [token.string for token in tokens]
    backslashes = sum(token.string.count("\\") for token in tokens if token.type == tokenize.STRING)
    if code.count("\\") != backslashes:
        findings.doubt("it breaks its lines in a way that torch does not")
    for index, token in enumerate(tokens):
        if token.type == tokenize.STRING:
            _scan_string(token.string, findings)
        elif token.type == tokenize.ERRORTOKEN and token.string.strip():
            findings.doubt(f"it holds {token.string!r} where torch writes none")
        elif token.type == tokenize.NAME:
            before = words[max(0, index - 2) : index]
            _scan_name(token.string, before, words[index + 1 : index + 6], findings)


def _scan_string(text: str, findings: Scan) -> None:
    """A string may name an attribute: of a tensor, that is an operator."""
    if text[0] not in "\"'" or text[:3] in ('"""', "'''"):
        findings.doubt("it writes strings in a way that torch does not")
        return
    value = ast.literal_eval(text)
    if value.isidentifier() and not only_computes("aten", value):
        findings.doubt(f"it names {text}")


def _scan_name(name: str, before: list[str], after: list[str], findings: Scan) -> None:
    """Every use of `torch` and `ops` is a plain call: written otherwise it could get another name."""
    inside = before[-1:] == ["."]
    if inside and before == ["torch", "."] and name == "classes":
        if after[1:2] and after[1] not in _CLASSES:
            findings.doubt(f"it makes an object of {after[1]}, which torch lacks")
            findings.unknown.add(after[1])
    elif inside and not (only_computes("aten", name) and only_computes("prim", name)):
        findings.doubt(f"it calls {name}()")
    elif name == "torch" and not inside:
        if after[:1] != ["."] or after[2:3] != ["("]:
            findings.doubt("it does something unusual with `torch`")
    elif name == "ops" and not inside:
        _scan_operator(after, findings)


def _scan_operator(after: list[str], findings: Scan) -> None:
    """What stands behind `ops`."""
    if after[:1] != ["."] or after[2:3] != ["."] or after[4:5] != ["("]:
        findings.doubt("it does something unusual with `ops`")
        return
    space, operator = after[1], after[3]
    if space not in _NAMESPACES:
        findings.doubt(f"it calls the operator {space}.{operator}, which torch lacks")
        findings.unknown.add(space)
        return
    if not only_computes(space, operator):
        findings.doubt(f"it calls {operator}()")
    package = _NAMESPACES[space]
    if package:
        findings.namespaces.add(package)


def _refused(what: str, path: Path) -> InputError:
    return InputError(
        f"this is no TorchScript file as torch writes it: {what}",
        place=str(path),
        hint="write it again from its network; --trust opens no such file",
    )
