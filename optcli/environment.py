"""Versions, CPU, GPU and driver: what is here, what is missing, what makes two runs comparable.

Nothing here imports a heavy library: a fully cached build must answer without torch.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from optcli.files.digest import of_value

# What optcli reads from its environment.
VARIABLES = {
    "OPTCLI_STORE": "folder of the store; `--store` goes before it; default: `artifacts/.store`",
    "OPTCLI_REMOTE_STORE": "URL of a store that machines share; `--remote-store` goes before it",
    "OPTCLI_REMOTE_READONLY": "1: nothing is written to the remote store, as with `--remote-readonly`",
    "OPTCLI_ARTIFACTS": "folder of artifacts and reports; default: `artifacts`; below `--artifacts`",
    "OPTCLI_DEVICES": "where devices are that ssh reaches: `NAME=user@host`, with a space between them",
    "OPTCLI_TENSORRT_PYTHON": "interpreter that has TensorRT, where another than optcli's own has it",
}

# The name to import by, where it is not the name of the distribution.
_DISTRIBUTIONS = {
    "onnxruntime": ("onnxruntime-gpu", "onnxruntime"),
    "torch_pruning": ("torch-pruning",),
    "pynvml": ("nvidia-ml-py",),
    "onnxruntime_ep_nv_tensorrt_rtx": (
        "onnxruntime-ep-nv-tensorrt-rtx-cu13",
        "onnxruntime-ep-nv-tensorrt-rtx-cu12",
    ),
    # Where the packages were copied by hand, the one that only names its parts may be missing.
    "tensorrt_rtx": ("tensorrt-rtx-cu13", "tensorrt-rtx", "tensorrt-rtx-cu13-bindings"),
    "tensorrt": (
        *("tensorrt", "tensorrt-cu13", "tensorrt-cu12"),
        *("tensorrt-cu13-bindings", "tensorrt-cu12-bindings"),
    ),
}
# The packages of the extras of pyproject.toml, which are installed one by one: optcli is on no index.
EXTRAS = {
    "tensorrt": ("tensorrt",),
    "trt-rtx": ("tensorrt-rtx-cu13",),
    "timm": ("timm",),
    "hf": ("transformers",),
    "executorch": ("executorch",),
    "litert": ("ai-edge-litert", "ai-edge-quantizer", "jax"),
    "coreml": ("coremltools",),
    "parquet": ("pyarrow",),
    "heic": ("pillow-heif",),
    "gpu": ("nvidia-ml-py",),
    "serve": ("aiohttp", "prometheus-client", "ray[serve]", "redis", "tritonclient[http,grpc]"),
    "ray": ("ray[data]",),
}
# The extras that bring a package, by the name to import it by.
_EXTRAS_OF = {
    "tensorrt": ("tensorrt",),
    "tensorrt_rtx": ("trt-rtx",),
    "timm": ("timm",),
    "transformers": ("hf",),
    "huggingface_hub": ("hf",),
    "executorch": ("executorch",),
    "ai_edge_litert": ("litert",),
    "ai_edge_quantizer": ("litert",),
    "coremltools": ("coreml",),
    "pynvml": ("gpu",),
    "tritonclient": ("serve",),
    "pyarrow": ("parquet",),
    "ray": ("serve", "ray"),
}
# What pip installs where no extra has a package and the names differ.
_OTHERS = {
    "litert_torch": "--no-deps litert-torch litert-converter",
    "onnxruntime_ep_nv_tensorrt_rtx": "onnxruntime-ep-nv-tensorrt-rtx-cu13",
    # It asks for the package onnxruntime, which lies in the same folder as onnxruntime-gpu.
    "onnxruntime_qnn": "--no-deps onnxruntime-qnn",
}
# What people call a system, where that is not its own name.
_SYSTEMS = {"Darwin": "macOS"}

_CGROUPS = Path("/sys/fs/cgroup")


def now() -> str:
    """The time here, to the second, as reports say it: ISO 8601 with the zone."""
    return datetime.now(UTC).astimezone().isoformat(timespec="seconds")


@dataclass(frozen=True)
class Needs:
    """What something cannot do without: importable packages and, possibly, a GPU.

    `system` is the only system that it runs on, as `platform.system()` names it; empty: any.
    `cores` and `memory_bytes` are what Ray keeps free for it on a node; 0: as optcli guesses.

    `foreign` are packages that only a process of its own imports, with the interpreter `python` (None:
    this one).
    """

    packages: tuple[str, ...] = ()
    gpu: bool = False
    foreign: tuple[str, ...] = ()
    python: str | None = None
    cores: int = 0
    memory_bytes: int = 0
    system: str = ""


@dataclass(frozen=True)
class Missing:
    """One thing that is not there, and the command or action that brings it."""

    what: str
    hint: str


def missing(needs: Needs) -> list[Missing]:
    """What of `needs` is not here."""
    here, there = needs.packages, needs.foreign
    if needs.python is None:
        here, there = (*here, *there), ()
    lacking = [
        Missing(f"the package {name} is not installed", _install(name))
        for name in here
        if version(name) is None
    ]
    lacking += [
        Missing(
            f"the interpreter {needs.python} does not import {name}",
            f"see what `{needs.python} -c 'import {name}'` says",
        )
        for name in there
        if version_in(needs.python, name) is None
    ]
    if needs.system not in ("", platform.system()):
        wanted, here_is = (_SYSTEMS.get(each, each) for each in (needs.system, platform.system()))
        lacking.append(
            Missing(
                f"it runs on {wanted} only, and this is {here_is}",
                "run it there, and give optcli its answers: optcli verify-accuracy --predictions",
            )
        )
    if needs.gpu and not has_gpu():
        lacking.append(Missing("no NVIDIA GPU was found", "run on a machine with a GPU and its driver"))
    return lacking


def pip_install(*extras: str) -> str:
    """The command that installs what extras of optcli hold."""
    packages = dict.fromkeys(package for extra in extras for package in EXTRAS[extra])
    index = " --extra-index-url https://pypi.nvidia.com" if "tensorrt" in extras else ""
    return f"pip install {shlex.join(packages)}{index}"


def _install(package: str) -> str:
    extras = _EXTRAS_OF.get(package)
    return pip_install(*extras) if extras else f"pip install {_OTHERS.get(package, package)}"


@cache
def version_in(python: str | None, package: str) -> str | None:
    """Version of a package in an interpreter (None: this one); None where it does not import it."""
    if python is None:
        return version(package)
    # By import, not by metadata: a folder of unpacked libraries has none.
    # Without the current folder, where anything may lie that is called as the package is.
    code = "import sys; sys.path[:] = filter(None, sys.path); "
    command = [python, "-c", f"{code}import {package}; print({package}.__version__)"]
    hidden = ("PYTHONPATH", "PYTHONHOME")
    variables = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        completed = subprocess.run(
            command, capture_output=True, text=True, timeout=120, check=True, env=variables
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.split()[-1] if completed.stdout.split() else None


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
    cores = len(_affinity() or ()) or os.cpu_count() or 1
    quota = cpu_quota()
    return max(1, min(cores, int(quota))) if quota else cores


def _affinity() -> list[int] | None:
    """The numbers of the cores that this process may run on; None where the system does not tell."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None


