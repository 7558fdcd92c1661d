"""Versions, CPU, GPU and driver: what is here, what is missing, what makes two runs comparable.

Nothing here imports a heavy library: a fully cached build must answer without torch.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

# The name to import by, where it is not the name of the distribution.
_DISTRIBUTIONS = {
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime"),
    "torch_pruning": ("torch-pruning",),
    "tensorrt_rtx": ("tensorrt-rtx-cu13", "tensorrt-rtx"),
    "tensorrt": ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
}
_INSTALL = {
    "tensorrt": "pip install 'optcli[tensorrt]' --extra-index-url https://pypi.nvidia.com",
    "tensorrt_rtx": "pip install 'optcli[trt-rtx]'",
    "timm": "pip install 'optcli[timm]'",
}


@dataclass(frozen=True)
class Needs:
    """What something cannot do without: importable packages and, possibly, a GPU."""

    packages: tuple[str, ...] = ()
    gpu: bool = False


@dataclass(frozen=True)
class Missing:
    """One thing that is not there, and the command or action that brings it."""

    what: str
    hint: str


def missing(needs: Needs) -> list[Missing]:
    """What of `needs` is not here."""
    found = [
        Missing(f"the package {name} is not installed", _INSTALL.get(name, f"pip install {name}"))
        for name in needs.packages
        if version(name) is None
    ]
    if needs.gpu and not has_gpu():
        found.append(Missing("no NVIDIA GPU was found", "run on a machine with a GPU and its driver"))
    return found


@cache
def version(package: str) -> str | None:
    """Version of an installed package by its import name; None where it is not installed."""
    for distribution in _DISTRIBUTIONS.get(package, (package,)):
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Versions of several packages, for a key or a report."""
    return {name: version(name) for name in sorted(set(packages))}


def has_gpu() -> bool:
    """Whether an NVIDIA GPU with a driver is here."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/proc/driver/nvidia/version").exists()


def usable_cores() -> int:
    """Cores this process may use: affinity, bounded by the container's CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(cores, int(quota))) if quota else cores


def _cgroup_quota() -> float | None:
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        return None


@cache
def cpu() -> dict[str, Any]:
    """Model name and the instruction-set flags that decide which kernels are chosen."""
    model, flags = platform.processor() or platform.machine(), ""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                model = value.strip()
            if name.strip() in ("flags", "Features"):
                flags = value
                break
    except OSError:
        pass
    matters = ("avx", "amx", "fma", "sse4", "f16c", "asimd", "sve", "i8mm", "bf16")
    kept = sorted(flag for flag in flags.split() if flag.startswith(matters) or flag in matters)
    return {"model": model, "machine": platform.machine(), "flags": kept}


def computes_in(precision: str) -> bool:
    """Whether the CPU has instructions for `bf16` or `fp16`; true where it does not tell."""
    flags = set(cpu()["flags"])
    wanted = {
        "bf16": {"avx512_bf16", "amx_bf16", "bf16"},
        "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"},
    }
    return not flags or bool(flags & wanted[precision])


def describe(packages: Sequence[str] = ()) -> dict[str, Any]:
    """What makes two runs comparable: platform, CPU, cores and library versions."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu(),
        "cores": usable_cores(),
        "gpu": has_gpu(),
        "versions": versions(packages),
    }
