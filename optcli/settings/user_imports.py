"""What a Python file imports and defines, and where modules lie: found without running anything."""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import sysconfig
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.machinery import ModuleSpec
from pathlib import Path

from optcli import environment
from optcli.errors import InputError, excerpt, first_line
from optcli.files import regular_files

_OWN = "optcli"
# Python counts the depth of what all threads parse together, and raises SystemError where they take
# turns within it (github.com/python/cpython/issues/106905).
_PARSING = threading.Lock()


def imported_modules(file: Path, module: str) -> list[str]:
    """Dotted names of everything a file may import, at the top or inside functions.

    `module` is the file's own dotted name, which relative imports start from. `from a import b` gives
    both `a` and `a.b`: the reader keeps what exists. Raises `InputError` for
    a file with a syntax error.
    """
    return list(_imported(_source(file), file, module))


@lru_cache(maxsize=256)  # a build asks for each reference, some twenty times
def _imported(source: bytes, file: Path, module: str) -> tuple[str, ...]:
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    tree = _parse(source, file)
    modules: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            modules.extend(_from(node, package))
        elif isinstance(node, ast.Call):
            modules.extend(_called(node))
    if file.name == "__init__.py":
        # `from package import *` also imports the submodules that __all__ names.
        modules.extend(f"{module}.{name}" for name in _all(tree))
    return tuple(modules)


def defined_names(file: Path) -> list[str] | None:
    """Names a file binds at its top level; None where that is unknown (a star import, __getattr__).

    Raises `InputError` for a file with a syntax error.
    """
    names: list[str] = []
    for node in _bindings(_parse(_source(file), file).body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.extend((alias.asname or alias.name).split(".")[0] for alias in node.names)
        else:
            stored = (
                n for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            )
            names.extend(name.id for name in stored)
    return None if "*" in names or "__getattr__" in names else names


def module_root(module: str, folder: Path) -> Path | None:
    """Where a module is found: in the folder, else on `sys.path`; None where it is installed."""
    top = module.split(".")[0]
    for place in (folder, *map(Path, sys.path)):
        root = Path(os.path.abspath(place))
        if local_file(root, module) is not None and top != _OWN:
            return None if _is_installation(root) else root
    try:
        spec = importlib.util.find_spec(top)
    except (ImportError, ValueError, OSError):
        spec = None
    if spec is None:
        raise InputError(
            f"there is no module {module!r}",
            place=str(folder),
            hint="name a file (models/digits.py:Net), or put the module into the recipe's folder",
        )
    if spec.origin and top != _OWN and not _is_installation(Path(spec.origin)):
        # An editable installation: found by a hook, its source anywhere.
        origin = Path(spec.origin)
        return origin.parent.parent if origin.name == "__init__.py" else origin.parent
    return None


@dataclass(frozen=True)
class Outside:
    """A module or package that lies neither below the import root nor where packages are installed.

    On PYTHONPATH, say, or installed in editable mode: its version says nothing of its content.
    """

    origin: Path | None
    folders: tuple[Path, ...]

    def file(self, module: str) -> Path | None:
        """The file of a module of it, by its dotted name; None where there is none."""
        inner = module.split(".")[1:]
        if not inner:
            return self.origin
        files = (_source_file(folder.joinpath(*inner)) for folder in self.folders)
        return next(filter(None, files), None)


def outside(top: str) -> Outside | None:
    """Where a top name leads that is not local; None for what is installed, built in or missing.

    Nothing is imported, and what this process has imported already is not looked at: it may be a copy.
    """
    spec = None if top == _OWN or top in sys.stdlib_module_names else _spec(top)
    return None if spec is None else _outside(spec)


def _outside(spec: ModuleSpec) -> Outside | None:
    folders = tuple(Path(os.path.abspath(each)) for each in spec.submodule_search_locations or ())
    origin = Path(os.path.abspath(spec.origin)) if spec.has_location and spec.origin else None
    places = [*folders, *([origin] if origin else [])]
    if not places or any(map(_is_installation, places)):
        return None
    return Outside(origin if origin and regular_files.is_file(origin) else None, folders)


def is_installed(top: str) -> bool:
    """Whether a top name is Python's own or an installed package's; nothing is imported."""
    if top == _OWN or top in sys.stdlib_module_names:
        return True
    spec = _spec(top)
    return spec is not None and _outside(spec) is None


def _spec(top: str) -> ModuleSpec | None:
    for finder in sys.meta_path:
        with suppress(Exception):  # it may be a hook of somebody's, which raises anything
            spec = finder.find_spec(top, None)
            if spec is not None:
                return spec
    return None


def imports_outside(file: Path, module: str) -> tuple[str, ...]:
    """As `imported_modules`, remembered while the file is the same; none where it is no source.

    Such packages can be large, and what is wrong in them is not the recipe's fault.
    """
    if file.suffix != ".py":
        return ()
    try:
        status = file.stat()
    except OSError:
        return ()
    return _remembered(file, module, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=10_000)
def _remembered(file: Path, module: str, changed_ns: int, size: int) -> tuple[str, ...]:
    try:
        return tuple(imported_modules(file, module))
    except InputError:
        return ()


def _is_installation(path: Path) -> bool:
    installed = {"site-packages", "dist-packages"} & set(path.parts)
    return bool(installed) or any(path == p or p in path.parents for p in _installations())


@cache
def _installations() -> frozenset[Path]:
    """Where Python and its packages are: each question expands all of sysconfig's variables."""
    names = ("purelib", "platlib", "stdlib", "platstdlib")
    return frozenset(Path(sysconfig.get_path(name)) for name in names)


def local_file(root: Path, module: str) -> Path | None:
    """The source file of a module below the root; None where there is none."""
    if module.split(".")[0] == _OWN:
        return None  # the program itself, even where the recipe lies beside it
    return _source_file(root.joinpath(*module.split(".")))


def _source_file(base: Path) -> Path | None:
    """The source of a package or module that is named without its ending; None where there is none."""
    files = (base / "__init__.py", base.with_name(base.name + ".py"))
    return next(filter(regular_files.is_file, files), None)


def is_local_name(root: Path, module: str) -> bool:
    """Whether a name without a file is ours all the same: a folder without __init__.py, a member."""
    top = module.split(".")[0]
    if top == _OWN:
        return False
    if local_file(root, top) is not None:
        return True
    # Python prefers an installed package to a folder without __init__.py.
    return regular_files.is_folder(root / top) and environment.version(top) is None


def _bindings(body: list[ast.stmt]) -> list[ast.stmt]:
    """Statements of the top level, those inside `if`, `try` and `with` included."""
    bindings: list[ast.stmt] = []
    for node in body:
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            inner = [getattr(node, part, []) for part in ("body", "orelse", "finalbody")]
            inner.extend(handler.body for handler in getattr(node, "handlers", []))
            for statements in inner:
                bindings.extend(_bindings(statements))
        else:
            bindings.append(node)
    return bindings


def _source(file: Path) -> bytes:
    try:
        return regular_files.read(file)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", place=str(file), hint="look at its permissions"
        ) from error