def control_groups(controller: str) -> list[Path]:
    """Folders of this process's control group and of the groups above it, which bound it as well.

    Version 2 has one tree, version 1 one for each controller (`cpu`, `memory`). A container often sees
    its own group as the root of the tree, under whatever name the host has for it.
    """
    folders: list[Path] = []
    for line in (_text("/proc/self/cgroup") or "").splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        for root in (_CGROUPS / controller, _CGROUPS / names) if names else (_CGROUPS,):
            inside = [part for part in path.split("/") if part not in ("", "..")]
            folders += [root.joinpath(*inside[:depth]) for depth in range(len(inside), -1, -1)]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def cpu_quota() -> float | None:
    """How many cores' time the control groups allow, the tightest of all; None without a quota."""
    quotas = []
    for folder in control_groups("cpu"):
        with suppress(OSError, ValueError):
            if (folder / "cpu.max").exists():
                limit, period = (folder / "cpu.max").read_text().split()
            else:
                limit = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            if int(limit) > 0:  # "max" is no number, and -1 no limit
                quotas.append(int(limit) / int(period))
    return min(quotas, default=None)


def throttled_s() -> float:
    """Seconds, over all cores, for which a CPU quota has stopped this process's control group.

    0 where there is no quota. Of several groups with one, the one that was stopped longest counts.
    """
    seconds = [0.0]
    for folder in control_groups("cpu"):
        lines = (_text(str(folder / "cpu.stat")) or "").splitlines()
        counts = {name: int(count) for name, count in (line.split() for line in lines)}
        seconds.append(counts.get("throttled_usec", 0) / 1e6 + counts.get("throttled_time", 0) / 1e9)
    return max(seconds)


