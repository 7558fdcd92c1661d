"""Finding classes by name: one file in a package, or an entry point of somebody else's package.

`optcli/passes/quantize_nncf.py` is the pass `quantize_nncf`. Nothing is imported until it is asked for.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Sequence
from functools import cache
from types import ModuleType
from typing import Any, TypeVar

from optcli.errors import UsageError, did_you_mean

T = TypeVar("T")


@cache
def names(package: str) -> tuple[str, ...]:
    """The names that a package's files give, sorted: every public module is one."""
    folder = importlib.import_module(package).__path__
    return tuple(sorted(m.name for m in pkgutil.iter_modules(folder) if not m.name.startswith("_")))


@cache
def entry_points(group: str) -> dict[str, str]:
    """Classes that other installed packages offer: name to `module:Class`."""
    from importlib.metadata import entry_points

    return {point.name: point.value for point in entry_points(group=group)}


def find(package: str, name: str, base: type[T], choices: Sequence[str] = ()) -> type[T]:
    """The one subclass of `base` in module `name` of a package.

    Raises `UsageError` for an unknown name, with the nearest of `choices` (default: the package's own).
    """
    if name not in names(package):
        what = base.__name__.lower()
        hint = did_you_mean(name, choices or names(package))
        raise UsageError(f"unknown {what} {name!r}", hint=hint)
    return load(package, name, base)


_loaded: dict[tuple[str, str, str], Any] = {}


def load(package: str, name: str, base: type[T]) -> type[T]:
    """Import a module of a package for the one subclass of `base` that it defines."""
    key = (package, name, base.__name__)
    if key not in _loaded:
        _loaded[key] = only_subclass(importlib.import_module(f"{package}.{name}"), base)
    loaded: type[T] = _loaded[key]
    return loaded


def only_subclass(module: ModuleType, base: type[T]) -> type[T]:
    """The one subclass of `base` that a module defines itself."""
    own = [
        member
        for _, member in inspect.getmembers(module, inspect.isclass)
        if issubclass(member, base) and member.__module__ == module.__name__
    ]
    if len(own) != 1:
        raise TypeError(f"{module.__name__} defines {len(own)} subclasses of {base.__name__}, not 1")
    return own[0]