def _parse(source: bytes, file: Path) -> ast.Module:
    try:
        with _PARSING:
            return ast.parse(source, filename=str(file))
    except SyntaxError as error:
        line = excerpt((error.text or "").strip())
        raise InputError(
            f"syntax error: {error.msg}",
            place=f"{file}:{error.lineno}",
            hint=f"correct the line: {line}",
        ) from error
    except (ValueError, RecursionError, MemoryError) as error:  # null bytes, or nested too deeply
        raise InputError(
            f"not Python source: {first_line(error)}", place=str(file), hint="name a .py file of text"
        ) from error


def _from(node: ast.ImportFrom, package: str) -> list[str]:
    base = node.module or ""
    if node.level:
        parts = package.split(".") if package else []
        if node.level > len(parts):
            return []  # beyond the top: the import itself will say so
        base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
    return [base, *(f"{base}.{alias.name}" for alias in node.names if alias.name != "*")]


def _called(node: ast.Call) -> list[str]:
    """The module in `importlib.import_module("name")` and `__import__("name")`."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name not in ("import_module", "__import__") or not node.args:
        return []
    first = node.args[0]
    text = first.value if isinstance(first, ast.Constant) else None
    return [text] if isinstance(text, str) and text and not text.startswith(".") else []


def _all(tree: ast.Module) -> list[str]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(
            getattr(t, "id", "") == "__all__" for t in node.targets
        ):
            try:
                return [str(name) for name in ast.literal_eval(node.value)]
            except (ValueError, TypeError):
                return []
    return []
