"""The three steps of a call in ONNX Runtime, with nothing between them and the session.

Plain objects, not part of the runner's pydantic model: a look at a private attribute of such a model
takes a microsecond or two, and a small network takes fifty in all. On a GPU: I/O binding on a stream
that is ours to time, by the events of CUDA's driver; ONNX Runtime has none of its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from optcli.errors import RunnerError, first_line, raised_as
from optcli.models.engines.driver import Buffer, CudaEvent

if TYPE_CHECKING:
    import numpy as np
    from onnxruntime import InferenceSession, RunOptions

    from optcli.models.engines.driver import Gpu, Stream


class OnnxruntimeCudaCalls:
    """Calls on a GPU: pinned copies in and out, and computing between two events, all on one stream.

    `graphs`: the provider records each shape of inputs as a CUDA graph, which wants everything at the
    same address each time. So the first call of a shape finds out how large its outputs are, and
    their memory is given to the following ones. Raises `RunnerError` with what failed.
    """

    def __init__(
        self,
        session: InferenceSession,
        names: Sequence[str],
        halves: frozenset[str],
        gpu: Gpu,
        stream: Stream,
        *,
        graphs: bool,
    ) -> None:
        self.session, self._names, self._halves = session, tuple(names), halves
        self._gpu, self._stream, self._graphs = gpu, stream, graphs
        self._start, self._stop = CudaEvent(gpu), CudaEvent(gpu)
        self._slots: dict[tuple[tuple[int, ...], ...], _Slot] = {}
        self._slot: _Slot | None = None
        self._in_flight = self._timed = False

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        """Start to copy the arrays to the GPU; they may be changed at once."""
        import numpy as np

        arrays = {**feed, **as_halves(feed, self._halves)}
        with raised_as(RunnerError, "ONNX Runtime failed"):
            if self._in_flight:  # bound again before anything was computed: the copy may be under way
                self._stream.synchronize()
            self._slot = slot = self._slot_of(arrays)
            if not self._graphs:
                self._bind_outputs(slot)
            for name, array in arrays.items():
                buffer = slot.inputs[name]
                np.copyto(buffer.array(array.shape, array.dtype), array)
                buffer.to_device(array.nbytes, self._stream)
            self._in_flight = True

    def execute(self) -> None:
        """Compute, and wait for it."""
        slot = self._bound()
        with raised_as(RunnerError, "ONNX Runtime failed"):
            if self._graphs and not slot.outputs:
                self._find_outputs(slot)
            self._start.record(self._stream)
            self.session.run_with_iobinding(slot.binding, slot.options)
            self._stop.record(self._stream)
            self._stream.synchronize()
        self._in_flight, self._timed = False, True

    def fetch(self) -> dict[str, np.ndarray]:
        """Copy the outputs back."""
        slot, copies = self._bound(), {}
        with raised_as(RunnerError, "ONNX Runtime failed"):
            for name, value in zip(self._names, slot.binding.get_outputs(), strict=True):
                dtype, shape = _type(value.data_type()), value.shape()
                size = dtype.itemsize * math.prod(shape)
                buffer = slot.results.setdefault(name, Buffer(self._gpu))
                buffer.reserve(size)
                if size:
                    to, where = buffer.host_address, value.data_ptr()
                    self._gpu.call("cuMemcpyDtoHAsync_v2", to, where, size, self._stream.handle)
                copies[name] = (buffer, shape, dtype, value.data_type())
            self._stream.synchronize()
        return {
            name: _plain(buffer.array(shape, dtype), kind)
            for name, (buffer, shape, dtype, kind) in copies.items()
        }

    def device_ms(self) -> float | None:
        """Milliseconds between the events around the last call; None before the first."""
        return self._stop.since_ms(self._start) if self._timed else None

    def _slot_of(self, arrays: dict[str, np.ndarray]) -> _Slot:
        """Where these go: with CUDA graphs a slot for each shape, else the one that is bound anew."""
        shapes = tuple(array.shape for array in arrays.values())
        key = shapes if self._graphs else ()
        if key not in self._slots:
            self._slots[key] = self._new_slot()
        slot = self._slots[key]
        if slot.shapes != shapes:
            for name, array in arrays.items():
                buffer = slot.inputs.setdefault(name, Buffer(self._gpu))
                buffer.reserve(array.nbytes)
                place = ("cuda", self._gpu.device.index)
                slot.binding.bind_input(name, *place, array.dtype, array.shape, buffer.address)
            slot.shapes = shapes
        return slot

    def _new_slot(self) -> _Slot:
        graph = str(len(self._slots) + 1) if self._graphs else None
        slot = _Slot(self.session.io_binding(), _run_options(graph))
        self._bind_outputs(slot)
        return slot

    def _bind_outputs(self, slot: _Slot) -> None:
        """Let ONNX Runtime allocate the outputs of the next run: else it wants the last run's sizes."""
        for name in self._names:
            slot.binding.bind_output(name, "cuda", self._gpu.device.index)

    def _find_outputs(self, slot: _Slot) -> None:
        """Run once without recording, then bind outputs to memory that stays."""
        self.session.run_with_iobinding(slot.binding, _run_options("-1"))
        self._stream.synchronize()
        device = self._gpu.device.index
        for name, value in zip(self._names, slot.binding.get_outputs(), strict=True):
            kind, shape = _type(value.data_type()), value.shape()
            buffer = slot.outputs[name] = Buffer(self._gpu)
            buffer.reserve(kind.itemsize * math.prod(shape))
            slot.binding.bind_output(name, "cuda", device, value.element_type(), shape, buffer.address)

    def _bound(self) -> _Slot:
        if self._slot is None:
            raise RunnerError("nothing is bound", hint="call bind first")
        return self._slot


