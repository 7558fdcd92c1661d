"""Code from the user's own files: what it is made of, by content, and how to load it.

A reference is `FILE:NAME` (`models/digits.py:DigitsNet`) or `MODULE:NAME` (`package.module:make`). Its
closure is the file and every local module that it imports, found by reading the source, never by
running it: only `load` runs anything, and it belongs into a worker process.

A module is local if it lies below the import root: the file's own folder, or the folder above the
top package where the file is part of one. So is what is not installed and lies in a folder above it,
up to the project's, or beside the recipe: a program of training is run from there. What lies elsewhere
and is not installed (a `src/` on PYTHONPATH, an editable installation) is part of the digest, but is
not copied: an artifact imports it from where it lies. What a file reads at run time (images, JSON) is
not part of the closure.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import shutil
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any

from optcli import environment
from optcli.errors import InputError, OptcliError, UsageError, did_you_mean, first_line
from optcli.files import regular_files
from optcli.files.digest import FileDigests, of_value
from optcli.settings.user_imports import (
    Outside,
    defined_names,
    imported_modules,
    imports_outside,
    is_installed,
    is_local_name,
    local_file,
    module_root,
    outside,
)

# What lies in the folder of a whole project.
_OF_PROJECTS = (".git", ".hg", "pyproject.toml", "setup.py", "setup.cfg", "requirements.txt")


@dataclass(frozen=True)
class Reference:
    """`file_or_module` as written in the recipe, and the name inside it."""

    file_or_module: str
    name: str

    @property
    def is_file(self) -> bool:
        """Whether a file is named, not a module."""
        return self.file_or_module.endswith(".py")


@dataclass(frozen=True)
class Closure:
    """What a reference needs.

    `module` is the dotted name under which its module is imported with `root` on `sys.path`. `modules`
    are those of the project, by dotted name; others than those below `root` lie below one of `above`.
    `outside` are modules that lie elsewhere and are not
    installed either, with their files. `distributions` are the top names of packages.
    """

    root: Path
    module: str
    modules: Mapping[str, Path]
    distributions: tuple[str, ...]
    outside: tuple[tuple[str, Path], ...] = ()
    above: tuple[Path, ...] = ()

    @property
    def files(self) -> tuple[Path, ...]:
        """The files of the project's modules, absolute and sorted."""
        return tuple(sorted(self.modules.values()))


def parse(reference: str) -> Reference:
    """Split a reference. Raises `UsageError` where it is not `FILE.py:NAME` or `MODULE:NAME`."""
    place, colon, name = reference.rpartition(":")
    wanted = "wanted FILE.py:NAME or MODULE:NAME, such as models/digits.py:DigitsNet"
    if not colon or not place or not name:
        raise UsageError(f"{reference!r} is not a reference to code", hint=wanted)
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"{name!r} in {reference!r} is not a Python name", hint=wanted)
    if not place.endswith(".py") and not all(part.isidentifier() for part in place.split(".")):
        raise UsageError(f"{place!r} is neither a .py file nor a module", hint=wanted)
    return Reference(place, name)


def problem(reference: str, folder: Path) -> tuple[str, str] | None:
    """What can be seen to be wrong without running anything: (message, hint), or None.

    The reference's form, a missing file, a syntax error, a name that the file does not define.
    """
    try:
        parsed = parse(reference)
        origin = closure(reference, folder)
        file = _main_file(origin)
    except (UsageError, InputError) as error:
        where = f"{error.place}: " if error.place else ""
        return f"{where}{error.message}", error.hint
    names = defined_names(file) if file is not None else None
    first = parsed.name.split(".")[0]
    if names is None or first in names:
        return None
    return _missing_name(parsed.name, parsed.file_or_module, names)


