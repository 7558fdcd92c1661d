"""CUDA's driver through ctypes: whether there is one, which GPUs it has, and what runs on them.

`libcuda.so.1` comes with the driver; neither torch nor CUDA's runtime library is needed. Nothing here
touches CUDA before it is asked to. A process that has asked must not be forked into ones that use CUDA.
`Gpu` has the memory, streams, events and graphs of one GPU; `Gpu.close` frees them in CUDA's order.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optcli.models.engines import EngineError

if TYPE_CHECKING:
    import numpy as np

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

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: not ordered with the default stream
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads' calls do not break a capture
_EXTERNAL = 1  # CU_EVENT_RECORD_EXTERNAL: an event that others than the graph may ask


class CudaError(EngineError):
    """A call of the driver that failed; `name` as CUDA has it, such as CUDA_ERROR_OUT_OF_MEMORY."""

    def __init__(self, call: str, number: int, name: str, description: str) -> None:
        reason, hint = _REASONS.get(number, (f"{call} failed: {description or 'unknown error'}", ""))
        if name == "CUDA_ERROR_OUT_OF_MEMORY":
            hint = "free the GPU's memory, or use smaller batches"
        super().__init__(f"{reason} ({name or 'CUDA error'}, {number})", hint=hint)
        self.call, self.number, self.name = call, number, name


@dataclass(frozen=True)
class CudaDevice:
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


def require(index: int = 0) -> CudaDevice:
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


def devices() -> tuple[CudaDevice, ...]:
    """All GPUs that this process may use. Raises `EngineError` where there is no driver."""
    library = open_library()
    count, version = ctypes.c_int(0), ctypes.c_int(0)
    library.call("cuDeviceGetCount", ctypes.byref(count))
    library.call("cuDriverGetVersion", ctypes.byref(version))
    cuda = f"{version.value // 1000}.{version.value % 1000 // 10}"
    return tuple(_device(library, index, cuda) for index in range(count.value))


def _device(library: Library, index: int, cuda: str) -> CudaDevice:
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
    return CudaDevice(
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


class Gpu:
    """One GPU's primary context, the one that CUDA's runtime and TensorRT use, too.

    Raises `EngineError` where there is no driver or no such GPU.
    """

    def __init__(self, index: int = 0) -> None:
        self.device = require(index)
        self._library = open_library()
        self.call = self._library.call
        self._handle = ctypes.c_int(0)
        self.call("cuDeviceGet", ctypes.byref(self._handle), index)
        context = ctypes.c_void_p()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._handle)
        self.call("cuCtxSetCurrent", context)
        self._closing: list[tuple[str, Any]] = []

    def create(self, function: str, destroy: str, *arguments: Any) -> ctypes.c_void_p:
        """A handle that a function hands out first, to be destroyed when the GPU is let go of."""
        handle = ctypes.c_void_p()
        self.call(function, ctypes.byref(handle), *arguments)
        self._closing.append((destroy, handle))
        return handle

    def destroy(self, handle: ctypes.c_void_p) -> None:
        """Let go of one handle before the rest."""
        for entry in self._closing:
            if entry[1] is handle:
                self._closing.remove(entry)
                self.call(entry[0], handle)
                return

    def close(self) -> None:
        """Free everything; a GPU that has failed in between is left as it is."""
        try:
            while self._closing:
                function, handle = self._closing.pop()
                self.call(function, handle)
            self.call("cuDevicePrimaryCtxRelease_v2", self._handle)
        except CudaError:
            self._closing.clear()


class Stream:
    """A stream of its own: work on the default one would wait for all others."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.handle = gpu.create("cuStreamCreate", "cuStreamDestroy_v2", _NON_BLOCKING)

    @property
    def address(self) -> int:
        """The handle as a number, as TensorRT takes it."""
        return self.handle.value or 0

    def synchronize(self) -> None:
        """Wait for all that was put into it. Raises `CudaError` for what failed on the way."""
        self._gpu.call("cuStreamSynchronize", self.handle)


