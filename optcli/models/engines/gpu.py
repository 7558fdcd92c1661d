"""Memory, streams, events and graphs on one GPU, through the driver.

Objects are let go of by `Gpu.close`, in the order in which CUDA wants it.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from optcli.models.engines import driver
from optcli.models.engines.driver import CudaError

if TYPE_CHECKING:
    import numpy as np

_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: not ordered with the default stream
_THREAD_LOCAL = 1  # CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: other threads' calls do not break a capture
_EXTERNAL = 1  # CU_EVENT_RECORD_EXTERNAL: an event that others than the graph may ask


class Gpu:
    """One GPU's primary context, the one that CUDA's runtime and TensorRT use, too.

    Raises `EngineError` where there is no driver or no such GPU.
    """

    def __init__(self, index: int = 0) -> None:
        self.device = driver.require(index)
        self._library = driver.open_library()
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