def closure(reference: str, folder: Path) -> Closure:
    """The file or module and every module it imports that is not installed, transitively.

    Raises `UsageError` for a bad reference, `InputError` for a missing file or a syntax error.
    """
    parsed = parse(reference)
    root, module = _origin(parsed, folder)
    if root is None:
        return Closure(folder, module, {}, (module.split(".")[0],))
    folders = _folders_above(root, folder)
    modules: dict[str, Path] = {}
    roots: dict[str, Path] = {}
    elsewhere: dict[str, Path] = {}
    installed: set[str] = set()
    tops: dict[str, Outside | None] = {}
    waiting = [module]
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        parents = name.split(".")[:-1]
        if parents:
            waiting.append(".".join(parents))
        top = name.split(".")[0]
        if top not in roots and top not in installed:
            at = _root_of(top, root, folders)
            installed.add(top) if at is None else roots.setdefault(top, at)
        if top in roots:
            file = local_file(roots[top], name)
            if file is not None:
                modules[name] = file
                waiting.extend(imported_modules(file, name))
            continue
        package = tops[top] if top in tops else tops.setdefault(top, outside(top))
        module_file = package.file(name) if package is not None else None
        if module_file is not None:
            elsewhere[name] = module_file
            waiting.extend(imports_outside(module_file, name))
    packages = installed - set(sys.stdlib_module_names)
    above = tuple(at for at in folders if at in roots.values())
    named = tuple(sorted(elsewhere.items()))
    return Closure(root, module, modules, tuple(sorted(packages)), named, above)


def _root_of(top: str, root: Path, folders: Sequence[Path]) -> Path | None:
    """The folder that a top name is imported from; None for what is no part of the project."""
    if is_local_name(root, top):
        return root
    if is_installed(top):
        return None
    return next((each for each in folders if is_local_name(each, top)), None)


def _folders_above(root: Path, folder: Path) -> tuple[Path, ...]:
    """Where a program that uses the code may be started: folders above it, and the recipe's."""
    above = [root, *root.parents]
    own = Path(os.path.abspath(folder))
    tops = [each for each in above if any((each / mark).exists() for mark in _OF_PROJECTS)]
    last = tops[0] if tops else own if own in above else root
    return tuple(dict.fromkeys((*above[1 : above.index(last) + 1], own)))


def digest(reference: str, folder: Path, digests: FileDigests) -> str:
    """Digest over the closure's relative names and contents, and versions of what is installed.

    The same wherever the folder lies. Raises as `closure` does, and OSError.
    """
    origin = closure(reference, folder)
    beyond = [[name, digests.of(file)] for name, file in origin.outside]
    return of_value(
        {
            **({"outside": beyond} if beyond else {}),
            "module": origin.module,
            "name": parse(reference).name,
            "files": sorted([name, digests.of(file)] for name, file in origin.modules.items()),
            "distributions": {name: _version(name) for name in origin.distributions},
        }
    )


def copy(reference: str, folder: Path, out: Path) -> str:
    """Copy the closure below `out`; returns the reference that loads it with `out` as the folder."""
    parsed, origin = parse(reference), closure(reference, folder)
    for name, file in origin.modules.items():
        target = out / _relative(name, file)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    main = _main_file(origin)
    if not parsed.is_file or main is None:
        return f"{origin.module}:{parsed.name}"
    return f"{_relative(origin.module, main)}:{parsed.name}"


def _relative(module: str, file: Path) -> str:
    """The path of a module's file below the folder that it is imported from."""
    is_package = file.name == "__init__.py"
    return module.replace(".", "/") + ("/__init__.py" if is_package else ".py")


def load(reference: str, folder: Path) -> Any:
    """Import the code and return what the reference names.

    The closure's modules are always imported afresh, so that two copies of a module with one name
    (two artifacts with two versions of a model) can be loaded one after the other. The later one
    then owns the name: code of the earlier that imports inside a function would find the later.
    Raises `InputError` with file and line where the import fails or the name is missing.
    """
    parsed, origin = parse(reference), closure(reference, folder)
    root = str(origin.root)
    _forget(origin)
    if root in sys.path:
        sys.path.remove(root)
    sys.path.insert(0, root)
    sys.path.extend(path for path in map(str, origin.above) if path not in sys.path)
    importlib.invalidate_caches()
    finder = _Finder(origin)
    sys.meta_path.insert(0, finder)
    try:
        module = importlib.import_module(origin.module)
    except (Exception, SystemExit) as error:
        raise import_failure(error, parsed, origin) from error
    finally:
        sys.meta_path.remove(finder)
    value: Any = module
    for part in parsed.name.split("."):
        if not hasattr(value, part):
            names = [name for name in vars(module) if not name.startswith("_")]
            message, hint = _missing_name(parsed.name, parsed.file_or_module, names)
            raise InputError(message, place=str(_main_file(origin) or origin.module), hint=hint)
        value = getattr(value, part)
    return value


