"""Reading a `.pt2` archive of torch.export without letting it run code.

`torch.export.load` unpickles without limits, evaluates the archive's expressions and guards as Python
and calls whatever functions its graph names. So an archive is read first, and everything that is not
known to be harmless is refused.
"""

from __future__ import annotations

import ast
import io
import json
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optcli.errors import InputError, TrustError

# Plain data that torch.export and torch's own zip writer put beside model and weights.
_PLAIN = re.compile(
    r"(archive_format|archive_version|version|byteorder|\.data/(version|serialization_id)"
    r"|\.format_version|\.storage_alignment|serialized_\w+\.json|extra/.+|extra_files/.+)"
)
_MODEL = re.compile(r"(models/[^/]+\.json|serialized_exported_program\.json)")
_CONFIG = re.compile(r"data/(weights|constants)/[^/]+_config\.json")

_OPERATORS = re.compile(
    # aten.from_file reads any file that the graph names.
    r"torch\.ops\.(?!aten\.from_file\b)(aten|prim|prims|higher_order|quantized"
    r"|quantized_decomposed|torchvision|torchao|mkldnn|onednn|c10d_functional|_c10d_functional)\.(?!__)\w+(\.(?!__)\w+)?"
    r"|_operator\.(?!__)\w+|math\.(?!__)\w+"
    r"|torch\.(sym_\w+|_sym_\w+)"
)
_NAME = re.compile(r"[\w.]*")
_TREE = re.compile(r"[\w\s.,:{}\[\]\"\\-]*")

# fmt: off
_FUNCTIONS = frozenset({
    "Abs", "Add", "And", "CeilDiv", "CeilToInt", "CleanDiv", "Eq", "Float", "FloatPow",
    "FloatTrueDiv", "FloorDiv", "FloorToInt", "Ge", "Gt", "Identity", "IntTrueDiv", "Integer",
    "IsNonOverlappingAndDenseIndicator", "LShift", "Le", "Lt", "Max", "Min", "Mod",
    "ModularIndexing", "Mul", "Ne", "Not", "Or", "Pow", "PowByNatural", "PythonMod", "RShift",
    "Rational", "RoundDecimal", "RoundToInt", "Symbol", "ToFloat", "TruncToFloat", "TruncToInt",
    "Where", "ceiling", "floor", "int", "max", "min", "not", "sqrt",
})
# fmt: on
_METHODS = frozenset({"size", "stride", "storage_offset", "dim", "ndim", "shape", "inf", "isnan"})
_SYNTAX = (
    *(
        ast.Expression,
        ast.BinOp,
        ast.UnaryOp,
        ast.BoolOp,
        ast.Compare,
        ast.Constant,
        ast.Name,
        ast.Call,
    ),
    *(ast.keyword, ast.Subscript, ast.Attribute, ast.Load, ast.operator, ast.unaryop, ast.boolop),
    *(ast.cmpop, ast.Tuple),
)


def check(path: Path) -> frozenset[str]:
    """Raise `TrustError` where loading could run code, `InputError` where it is no such archive.

    Gives the namespaces of the operators that its graphs call, such as `aten`.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return frozenset(_check_members(archive, path))
    except (zipfile.BadZipFile, OSError, KeyError, ValueError) as error:
        raise InputError(
            f"this is not a sound archive of torch.export: {error}",
            place=str(path),
            hint="write it again with torch.export.save",
        ) from error


def _check_members(archive: zipfile.ZipFile, path: Path) -> set[str]:
    """Every member is a model, plain data, the bytes of a tensor, or a pickle of tensors alone."""
    members = {name.partition("/")[2]: name for name in archive.namelist() if not name.endswith("/")}
    if not any(_MODEL.fullmatch(member) for member in members):
        raise InputError(
            "the archive holds no exported program",
            place=str(path),
            hint="save it with torch.export.save",
        )
    raw: set[str] = set()
    for member, name in members.items():
        if _CONFIG.fullmatch(member):
            raw |= _raw_tensors(json.loads(archive.read(name)), str(Path(member).parent))
    called: set[str] = set()
    for member, name in members.items():
        if _MODEL.fullmatch(member):
            called |= _check_program(json.loads(archive.read(name)), path)
        elif not (member in raw or _PLAIN.fullmatch(member) or _CONFIG.fullmatch(member)):
            _check_pickle(archive.read(name), member, path)
    return called


def _raw_tensors(config: dict[str, Any], folder: str) -> set[str]:
    """The members that are read as bytes; the others are unpickled."""
    payloads = config.get("config", {}).values()
    return {
        f"{folder}/{payload['path_name']}" for payload in payloads if payload["use_pickle"] is False
    }


def _check_pickle(data: bytes, member: str, path: Path) -> None:
    import torch

    try:
        torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:
        raise _refused(f"{member!r} holds more than tensors", path) from error


def _check_program(program: dict[str, Any], path: Path) -> set[str]:
    called: set[str] = set()
    for key, value in _walk(program):
        if key == "target" and isinstance(value, str):
            # Targets of another form are names of inputs and parameters.
            if "." in value and not _OPERATORS.fullmatch(value):
                raise _refused(f"its graph calls {value!r}", path)
            if value.startswith("torch.ops."):
                called.add(value.split(".")[2])
        elif key in ("expr_str", "guards_code"):
            for expression in value if isinstance(value, list) else [value]:
                if not _is_arithmetic(expression):
                    raise _refused(f"it holds the code {expression!r}", path)
        elif key in ("in_spec", "out_spec") and not _TREE.fullmatch(str(value)):
            raise _refused(f"the structure of its inputs or outputs is odd: {str(value)[:80]!r}", path)
        elif key == "name" and isinstance(value, str) and not _NAME.fullmatch(value):
            raise _refused(f"it gives a value the name {value!r}", path)
    return called


def _walk(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key and its value, at any depth."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key, item
            yield from _walk(item)
    elif isinstance(value, list):
        for item in value:
            yield from _walk(item)


def _is_arithmetic(expression: Any) -> bool:
    """Whether an expression only computes with sizes: no other call, attribute or name with `__`."""
    try:
        nodes = list(ast.walk(ast.parse(str(expression).strip(), mode="eval")))
    except SyntaxError:
        return False
    return all(isinstance(node, _SYNTAX) and _is_plain(node) for node in nodes)


def _is_plain(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        function = node.func
        if isinstance(function, ast.Name):
            return function.id in _FUNCTIONS
        return isinstance(function, ast.Attribute) and function.attr in _METHODS
    if isinstance(node, ast.Attribute):
        return node.attr in _METHODS
    if isinstance(node, ast.Name):
        return "__" not in node.id
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _NAME.fullmatch(node.value) is not None and "__" not in node.value
    return True


def _refused(what: str, path: Path) -> TrustError:
    return TrustError(
        f"loading this exported program could run code: {what}",
        place=str(path),
        hint="export the network again from its source, or take it from a place you trust",
    )
