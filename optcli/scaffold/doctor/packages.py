"""Installed packages: those that do not go together, and those that are not there."""

from __future__ import annotations

import re
from functools import partial
from importlib import metadata

from optcli import __version__, environment
from optcli.environment import Needs
from optcli.scaffold.doctor.checks import Check

_check = partial(Check, group="packages")
_TOOLS = ("nncf", "torchao", "torch_pruning", "onnxscript", "onnxslim")
_OPTIONAL = ("timm", "pynvml", "tritonclient", "ray")
# torch 2.13.0 computes wrong results in code that optcli relies on: pyproject.toml leaves it out.
_BAD_TORCH = "2.13.0"


def checks() -> list[Check]:
    """Libraries that passes need, extras and combinations that break."""
    both = [name for name in ("onnxruntime", "onnxruntime-gpu") if installed(name)]
    return [
        _check(name="optcli", state="ok", found=__version__),
        *both_onnxruntimes({name: installed(name) or "" for name in both}),
        *torch_versions(installed("torch"), installed("torchvision"), wanted_torch()),
        *(_library(name, "not installed: passes that need it are skipped") for name in _TOOLS),
        *(_library(name, "not installed") for name in _OPTIONAL),
    ]


def installed(distribution: str) -> str | None:
    """Version of an installed distribution, by its own name."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def wanted_torch() -> str | None:
    """The one torch that the installed torchvision was built for."""
    try:
        requirements = metadata.requires("torchvision") or []
    except metadata.PackageNotFoundError:
        return None
    matches = [re.match(r"torch\s*\(?==\s*([\w.]+)", requirement) for requirement in requirements]
    return next((match[1] for match in matches if match), None)


def both_onnxruntimes(versions: dict[str, str]) -> list[Check]:
    """The two packages write into one folder: whichever came last is half of what is imported."""
    if len(versions) < 2:
        return []
    packages = " and ".join(f"{name} {version}" for name, version in versions.items())
    return [
        _check(
            name="onnxruntime",
            state="broken",
            found=f"{packages} are installed over each other",
            # Taking one of them out breaks what is left of the other.
            hint="pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu",
        )
    ]


def torch_versions(torch: str | None, torchvision: str | None, wanted: str | None) -> list[Check]:
    """A torch that is known to be bad, and a torchvision built for another torch."""
    problems = []
    plain = (torch or "").partition("+")[0]
    if plain == _BAD_TORCH:
        problems.append(
            _check(
                name="torch version",
                state="broken",
                found=f"torch {torch} is not to be used with optcli",
                hint="pip install --upgrade 'torch!=2.13.0' torchvision",
                core=True,
            )
        )
    if torch and torchvision and wanted and plain != wanted.partition("+")[0]:
        problems.append(
            _check(
                name="torchvision version",
                state="broken",
                found=f"torchvision {torchvision} was built for torch {wanted}, torch is {torch}",
                hint=f"pip install --upgrade torch torchvision, or pip install torch=={wanted}",
                core=True,
            )
        )
    return problems


def _library(name: str, absent: str) -> Check:
    version = environment.version(name)
    if version is None:
        hint = environment.missing(Needs((name,)))[0].hint
        return _check(name=name, state="absent", found=absent, hint=hint)
    return _check(name=name, state="ok", found=version)
