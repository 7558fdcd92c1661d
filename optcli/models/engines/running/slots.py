"""One input or output of an engine: its element type, its memory, its address in the context."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from optcli.models.engines import EngineError
from optcli.models.engines.bindings import Bindings, enum_name
from optcli.models.engines.driver import Buffer, Gpu

if TYPE_CHECKING:
    import numpy as np

_STORED = {
    "FLOAT": "float32",
    "HALF": "float16",
    "INT8": "int8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "UINT8": "uint8",
    "BF16": "uint16",
    "FP8": "uint8",
}

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


# Element types of engines' inputs and outputs: how NumPy holds them, and those that it does not know.
#
# bfloat16 and FP8 lie in memory as bits; outside an engine they are float32.


@dataclass(frozen=True)
class Element:
    """One element type, named as TensorRT's `DataType` has it."""

    name: str

    @property
    def stored(self) -> np.dtype[Any]:
        """What its bits are held as. Raises `EngineError` for a type that fills no whole bytes."""
        import numpy as np

        if self.name not in _STORED:
            raise EngineError(
                f"inputs and outputs of type {self.name} cannot be handed over",
                hint="let the model take and give float32 or float16",
            )
        return np.dtype(_STORED[self.name])

    def store(self, view: np.ndarray, values: np.ndarray) -> None:
        """Write values into memory of this type. Raises `EngineError` where they would be cut off."""
        import numpy as np

        try:
            if self.name == "BF16":
                np.copyto(view, _to_bfloat16(values))
            elif self.name == "FP8":
                raise TypeError("FP8 is not rounded to here")
            else:
                np.copyto(view, values, casting="same_kind")
        except TypeError as error:
            raise EngineError(f"{values.dtype} does not fit into {self.name}: {error}") from error

    def load(self, view: np.ndarray) -> np.ndarray:
        """A copy of what lies in memory, in a type that NumPy has."""
        if self.name == "BF16":
            return (view.astype("uint32") << 16).view("float32")
        if self.name == "FP8":
            values: np.ndarray = _e4m3()[view]
            return values
        return view.copy()


def _to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The upper half of float32's bits, rounded to the nearest, ties to even."""
    import numpy as np

    wide = np.ascontiguousarray(values, dtype=np.float32)
    bits = wide.view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(wide), 0x7FC0, rounded).astype(np.uint16)


def _e4m3() -> np.ndarray:
    """The 256 values of FP8 E4M3 in the order of their bits: no infinities, NaN at all ones.

    Micikevicius et al., FP8 Formats for Deep Learning, 2022.
    """
    import numpy as np

    bits = np.arange(128)
    exponent, mantissa = bits >> 3, bits & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    positive = np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)
    positive[127] = np.nan
    return np.concatenate([positive, -positive]).astype(np.float32)
