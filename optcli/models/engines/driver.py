"""CUDA's driver through ctypes: whether there is one, which GPUs it has, and what runs on them.

`libcuda.so.1` comes with the driver; neither torch nor CUDA's runtime library is needed. Nothing here
touches CUDA before it is asked to. A process that has asked must not be forked into ones that use CUDA.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from optcli.models.engines import EngineError

LIBRARY = "libcuda.so.1"
_VERSION_FILES = ("/sys/module/nvidia/version", "/proc/driver/nvidia/version")
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_HINT = "run where `nvidia-smi` shows a GPU"
# Errors that people meet before anything runs, in clearer words than CUDA's own.
_REASONS = {
    34: ("libcuda.so.1 is the CUDA toolkit's stub, not the driver's", "take it off LD_LIBRARY_PATH"),
    100: ("the NVIDIA driver is here, and no GPU", f"{_HINT}; CUDA_VISIBLE_DEVICES may hide it"),
    101: ("the GPU that was asked for is not here", _HINT),
    802: ("the GPU is not ready yet", "look whether nvidia-fabricmanager runs, and wait"),
    803: (
        "the NVIDIA driver's library and its kernel module are of different versions",
        "restart the machine after the driver's update, or let the container take the host's library",
    ),
    804: ("the CUDA compatibility library does not support this GPU", "update the driver instead"),
}  # fmt: skip


class CudaError(EngineError):
    """A call of the driver that failed; `name` as CUDA has it, such as CUDA_ERROR_OUT_OF_MEMORY."""

    def __init__(self, call: str, number: int, name: str, description: str) -> None:
        reason, hint = _REASONS.get(number, (f"{call} failed: {description or 'unknown error'}", ""))
        if name == "CUDA_ERROR_OUT_OF_MEMORY":
            hint = "free the GPU's memory, or use smaller batches"
        super().__init__(f"{reason} ({name or 'CUDA error'}, {number})", hint=hint)
        self.call, self.number, self.name = call, number, name


@dataclass(frozen=True)
class Device:
    """One GPU as the driver describes it.

    `cuda` is the newest CUDA that the driver knows, `driver` its own version (None where the system
    does not tell), `compute_capability` such as `9.0`.
    """

    index: int
    name: str
    compute_capability: str
    memory_bytes: int
    cuda: str
    driver: str | None


def present() -> bool:
    """Whether a driver and at least one GPU are here. Never raises."""
    return absence() is None


def absence() -> EngineError | None:
    """Why no GPU can be used here, with what would help; None where one can."""
    try:
        library = open_library()
        count = ctypes.c_int(0)
        library.call("cuDeviceGetCount", ctypes.byref(count))
    except EngineError as error:
        return error
    if count.value > 0:
        return None
    return CudaError("cuDeviceGetCount", 100, "CUDA_ERROR_NO_DEVICE", "")


def require(index: int = 0) -> Device:
    """The GPU of a number. Raises `EngineError` with the reason where it cannot be used."""
    reason = absence()
    if reason is not None:
        raise reason
    gpus = devices()
    if index >= len(gpus):
        raise EngineError(
            f"there is no GPU {index}: this machine has {len(gpus)}",
            hint=f"set `device` below {len(gpus)}",
        )
    return gpus[index]


def devices() -> tuple[Device, ...]:
    """All GPUs that this process may use. Raises `EngineError` where there is no driver."""
    library = open_library()
    count, version = ctypes.c_int(0), ctypes.c_int(0)
    library.call("cuDeviceGetCount", ctypes.byref(count))
    library.call("cuDriverGetVersion", ctypes.byref(version))
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return tuple(_device(library, index, cuda) for index in range(count.value))


def _device(library: Library, index: int, cuda: str) -> Device:
    handle = ctypes.c_int(0)
    library.call("cuDeviceGet", ctypes.byref(handle), index)
    name = ctypes.create_string_buffer(256)
    library.call("cuDeviceGetName", name, len(name), handle)
    size = ctypes.c_size_t(0)
    library.call("cuDeviceTotalMem_v2", ctypes.byref(size), handle)
    capability = []
    for attribute in (_MAJOR, _MINOR):
        value = ctypes.c_int(0)
        library.call("cuDeviceGetAttribute", ctypes.byref(value), attribute, handle)
        capability.append(str(value.value))
    return Device(
        index=index,
        name=name.value.decode(errors="replace"),
        compute_capability=".".join(capability),
        memory_bytes=size.value,
        cuda=cuda,
        driver=driver_version(),
    )


def driver_version() -> str | None:
    """Such as `580.65.06`, from the kernel module; None where the system does not tell."""
    for path in _VERSION_FILES:
        try:
            text = Path(path).read_text()
        except OSError:
            continue
        if match := re.search(r"\b\d{3,}\.\d+(\.\d+)?\b", text):
            return match.group()
    return None


class Library:
    """libcuda after cuInit; `call` raises what a function reports."""

    def __init__(self, library: Any) -> None:
        self.raw = library
        self.call("cuInit", 0)

    def call(self, function: str, *arguments: Any) -> None:
        """Call a function that gives a CUresult. Raises `CudaError`."""
        number = getattr(self.raw, function)(*arguments)
        if number:
            raise CudaError(function, number, *self._words(number))

    def _words(self, number: int) -> tuple[str, str]:
        texts = []
        for function in ("cuGetErrorName", "cuGetErrorString"):
            text = ctypes.c_char_p()
            succeeded = getattr(self.raw, function)(number, ctypes.byref(text)) == 0
            texts.append((text.value or b"").decode(errors="replace") if succeeded else "")
        return texts[0], texts[1]


def open_library() -> Library:
    """The driver's library, ready to be called. Raises `EngineError` with the reason."""
    return _open(LIBRARY)


