"""Which modules of a network a recipe means: names, or patterns such as `layer4.*`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from optcli.errors import StepError, did_you_mean


def matching(patterns: Sequence[str], names: Iterable[str], option: str) -> set[str]:
    """The modules that a pattern fits, as shells match files.

    Raises `StepError` for a pattern that fits none: a misspelt name must not go unnoticed.
    """
    available = sorted(names)
    modules: set[str] = set()
    for pattern in patterns:
        fitting = {name for name in available if fnmatchcase(name, pattern)}
        if not fitting:
            raise StepError(
                f"`{option}: {pattern}` fits no module of the network",
                hint=did_you_mean(pattern, available)[:300],
            )
        modules |= fitting
    return modules


def within(name: str, modules: Iterable[str]) -> bool:
    """Whether a module is one of `modules` or lies inside one."""
    return any(name == module or name.startswith(f"{module}.") for module in modules)
