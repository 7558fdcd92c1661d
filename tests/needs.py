"""What a test may need of the machine: it is skipped where that is missing, and for no other reason.

    needs("gpu")                    in a test or a fixture: skips where no NVIDIA GPU can be used
    timm = imported("timm")         the module of an optional package; skips where it is not installed
    pytestmark = pytest.mark.needs("no gpu")

Each kind has a probe, which looks at the machine and not at optcli: a broken `driver.py` must not skip
the tests that would show it. `suite.py` probes once more at the end, and fails the run over a skip that
is of no kind or whose kind is not missing.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import ssh_host
from commands import as_an_ordinary_user

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = "OPTCLI_SHARED"
# The packages that may be missing where optcli is installed, with what pip calls them. What the extra
# `dev` asks for may not be missing in a run of the whole suite: `make` installs it.
OPTIONAL = {
    "flask_cors": "flask-cors",
    "jsonschema": "jsonschema",
    "moto": "moto",
    "onnxruntime_ep_nv_tensorrt_rtx": "onnxruntime-ep-nv-tensorrt-rtx-cu13",
    "onnxruntime_ep_openvino": "onnxruntime-ep-openvino",
    "onnxruntime_qnn": "onnxruntime-qnn",
    "pynvml": "nvidia-ml-py",
    "s3fs": "s3fs",
    "tensorrt": "tensorrt",
    "tensorrt_rtx": "tensorrt-rtx-cu13",
    "timm": "timm",
    "transformers": "transformers",
}
_CREATE_RULESET, _RULESET_VERSION, _LEAST = 444, 1, 3  # landlock(7); since Linux 6.2
_NEW_USER, _NEW_PIDS = 0x10000000, 0x20000000  # unshare(2): CLONE_NEWUSER, CLONE_NEWPID


class Lacking(pytest.skip.Exception):
    """A test is skipped for want of something: its kind with what it is about, and what was found."""

    def __init__(self, need: tuple[str, ...], found: str) -> None:
        super().__init__(f"needs {' '.join(need)}: {found}", allow_module_level=True)
        self.need = need


def needs(kind: str, *about: str) -> None:
    """Go on where the machine has it; skip the test, the fixture's tests or the module where not."""
    found = missing(kind, *about)
    if found is not None:
        raise Lacking((kind, *about), found)


def imported(package: str) -> ModuleType:
    """A package that is not on every machine, imported; skips where it is not installed."""
    needs("package", package)
    return importlib.import_module(package)


def missing(kind: str, *about: str) -> str | None:
    """What is missing here of that kind; None where nothing is. Raises KeyError for an unknown kind."""
    return KINDS[kind](*about)


def shared_folder() -> Path:
    """Where real data sets and models lie, if they do: OPTCLI_SHARED, else beside the repository."""
    return Path(os.environ.get(SHARED) or REPOSITORY.parent / "shared")