@cache
def cpu() -> dict[str, Any]:
    """Model name and the instruction-set flags that decide which kernels are chosen."""
    fields = _cpu_fields()
    model = fields.get("model name") or platform.processor() or platform.machine()
    matters = ("avx", "amx", "fma", "sse4", "f16c", "asimd", "sve", "i8mm", "bf16")
    flags = sorted(flag for flag in _cpu_flags(fields) if flag.startswith(matters))
    return {"model": model, "machine": platform.machine(), "flags": flags}


def isa() -> str:
    """The instructions that 8-bit sums are computed with here: `avx512_vnni`, `avx2`, `i8mm`, ..."""
    return isa_of(cpu()["flags"], platform.machine())


def isa_of(flags: Iterable[str], machine: str) -> str:
    """As `isa`, of a processor with these flags; `machine` is what it is where they tell nothing."""
    flags = set(flags)
    ranked = ("amx_int8", "avx512_vnni", "avx_vnni", "avx512f", "avx2", "avx", "i8mm", "asimddp")
    return next((flag for flag in ranked if flag in flags), machine)


def sums_saturate(isa: str) -> bool:
    """Whether sums of full-range 8-bit products saturate there: x86 without VNNI adds in 16 bits."""
    return isa in ("avx512f", "avx2", "avx", "x86_64", "AMD64")


def computes_in(precision: str) -> bool:
    """Whether the CPU has instructions for `bf16` or `fp16`; true where it does not tell."""
    flags = set(cpu()["flags"])
    flags_by_precision = {
        "bf16": {"avx512_bf16", "amx_bf16", "bf16"},
        "fp16": {"avx512_fp16", "amx_fp16", "asimdhp"},
    }
    return not flags or bool(flags & flags_by_precision[precision])


def conditions() -> dict[str, Any]:
    """The state of the machine now: what may differ between two runs here, so no part of any key.

    `load_average` is over 1, 5 and 15 minutes; `steal_s` what the hypervisor kept from this machine
    since it started, over all cores, `throttled_s` what a CPU quota kept from it; `cpu_quota` in
    cores, None without one. What the system does not tell is None.
    """
    return {
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "affinity": _affinity(),
        "cpu_quota": cpu_quota(),
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "temperature_c": temperature_c(),
        "boost": _text("/sys/devices/system/cpu/cpufreq/boost"),
        "hyper_threading": _text("/sys/devices/system/cpu/smt/active"),
        "steal_s": steal_s(),
        "throttled_s": throttled_s(),
        "gpus": _asked_of_nvidia_smi(_GPU_FIELDS),
    }


def steal_s() -> float | None:
    """Seconds, over all cores, that the hypervisor kept from this machine since it started."""
    line = (_text("/proc/stat") or "").partition("\n")[0].split()
    return int(line[8]) / os.sysconf("SC_CLK_TCK") if len(line) > 8 else None


# What sensors of a processor are called, in `thermal` and in `hwmon`.
_SENSORS = ("cpu", "pkg", "core", "soc", "k10temp", "zenpower")


