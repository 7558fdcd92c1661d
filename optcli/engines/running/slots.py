"""One input or output of an engine: its element type, its memory, its address in the context."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from optcli.engines import EngineError
from optcli.engines.bindings import Bindings, enum_name
from optcli.engines.gpu import Buffer, Gpu
from optcli.engines.running.elements import Element

if TYPE_CHECKING:
    import numpy as np

# More is not set aside for an output that may be small; there is as much of it in pinned memory.
_MOST_AHEAD_BYTES = 1 << 28


def slots_of(bindings: Bindings, engine: Any, gpu: Gpu) -> list[Slot]:
    """Every input and output, in the engine's order."""
    names = [engine.get_tensor_name(index) for index in range(engine.num_io_tensors)]
    return [Slot(bindings, engine, gpu, name) for name in names]


class Slot:
    """One input or output.

    `on_host` says that the processor reads or writes it (sizes given as values), `varies` that its
    size is known only when it was computed.
    """

    def __init__(self, bindings: Bindings, engine: Any, gpu: Gpu, name: str) -> None:
        self.name = name
        self.is_input = enum_name(engine.get_tensor_mode(name)) == "INPUT"
        self.on_host = enum_name(engine.get_tensor_location(name)) == "HOST"
        self.element = Element(enum_name(engine.get_tensor_dtype(name)))
        self.dtype = self.element.stored
        self.buffer = Buffer(gpu)
        self.varies = False
        self.size_bytes = 0
        self._view: np.ndarray | None = None
        self._allocator: Any = allocator_of(bindings.module, Buffer(gpu)) if not self.is_input else None

    def place(self, context: Any, shape: Sequence[int] | None) -> None:
        """Memory for a shape, known to the context; for an unknown one TensorRT asks while it runs."""
        # For good: TensorRT 8.6 gives the last call's size once there was one.
        self.varies = self.varies or shape is None or any(size < 0 for size in shape)
        if self.varies:
            self._reserve_most(context)
            self._require(context.set_output_allocator(self.name, self._allocator), "an allocator")
            return
        assert shape is not None
        self.size_bytes = math.prod(shape) * self.dtype.itemsize
        self.buffer.reserve(self.size_bytes)
        self._view = self.buffer.array(shape, self.dtype)
        address = self.buffer.host_address if self.on_host else self.buffer.address
        self._require(context.set_tensor_address(self.name, address), "its address")

    def _reserve_most(self, context: Any) -> None:
        """Memory for the largest size that these inputs can give, where TensorRT knows one.

        TensorRT 8.6 was seen to ask for memory at the first call alone, and to give more in later ones.
        """
        memory: Buffer = self._allocator.buffer
        most_bytes = int(context.get_max_output_size(self.name))
        if 0 < most_bytes <= _MOST_AHEAD_BYTES:
            memory.reserve(most_bytes)
            self._require(context.set_tensor_address(self.name, memory.address), "its address")

    def store(self, values: np.ndarray) -> None:
        """Write a batch into pinned memory."""
        assert self._view is not None
        self.element.store(self._view, values)

    def buffer_of_varying(self) -> Buffer:
        """The memory that TensorRT asked for. Raises `EngineError` where that failed."""
        allocator = self._allocator
        if allocator.error is not None:
            raise EngineError(f"no memory for the output {self.name!r}: {allocator.error}")
        if allocator.shape is None:
            raise EngineError(f"TensorRT never said how large the output {self.name!r} is")
        self.size_bytes = math.prod(allocator.shape) * self.dtype.itemsize
        memory: Buffer = allocator.buffer
        if self.size_bytes > memory.size_bytes:
            raise EngineError(
                f"TensorRT made {self.size_bytes} bytes of the output {self.name!r} and asked for "
                f"{memory.size_bytes}",
                hint="open the engine anew for inputs of another size",
            )
        self._view = memory.array(allocator.shape, self.dtype)
        return memory

    def load(self) -> np.ndarray:
        """A copy of what was computed."""
        if self._view is None:
            raise EngineError("nothing was computed", hint="execute first")
        return self.element.load(self._view)

    def _require(self, accepted: bool, what: str) -> None:
        if not accepted:
            raise EngineError(f"TensorRT refuses {what} for {self.name!r}")


def allocator_of(module: Any, buffer: Buffer) -> Any:
    """What TensorRT asks for an output's memory once it knows the size: grows `buffer`."""

    class Allocator(module.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IOutputAllocator.__init__(self)
            self.buffer = buffer
            self.shape: tuple[int, ...] | None = None
            self.error: EngineError | None = None

        # 8.6 calls the first, 10 and later the second; an exception in either would end the process.
        def reallocate_output(self, tensor_name: str, memory: int, size: int, alignment: int) -> int:
            try:
                self.buffer.reserve(size)
            except EngineError as error:
                self.error = error
                return 0
            return self.buffer.address

        def reallocate_output_async(
            self, tensor_name: str, memory: int, size: int, alignment: int, stream: int
        ) -> int:
            return self.reallocate_output(tensor_name, memory, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Sequence[int]) -> None:
            self.shape = tuple(shape)

    return Allocator()