class CudaEvent:
    """A point in a stream whose time the GPU notes."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._handle = gpu.create("cuEventCreate", "cuEventDestroy_v2", 0)

    def record(self, stream: Stream, *, in_graph: bool = False) -> None:
        """Put it into the stream; `in_graph`: into what is recorded, to be noted at every launch."""
        flags = _EXTERNAL if in_graph else 0
        self._gpu.call("cuEventRecordWithFlags", self._handle, stream.handle, flags)

    def since_ms(self, earlier: CudaEvent) -> float:
        """Milliseconds on the GPU between two events; both must be over."""
        elapsed_ms = ctypes.c_float(0)
        self._gpu.call("cuEventElapsedTime", ctypes.byref(elapsed_ms), earlier._handle, self._handle)
        return elapsed_ms.value


class Buffer:
    """Memory on the GPU and as much pinned memory beside it; it only grows."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self.size_bytes = 0
        self._device: ctypes.c_void_p | None = None
        self._host: ctypes.c_void_p | None = None

    @property
    def address(self) -> int:
        """Where it lies on the GPU."""
        return (self._device.value if self._device else None) or 0

    @property
    def host_address(self) -> int:
        """Where the pinned memory lies."""
        return (self._host.value if self._host else None) or 0

    def reserve(self, size_bytes: int) -> None:
        """Make room for so many bytes; what it held may be gone. Raises `CudaError`."""
        if self._device is not None and size_bytes <= self.size_bytes:
            return
        for handle in (self._device, self._host):
            if handle is not None:
                self._gpu.destroy(handle)
        self._device = self._host = None
        self.size_bytes = max(1, size_bytes)
        self._device = self._gpu.create("cuMemAlloc_v2", "cuMemFree_v2", self.size_bytes)
        self._host = self._gpu.create("cuMemHostAlloc", "cuMemFreeHost", self.size_bytes, 0)

    def array(self, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
        """The pinned memory as an array; valid until the next `reserve`."""
        import numpy as np

        raw: Any = (ctypes.c_ubyte * self.size_bytes).from_address(self.host_address)
        elements: np.ndarray = np.frombuffer(raw, dtype, math.prod(shape))
        return elements.reshape(tuple(shape))

    def to_device(self, size_bytes: int, stream: Stream) -> None:
        """Copy that much of the pinned memory to the GPU, in the stream's turn."""
        if size_bytes:
            self._gpu.call("cuMemcpyHtoDAsync_v2", self._device, self._host, size_bytes, stream.handle)

    def to_host(self, size_bytes: int, stream: Stream) -> None:
        """Copy that much back, in the stream's turn."""
        if size_bytes:
            self._gpu.call("cuMemcpyDtoHAsync_v2", self._host, self._device, size_bytes, stream.handle)


class CudaGraph:
    """What was put into a stream, recorded once and launched as one piece of work.

    >>> graph = Graph(gpu, stream, enqueue)
    """

    def __init__(self, gpu: Gpu, stream: Stream, enqueue: Callable[[], None]) -> None:
        """Record what `enqueue` puts into the stream. Raises `CudaError`, and what `enqueue` raises."""
        self._gpu = gpu
        graph = ctypes.c_void_p()
        gpu.call("cuStreamBeginCapture_v2", stream.handle, _THREAD_LOCAL)
        try:
            enqueue()
        except BaseException:
            # A stream that stays in capture can do nothing else.
            with suppress(CudaError):
                gpu.call("cuStreamEndCapture", stream.handle, ctypes.byref(graph))
                if graph.value:
                    gpu.call("cuGraphDestroy", graph)
            raise
        gpu.call("cuStreamEndCapture", stream.handle, ctypes.byref(graph))
        try:
            self._handle = gpu.create("cuGraphInstantiateWithFlags", "cuGraphExecDestroy", graph, 0)
        finally:
            gpu.call("cuGraphDestroy", graph)

    def launch(self, stream: Stream) -> None:
        """Put the whole of it into the stream."""
        self._gpu.call("cuGraphLaunch", self._handle, stream.handle)

    def close(self) -> None:
        """Let go of it."""
        self._gpu.destroy(self._handle)