def temperature_c(sensors: Path = Path("/sys/class")) -> float | None:
    """The hottest sensor of the processor, in degrees Celsius; None where the system tells none."""
    readings = [
        value
        for folder, name, values in (
            *((each, "type", "temp") for each in sensors.glob("thermal/thermal_zone*")),
            *((each, "name", "temp*_input") for each in sensors.glob("hwmon/hwmon*")),
        )
        if any(word in (_text(str(folder / name)) or "").lower() for word in _SENSORS)
        for value in (_text(str(path)) for path in folder.glob(values))
    ]
    degrees = [int(text) / 1000 for text in readings if text and text.lstrip("-").isdecimal()]
    return max(degrees, default=None)


def _text(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


_GPU_MODEL = ("name", "driver_version")
_GPU_STATE = ("clocks.sm", "clocks.mem", "power.limit", "temperature.gpu")
_GPU_FIELDS = (*_GPU_MODEL, *_GPU_STATE, "clocks_throttle_reasons.active")


@cache
def gpu_models() -> tuple[dict[str, str], ...]:
    """Model and driver of each GPU, which make runs comparable; empty where nobody tells."""
    return tuple(_asked_of_nvidia_smi(_GPU_MODEL))


def _asked_of_nvidia_smi(fields: Sequence[str]) -> list[dict[str, str]]:
    """What `nvidia-smi` says of each GPU; nothing where there is none, or it does not answer."""
    if not has_gpu():
        return []
    command = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = (line.split(", ") for line in completed.stdout.strip().splitlines())
    return [dict(zip(fields, row, strict=False)) for row in rows]


# Of `machine()`, what a restart does not change. Processors of one name may differ in it.
HARDWARE = ("processor", "instructions", "online", "cpu_quota", "memory_gib", "hypervisor")


@cache
def machine() -> dict[str, Any]:
    """Which machine this is, as far as that decides how fast it computes: for keys of measurements.

    Processors of one name differ in generation, cores and memory, and so do two hosts of one cloud
    type. `identity` is a digest of the machine's id, from which nobody reads the id. Copies of one
    image share that, and a virtual machine or a container may wake up on another host: there the id
    of the running kernel is part of it, so that nothing is reused after a restart.
    """
    fields = _cpu_fields()
    flags = _cpu_flags(fields)
    virtual = "hypervisor" in flags or _in_container()
    ids = [_text("/etc/machine-id") or _text("/var/lib/dbus/machine-id"), platform.node()]
    if virtual or ids[0] is None:
        ids.append(_text("/proc/sys/kernel/random/boot_id"))
    names = ("vendor_id", "cpu family", "model", "stepping", "microcode", "CPU part", "cache size")
    return {
        "identity": of_value(["optcli measures on", ids])[:16],
        "processor": {name: fields[name] for name in names if name in fields},
        "instructions": of_value(sorted(flags))[:16],
        "kernel": platform.release(),
        "hypervisor": virtual,
        "online": os.cpu_count(),
        "affinity": _affinity(),
        "cpu_quota": cpu_quota(),
        "hyper_threading": _text("/sys/devices/system/cpu/smt/active"),
        "memory_gib": _memory_gib(),
    }


def _cpu_fields() -> dict[str, str]:
    """What the system says of its first processor."""
    first = (_text("/proc/cpuinfo") or "").partition("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def _cpu_flags(fields: dict[str, str]) -> list[str]:
    """The instruction-set flags, as x86 (`flags`) or ARM (`Features`) names them."""
    return fields.get("flags", fields.get("Features", "")).split()


def _in_container() -> bool:
    return any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv"))


def _memory_gib() -> int | None:
    """What is installed, in whole gibibytes: the kernel keeps a little of it, now more, now less."""
    try:
        pages = os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1024**3)


def describe(packages: Sequence[str] = ()) -> dict[str, Any]:
    """What makes two runs comparable: platform, CPU, GPUs and driver, cores and library versions."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": cpu(),
        "cores": usable_cores(),
        "gpu": has_gpu(),
        "gpu_models": list(gpu_models()),
        "versions": versions(packages),
    }