def compiler() -> str | None:
    """A C compiler."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def _gpu() -> str | None:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        return f"no NVIDIA driver ({error})"
    count = ctypes.c_int(0)
    if failed := cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count)):
        return f"the NVIDIA driver gives CUDA error {failed}"
    return None if count.value else "the NVIDIA driver sees no GPU"


def _torch_gpu() -> str | None:
    import torch

    if torch.cuda.is_available():
        return None
    return f"torch {torch.__version__} sees no GPU (built for CUDA {torch.version.cuda})"


def _redis_server() -> str | None:
    return None if shutil.which("redis-server") else "no redis-server (the package of that name has it)"


def _sshd() -> str | None:
    return None if ssh_host.server() else "no sshd (the package openssh-server has it)"


def _no(probe: Callable[[], str | None], found: str) -> Callable[[], str | None]:
    """The opposite of a probe: what is needed is that something is *not* here."""
    return lambda: found if probe() is None else None


def _package(name: str) -> str | None:
    if name not in OPTIONAL:
        raise KeyError(
            f"{name} is not among the packages that may be missing (OPTIONAL in tests/needs.py)"
        )
    if importlib.util.find_spec(name) is not None:
        return None
    return f"{name} is not installed (pip install {OPTIONAL[name]})"


def _tensorrt(product: str) -> str | None:
    """TensorRT itself may be in an interpreter of its own."""
    elsewhere = os.environ.get("OPTCLI_TENSORRT_PYTHON") if product == "tensorrt" else None
    if not elsewhere:
        return _package(product)
    hidden = ("PYTHONPATH", "PYTHONHOME")
    variables = {name: value for name, value in os.environ.items() if name not in hidden}
    script = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({product!r}) is None)"
    try:
        done = subprocess.run(
            [elsewhere, "-c", script], env=variables, capture_output=True, check=False
        )
    except OSError as error:
        return f"{elsewhere} cannot be started: {error}"
    return None if done.returncode == 0 else f"{product} is not in {elsewhere}"


def _rtx_for_this_gpu() -> str | None:
    """TensorRT-RTX is not made for every GPU: an H200 (9.0) is not among them."""
    if found := _gpu() or _package("tensorrt_rtx"):
        return found
    import tensorrt_rtx

    from optcli.models.engines import driver

    capability = "SM" + driver.devices()[0].compute_capability.replace(".", "")
    known = set(tensorrt_rtx.ComputeCapability.__members__)
    return None if capability in known else f"this GPU is {capability}, known are {sorted(known)}"


def _onnxruntime_for_gpus() -> str | None:
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        return None
    return f"onnxruntime {onnxruntime.__version__} is the one for CPUs (pip install onnxruntime-gpu)"


def _provider_libraries(provider: str) -> str | None:
    """What an execution provider wants of CUDA, cuDNN or TensorRT, as the dynamic linker says it."""
    from optcli.models.formats.onnxruntime_providers import PROVIDERS, library_reason, preload

    preload()
    return library_reason(PROVIDERS[provider].name) or None


def _shared() -> str | None:
    folder = shared_folder()
    if (folder / "datasets").is_dir() and (folder / "models").is_dir():
        return None
    return f"no real data and models at {folder} ({SHARED} names another place)"


def _compiler() -> str | None:
    return None if compiler() else "neither cc nor gcc nor clang is here"


def _device_file(name: str) -> str | None:
    return None if os.path.exists(f"/dev/{name}") else f"no /dev/{name} here"


def _linux() -> str | None:
    return None if sys.platform == "linux" else f"this is {sys.platform}"


def _file_modes() -> str | None:
    done = subprocess.run(["true"], preexec_fn=as_an_ordinary_user, check=False)
    return None if done.returncode == 0 else "the superuser cannot be stopped from reading and writing"


def _landlock() -> str | None:
    if found := _linux():
        return found
    call = ctypes.CDLL(None, use_errno=True).syscall
    version = call(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_RULESET_VERSION))
    if version < 0:
        return f"the kernel refuses it: {os.strerror(ctypes.get_errno())}"
    return None if version >= _LEAST else f"the kernel has version {version}, wanted {_LEAST}"


def _seccomp() -> str | None:
    """Filters of system calls, on the machines whose calls optcli knows."""
    actions = Path("/proc/sys/kernel/seccomp/actions_avail")
    if found := _linux():
        return found
    if not actions.is_file() or "errno" not in actions.read_text().split():
        return "the kernel has no seccomp filters"
    known = ("x86_64", "aarch64")
    return None if platform.machine() in known else f"this is {platform.machine()}, known are {known}"


def _x86_64() -> str | None:
    machine = platform.machine()
    return (
        None if (sys.platform, machine) == ("linux", "x86_64") else f"this is {sys.platform} {machine}"
    )


def _user_namespaces() -> str | None:
    if found := _linux():
        return found
    script = f"import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare({_NEW_USER}) != 0)"
    done = subprocess.run([sys.executable, "-c", script], check=False)
    return None if done.returncode == 0 else "the kernel refuses unshare(CLONE_NEWUSER)"


def _pid_namespaces() -> str | None:
    """One that holds processes: the superuser makes it alone, others in a user namespace."""
    if found := _linux():
        return found
    flags = _NEW_PIDS if os.geteuid() == 0 else _NEW_PIDS | _NEW_USER
    script = f"import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare({flags}) != 0)"
    done = subprocess.run([sys.executable, "-c", script], check=False)
    return None if done.returncode == 0 else "the kernel refuses unshare(CLONE_NEWPID)"


# What a test may be skipped for. A new kind is one line here: its probe says what is missing, or None.
KINDS: dict[str, Callable[..., str | None]] = {
    "gpu": _gpu,
    "no gpu": _no(_gpu, "an NVIDIA GPU is here"),
    "gpu in torch": _torch_gpu,
    "no gpu in torch": _no(_torch_gpu, "torch sees a GPU"),
    "package": _package,
    "tensorrt": _tensorrt,
    "tensorrt-rtx for this gpu": _rtx_for_this_gpu,
    "onnxruntime for gpus": _onnxruntime_for_gpus,
    "provider libraries": _provider_libraries,
    "shared data": _shared,
    "c compiler": _compiler,
    "redis-server": _redis_server,
    "sshd": _sshd,
    "device file": _device_file,
    "linux": _linux,
    "file modes that hold": _file_modes,
    "x86-64": _x86_64,
    "landlock": _landlock,
    "seccomp filters": _seccomp,
    "user namespaces": _user_namespaces,
    "pid namespaces": _pid_namespaces,
}