# A driver that fails to start is asked again: only what works is kept.
@cache
def _open(name: str) -> Library:
    try:
        raw = ctypes.CDLL(name)
    except OSError as error:
        raise EngineError(f"there is no NVIDIA driver here: {error}", hint=_HINT) from error
    try:
        for function, arguments in _ARGUMENTS.items():
            getattr(raw, function).argtypes = arguments
    except AttributeError as error:
        raise EngineError(
            f"the NVIDIA driver is too old: {error}", hint="update it to one for CUDA 12 or newer"
        ) from error
    return Library(raw)


_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_size_t
# Where the size of an argument is not int's, ctypes must know.
_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "cuDevicePrimaryCtxRetain": (_POINTER, ctypes.c_int),
    "cuDevicePrimaryCtxRelease_v2": (ctypes.c_int,),
    "cuCtxSetCurrent": (_POINTER,),
    "cuMemAlloc_v2": (_POINTER, _SIZE),
    "cuMemFree_v2": (_POINTER,),
    "cuMemHostAlloc": (_POINTER, _SIZE, ctypes.c_uint),
    "cuMemFreeHost": (_POINTER,),
    "cuMemcpyHtoDAsync_v2": (_POINTER, _POINTER, _SIZE, _POINTER),
    "cuMemcpyDtoHAsync_v2": (_POINTER, _POINTER, _SIZE, _POINTER),
    "cuStreamCreate": (_POINTER, ctypes.c_uint),
    "cuStreamDestroy_v2": (_POINTER,),
    "cuStreamSynchronize": (_POINTER,),
    "cuEventCreate": (_POINTER, ctypes.c_uint),
    "cuEventDestroy_v2": (_POINTER,),
    "cuEventRecordWithFlags": (_POINTER, _POINTER, ctypes.c_uint),
    "cuEventElapsedTime": (_POINTER, _POINTER, _POINTER),
    "cuStreamBeginCapture_v2": (_POINTER, ctypes.c_int),
    "cuStreamEndCapture": (_POINTER, _POINTER),
    "cuGraphInstantiateWithFlags": (_POINTER, _POINTER, ctypes.c_ulonglong),
    "cuGraphDestroy": (_POINTER,),
    "cuGraphLaunch": (_POINTER, _POINTER),
    "cuGraphExecDestroy": (_POINTER,),
}
