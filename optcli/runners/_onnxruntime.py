"""What the runner of ONNX Runtime is made of: sessions with one provider, and the steps of a call.

By itself ONNX Runtime logs that a provider does not load, and computes on the CPU: `opened` takes no
other provider in its stead. The calls are plain objects, not part of the runner's pydantic model: a
look at a private attribute of such a model takes a microsecond or two, and a small network takes fifty
in all. On a GPU: I/O binding on a stream that is ours to time, by the events of CUDA's driver; ONNX
Runtime has none of its own.
"""

from __future__ import annotations

import importlib.util
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from optcli.errors import RunnerError, did_you_mean, first_line, raised_as
from optcli.models.engines.driver import Buffer, CudaEvent
from optcli.models.formats import onnxruntime_providers
from optcli.models.formats.onnxruntime_providers import PROVIDERS, Name, Provider
from optcli.results import flags

if TYPE_CHECKING:
    import numpy as np
    from onnxruntime import InferenceSession, RunOptions, SessionOptions

    from optcli.models.engines.driver import Gpu, Stream

Value = str | int | float | bool
_CPU = "CPUExecutionProvider"
_RECORD = "session.record_ep_graph_assignment_info"


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


def check_options(name: Name, options: Mapping[str, Value]) -> None:
    """Raise `ValueError` for an option that the provider does not know, or that is optcli's to give."""
    provider = PROVIDERS[name]
    for key in options:
        if key in provider.stream:
            raise ValueError(f"provider_options: {key} is given by optcli, which times that stream")
        if key not in provider.options:
            hint = did_you_mean(key, provider.options)
            raise ValueError(f"provider_options: {name} knows no option {key!r}; {hint}")


def words(options: Mapping[str, Value]) -> dict[str, str]:
    """Options as providers read them: `1` and `0` for true and false."""
    return {
        key: str(int(value)) if isinstance(value, bool) else str(value)
        for key, value in options.items()
    }


def opened(
    path: str, settings: SessionOptions, name: Name, options: Mapping[str, str]
) -> InferenceSession:
    """A session that computes with the provider.

    Raises `RunnerError` where that does not load, or is not what computes. What ONNX Runtime itself
    raises for the model comes through.
    """
    import onnxruntime

    provider = PROVIDERS[name]
    if name == "cpu":
        providers: list[Any] = [(_CPU, dict(options))] if options else [_CPU]
        return onnxruntime.InferenceSession(path, settings, providers=providers)
    settings.add_session_config_entry(_RECORD, "1")
    preload_message = onnxruntime_providers.preload() if provider.device == "cuda" else ""
    available = provider.name in onnxruntime.get_available_providers()
    if available and not onnxruntime_providers.is_plugin(provider):
        providers = [(provider.name, dict(options)), *provider.behind]
        try:
            # Otherwise it prints the error, and tries again on the CPU.
            session = onnxruntime.InferenceSession(
                path, settings, providers=providers, enable_fallback=0
            )
        except Exception as error:
            reason = onnxruntime_providers.library_reason(provider.name)
            if not reason:
                raise
            raise _unusable(name, reason, preload_message) from error
    else:
        # One device: some plug-ins fail with several.
        settings.add_provider_for_devices(_devices(name, provider)[:1], dict(options))
        # With fallback, it would go on with the CPU in the middle of a call.
        session = onnxruntime.InferenceSession(path, settings, enable_fallback=0)
    require_used(session, name, preload_message)
    return session


def _devices(name: Name, provider: Provider) -> Sequence[Any]:
    import onnxruntime

    version = onnxruntime.__version__
    if not provider.plugin or importlib.util.find_spec(provider.plugin) is None:
        available = ", ".join(onnxruntime.get_available_providers())
        raise _unusable(name, f"ONNX Runtime {version} is built without it (it has {available})")
    if not hasattr(onnxruntime, "get_ep_devices"):
        raise _unusable(name, f"ONNX Runtime {version} takes no plug-ins")
    try:
        devices = onnxruntime_providers.plugin_devices(provider)
    except Exception as error:
        raise _unusable(name, first_line(error)) from error
    if not devices:
        there = sorted({_described(each.device) for each in onnxruntime.get_ep_devices()})
        nothing = f"the plug-in {provider.plugin} finds nothing here that it can run on"
        raise _unusable(name, f"{nothing}: ONNX Runtime sees {', '.join(there)}")
    return devices


def device_of(provider: Provider) -> str | None:
    """What a plug-in computes on, in words; None where ONNX Runtime itself has the provider."""
    if not onnxruntime_providers.is_plugin(provider):
        return None
    return _described(onnxruntime_providers.plugin_devices(provider)[0].device)


def _described(device: Any) -> str:
    return f"{device.type.name} of {device.vendor}"


def require_used(session: InferenceSession, name: Name, preload_message: str = "") -> None:
    """Raise `RunnerError` where another provider comes first, or this one is given nothing to do."""
    provider, first = PROVIDERS[name], session.get_providers()[0]
    if first != provider.name:
        reason = onnxruntime_providers.library_reason(provider.name)
        raise _unusable(
            name,
            f"ONNX Runtime fell back to {first}, wanted {provider.name}",
            reason or preload_message,
        )
    shares = assigned(session)
    if shares and not shares.get(provider.name):
        others = ", ".join(shares)
        raise RunnerError(
            f"{provider.name} takes none of the {sum(shares.values())} operators: {others} computes",
            hint="this provider does not support them, or wants numbers for all sizes: set"
            " `shapes: static`, or another `provider`",
        )


def assigned(session: InferenceSession) -> dict[str, int]:
    """How many operators each provider computes; empty where ONNX Runtime does not tell."""
    if not hasattr(session, "get_provider_graph_assignment_info"):
        return {}
    counts: Counter[str] = Counter()
    try:
        for part in session.get_provider_graph_assignment_info():
            counts[part.ep_name] += len(part.get_nodes())
    except Exception:  # it was not recorded
        return {}
    return dict(counts)


def on_the_cpu(shares: Mapping[str, int]) -> list[flags.Flag]:
    """A flag where more than a tenth of the operators are left to the CPU."""
    count, total = shares.get(_CPU, 0), sum(shares.values())
    if count * 10 <= total:
        return []
    return [flags.operators_on_cpu(count, total)]


def _unusable(name: Name, reason: str, cause: str = "") -> RunnerError:
    install = PROVIDERS[name].install
    return RunnerError(
        f"the provider {name} cannot be used: {reason}{f' ({cause})' if cause else ''}",
        hint=f"{install}; or set `provider: cpu`",
    )