class _Source(SourceFileLoader):
    """Compiles the source each time.

    Bytecode is neither written into the user's folder nor believed where it lies there: Python takes
    it for fresh where a file changed within a second and kept its size.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


class _Finder(MetaPathFinder):
    """Finds the files of a closure."""

    def __init__(self, origin: Closure) -> None:
        self._origin = origin

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        file = self._origin.modules.get(fullname)
        if file is None:
            return None
        loader = _Source(fullname, str(file))
        return importlib.util.spec_from_file_location(fullname, file, loader=loader)


def place_of(error: BaseException, files: tuple[Path, ...]) -> str:
    """`file:line` of the last of `files` that an exception passed through, else an empty string."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}"
    own = {str(file) for file in files}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in own]
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""


@contextmanager
def running(reference: str, folder: Path, what: str, hint: str) -> Iterator[None]:
    """What somebody's code raises inside becomes an `InputError` with its line, of `what` raises.

    `reference` is the code, relative to `folder`. An `OptcliError` goes through as it is.
    """
    try:
        yield
    except OptcliError:
        raise
    except Exception as error:
        place = place_of(error, closure(reference, folder).files) or reference
        message = f"{what} raises {type(error).__name__}: {first_line(error)}"
        raise InputError(message, place=place, hint=hint) from error


def import_failure(error: BaseException, reference: Reference, origin: Closure) -> InputError:
    """The error to show for an import that failed."""
    place = place_of(error, origin.files) or reference.file_or_module
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.split(".")[0]
        return InputError(
            f"the code imports {error.name!r}, which is neither installed nor beside it nor above it",
            place=place,
            hint=f"put {top} into {origin.root}, or its folder on PYTHONPATH; install it where it is a"
            " package of somebody else's",
        )
    if isinstance(error, ImportError) and "relative import" in str(error):
        hint = "add an __init__.py to its folder, or import without the leading dot"
        return InputError(str(error), place=place, hint=hint)
    if isinstance(error, SystemExit):
        hint = 'keep what runs as a script under `if __name__ == "__main__":`'
        return InputError("the code ends the program when it is imported", place=place, hint=hint)
    return InputError(
        f"importing the code fails: {type(error).__name__}: {first_line(error)}",
        place=place,
        hint=f'try it alone: python -c "import {origin.module}" in {origin.root}',
    )


def _origin(reference: Reference, folder: Path) -> tuple[Path | None, str]:
    """Import root and module name; the root is None for an installed module."""
    if not reference.is_file:
        return module_root(reference.file_or_module, folder), reference.file_or_module
    file = Path(os.path.abspath(folder / reference.file_or_module))
    if wrong := regular_files.problem(file, file.name):
        hint = "paths are relative to the recipe's folder"
        raise InputError(wrong, place=str(file), hint=hint)
    if "." in file.stem:
        raise InputError(
            "a file with a dot in its name cannot be imported", place=str(file), hint="rename it"
        )
    root = file.parent
    while regular_files.is_file(root / "__init__.py"):
        root = root.parent
    parts = file.relative_to(root).with_suffix("").parts
    return root, ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _main_file(origin: Closure) -> Path | None:
    return origin.modules.get(origin.module)


def _forget(origin: Closure) -> None:
    """Take the closure's modules out of `sys.modules`, with the folders that they came through."""
    tops = {name.split(".")[0] for name in origin.modules}
    for name in list(sys.modules):
        if name.split(".")[0] in tops:
            del sys.modules[name]


def _version(name: str) -> str | None:
    """Version of the distribution that brings a top name; None where it is not installed."""
    installed = environment.version(name)
    if installed is not None:
        return installed
    from importlib.metadata import version

    distributions = _distributions(tuple(sys.path)).get(name)
    return version(distributions[0]) if distributions else None


@cache
def _distributions(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """What is installed on this `sys.path`, by the top names that it brings: half a second's work."""
    from importlib.metadata import packages_distributions

    return packages_distributions()


def _missing_name(name: str, place: str, names: list[str]) -> tuple[str, str]:
    return f"{place} defines no {name!r}", did_you_mean(name, names)