@dataclass
class _Slot:
    """What belongs to one shape of inputs."""

    binding: Any
    options: Any
    shapes: tuple[tuple[int, ...], ...] = ()
    inputs: dict[str, Buffer] = field(default_factory=dict)
    outputs: dict[str, Buffer] = field(default_factory=dict)
    results: dict[str, Buffer] = field(default_factory=dict)


def _run_options(graph: str | None) -> RunOptions:
    """`graph` is the number under which a CUDA graph is kept; -1: none is recorded."""
    import onnxruntime

    options = onnxruntime.RunOptions()
    # The events enclose the computing alone; who waits for the stream afterwards is `execute`.
    options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    if graph is not None:
        options.add_run_config_entry("gpu_graph_id", graph)
    return options


def _type(kind: str) -> np.dtype[Any]:
    """NumPy's type for `tensor(float)`; of bfloat16, which it does not know, one as wide."""
    import numpy as np

    name = kind.removeprefix("tensor(").removesuffix(")")
    return np.dtype({"float": "float32", "double": "float64", "bfloat16": "uint16"}.get(name, name))


def _plain(array: np.ndarray, kind: str) -> np.ndarray:
    """A copy that stays; bfloat16 becomes float32, whose upper half it is."""
    if kind != "tensor(bfloat16)":
        return array.copy()
    return (array.astype("uint32") << 16).view("float32")


class OnnxruntimeCalls:
    """Calls on the CPU through `session.run`, as a client would make them.

    The session reads the bound arrays where they lie and hands out arrays of its own: on two cores
    of an EPYC a network of 4 µs takes 5 µs with I/O binding, which binds anew for every input.
    """

    __slots__ = ("_feed", "_halves", "_names", "_outputs", "session")

    def __init__(self, session: InferenceSession, names: Sequence[str], halves: frozenset[str]) -> None:
        self.session, self._names, self._halves = session, list(names), halves
        self._feed: dict[str, np.ndarray] = {}
        self._outputs: Sequence[np.ndarray] = ()

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        """Take the arrays; those whose input a pass made half as wide are cast."""
        self._feed = {**feed, **as_halves(feed, self._halves)} if self._halves else feed

    def execute(self) -> None:
        """Compute. Raises `RunnerError` with what ONNX Runtime says."""
        try:
            self._outputs = self.session.run(self._names, self._feed)
        except Exception as error:
            raise RunnerError(f"ONNX Runtime failed: {first_line(error)}") from error

    def fetch(self) -> dict[str, np.ndarray]:
        """The outputs by name, once: none is kept, so that memory is used again as in a plain loop."""
        outputs, self._outputs = self._outputs, ()
        return dict(zip(self._names, outputs, strict=True))


def as_halves(feed: dict[str, np.ndarray], halves: frozenset[str]) -> dict[str, np.ndarray]:
    """The inputs that a pass has made float16: what a client would send."""
    return {name: feed[name].astype("float16") for name in halves if name in feed}
