"""Where PyTorch computes: the CPU, or a GPU that is asked for and really there."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from optcli.errors import MissingError, counted

CPU, CUDA = "cpu", "cuda"
# In an artifact's facts: what it was compiled for, where it runs on nothing else.
FACT = "device"
# Largest difference in FP32 of what was compiled for a GPU, as a share of the largest output: cuDNN's
# ways to compute a convolution, such as Winograd's, differ by more than those of CPUs. Seen: 1.3e-4
# (MobileNetV3 on an H100).
GPU_TOLERANCE = 1e-3
_GET_DRIVER = "run on a machine with a GPU and its driver: `optcli doctor` says what is missing"


@contextmanager
def variables(**values: str) -> Iterator[None]:
    """Set environment variables while the block runs."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def require(device: str) -> str:
    """The device by its full name: `cpu`, or `cuda:0` for `cuda`.

    Raises `MissingError` where torch cannot compute there: it never becomes the CPU instead.
    """
    import torch

    kind, _, index = device.partition(":")
    if kind == CPU:
        return CPU
    if torch.version.cuda is None:
        raise MissingError(
            f"this torch ({torch.__version__}) was built without CUDA",
            hint="install the one for CUDA: https://pytorch.org/get-started",
        )
    if not torch.cuda.is_available():
        raise MissingError(
            f"torch {torch.__version__} sees no GPU (it was built for CUDA {torch.version.cuda})",
            hint=_GET_DRIVER,
        )
    number, count = int(index or 0), torch.cuda.device_count()
    if number >= count:
        raise MissingError(
            f"there is no {device}: torch sees {counted(count, 'GPU')}",
            hint=f"name one of cuda:0 to cuda:{count - 1}",
        )
    return f"{CUDA}:{number}"


def exact(tf32: bool = False) -> None:
    """Let FP32 be FP32 on GPUs in this process: cuDNN would round factors to TF32 by itself."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32


def prepare_compiling() -> None:
    """Let Inductor find CUDA's headers where pip has put them, and keep FP32 exact in what it compiles.

    Where a CUDA toolkit is installed, or `CUDA_HOME` names one, that is used.
    """
    exact()
    if "CUDA_HOME" in os.environ or shutil.which("nvcc"):
        return
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for toolkit in sorted(Path(folder).glob("cu[0-9]*"), reverse=True):
            if (toolkit / "include" / "cuda.h").is_file():
                os.environ["CUDA_HOME"] = os.fspath(toolkit)
                return


def make_driver_linkable(folder: Path, maps: Path = Path("/proc/self/maps")) -> None:
    """Let a linker find libcuda.so by a link in `folder`: a driver alone brings libcuda.so.1.

    Whichever library this process has loaded is meant; without one nothing is done.
    """
    loaded = [line.split()[-1] for line in maps.read_text().splitlines() if "/libcuda.so" in line]
    if not loaded:
        return
    (folder / "libcuda.so").symlink_to(loaded[0])
    library_path = os.environ.get("LIBRARY_PATH", "")
    os.environ["LIBRARY_PATH"] = os.pathsep.join(filter(None, (library_path, os.fspath(folder))))


def described(device: str) -> dict[str, Any]:
    """What the report says of the device: nothing of a CPU, which the environment describes."""
    if device == CPU:
        return {}
    import torch

    capability = ".".join(map(str, torch.cuda.get_device_capability(device)))
    return {
        "gpu": torch.cuda.get_device_name(device),
        "compute_capability": capability,
        "cuda": torch.version.cuda,
    }
