"""The machine: Python, CPU and what follows for INT8 and BF16, cores, memory, GPU."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from optcli import environment
from optcli.models.engines import driver
from optcli.scaffold.doctor.checks import Check, State
from optcli.workers import confinement, lifetime
from optcli.workers.memory import available_bytes

_check = partial(Check, group="machine")
_GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")


def checks() -> list[Check]:
    """Everything about the machine."""
    cpu = environment.cpu()
    return [
        python(sys.version_info[:3]),
        _check(name="CPU", state="ok", found=f"{cpu['model']} ({cpu['machine']})"),
        *arithmetic(cpu),
        *cores(),
        memory(),
        gpu(),
        cuda_driver(),
        walls(confinement.available(), apart=lifetime.has_namespaces()),
    ]


def walls(available: confinement.Walls, *, apart: bool) -> Check:
    """What holds the workers that open files from elsewhere; `apart`: in namespaces of their own."""
    if available.whole:
        text = (
            f"{available}{' and namespaces' if apart else ''}: workers that open models from elsewhere"
            " can neither write nor reach out; they can still read files,"
            f"{'' if apart else ' move your processes to other cores,'}"
            " and use processors and memory until their time limit"
        )
        return _check(name="confinement", state="ok", found=text)
    hint = (
        ".pt2 and TorchScript files need --trust here; Linux 6.2 and later with Landlock switched on "
        "(lsm=landlock,...) has the rest"
    )
    return _check(name="confinement", state="note", found=f"{available}", hint=hint)


def python(version: Sequence[int]) -> Check:
    """The interpreter."""
    text = f"{platform.python_version()} at {sys.executable}"
    if tuple(version) < (3, 11):
        hint = "install Python 3.11 or newer and make a new virtual environment"
        return _check(name="Python", state="broken", found=text, hint=hint, core=True)
    return _check(name="Python", state="ok", found=text, core=True)


def arithmetic(cpu: Mapping[str, Any]) -> list[Check]:
    """What the CPU's instructions mean for INT8 and for BF16."""
    flags = set(cpu["flags"])
    return [_int8(flags), _bf16(flags)]


def _int8(flags: set[str]) -> Check:
    name = "INT8"
    if "amx_int8" in flags:
        text = "AMX and VNNI: INT8 convolutions and matrix products run on their own units"
    elif flags & {"avx512_vnni", "avx_vnni"}:
        text = f"VNNI ({', '.join(sorted(flags & {'avx512_vnni', 'avx_vnni'}))}): INT8 pays"
    elif flags & {"asimddp", "i8mm"}:
        text = f"dot products ({', '.join(sorted(flags & {'asimddp', 'i8mm'}))}): INT8 pays"
    elif "avx2" in flags:
        text = "no VNNI: INT8 by AVX2, which saturates and gains little"
        hint = "expect smaller files, not speed; quantize to 7 bits (reduce_range) if accuracy falls"
        return _check(name=name, state="note", found=text, hint=hint)
    else:
        text = "no instructions for it were found: INT8 will be slower than FP32"
        return _check(name=name, state="note", found=text)
    return _check(name=name, state="ok", found=text)


def _bf16(flags: set[str]) -> Check:
    instructions = sorted(flags & {"amx_bf16", "avx512_bf16", "bf16", "asimdbf16"})
    if not instructions:
        wide = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "plain"
        text = f"no instructions for it (FP32 by {wide})"
        return _check(name="BF16", state="ok", found=text)
    text = (
        f"{', '.join(instructions)}; OpenVINO would compute FP32 models in BF16: optcli has it stay in"
        " f32 unless `precision:` says otherwise"
    )
    return _check(name="BF16", state="ok", found=text)


def cores() -> list[Check]:
    """Cores that may be used, the frequency governor and the load: what latency depends on."""
    import psutil

    usable, logical = environment.usable_cores(), os.cpu_count() or 1
    physical = psutil.cpu_count(logical=False) or logical
    text = f"{usable} usable of {logical} ({physical} physical)"
    quota, limited = environment.cpu_quota(), ""
    if usable < logical:
        limited = "by affinity" if quota is None else f"by a CPU quota of {quota:.3g} cores"
    core_checks = [
        _check(
            name="cores",
            state="note" if limited else "ok",
            found=f"{text}, limited {limited}" if limited else text,
        )
    ]
    with suppress(OSError):
        governor = _GOVERNOR.read_text().strip()
        slow = governor not in ("performance", "schedutil")
        core_checks.append(
            _check(
                name="governor",
                state="note" if slow else "ok",
                found=f"{governor}: latency varies with the clock" if slow else governor,
                hint="sudo cpupower frequency-set -g performance" if slow else "",
            )
        )
    load = os.getloadavg()[0]
    busy = load > usable / 2
    core_checks.append(
        _check(
            name="load",
            state="note" if busy else "ok",
            found=f"{load:.1f} over the last minute"
            + (": measurements will be unsteady" if busy else ""),
            hint="measure when nothing else runs" if busy else "",
        )
    )
    return core_checks


def memory() -> Check:
    """Memory that may still be taken, bounded by the container's limit."""
    import psutil

    total, free = psutil.virtual_memory().total, available_bytes()
    small = free < 2e9
    return _check(
        name="memory",
        state="note" if small else "ok",
        found=f"{free / 1e9:.1f} GB free of {total / 1e9:.1f} GB",
        hint="torch alone takes up to 1 GB a process: close other programs" if small else "",
    )


def gpu() -> Check:
    """The GPU and its driver, as nvidia-smi tells them."""
    name = "GPU"
    if shutil.which("nvidia-smi"):
        query = "name,driver_version,memory.total,compute_cap"
        command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"]
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
            rows = [line.split(", ") for line in done.stdout.splitlines() if line.count(",") >= 3]
            if done.returncode == 0 and rows:
                gpus = [f"{r[0]} (driver {r[1]}, {r[2]}, compute capability {r[3]})" for r in rows]
                return _check(name=name, state="ok", found="; ".join(gpus))
            lines = (done.stdout + done.stderr).strip().splitlines()
            return _check(
                name=name,
                state="broken",
                found=f"nvidia-smi fails: {lines[0] if lines else 'it says nothing'}",
                hint="install the driver again, and reboot after an update of it",
            )
    if environment.has_gpu():
        text = "an NVIDIA device is here, but no nvidia-smi"
        hint = "in a container: run it with --gpus all and NVIDIA's container toolkit"
        return _check(name=name, state="note", found=text, hint=hint)
    text = "none of NVIDIA's: everything runs on the CPU"
    return _check(name=name, state="absent", found=text)


def cuda_driver() -> Check:
    """CUDA's driver, tried by loading it: torch, ONNX Runtime and TensorRT all need it."""
    name = "CUDA driver"
    absence = driver.absence()
    if absence is not None:
        state: State = "broken" if environment.has_gpu() else "absent"
        hint = absence.hint if environment.has_gpu() else ""
        return _check(name=name, state=state, found=absence.message, hint=hint)
    gpus = [
        f"{device.name}, compute capability {device.compute_capability},"
        f" {device.memory_bytes / 1e9:.0f} GB"
        for device in driver.devices()
    ]
    first = driver.devices()[0]
    text = f"{first.driver or 'version unknown'}, for CUDA {first.cuda} and older: {'; '.join(gpus)}"
    return _check(name=name, state="ok", found=text)
