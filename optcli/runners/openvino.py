"""OpenVINO."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, cast

from pydantic import Field, PrivateAttr

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import MissingError, RunnerError
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import openvino as openvino_format
from optcli.runners import reads_in_place
from optcli.runners._calls import CallsRunner
from optcli.runners._shapes import (
    BATCH_SIZES,
    SHAPES,
    Shapes,
    StaticForms,
    described,
    observed,
    sizes_of,
    whole,
)
from optcli.settings import TensorSpec

if TYPE_CHECKING:
    import numpy as np
    from openvino import CompiledModel, Core, Model, Output


class OpenvinoCalls:
    """Calls of one compiled model: small inputs are copied into memory that the request keeps."""

    __slots__ = ("_buffers", "_halves", "_held", "_request", "compiled", "names")

    def __init__(
        self, compiled: CompiledModel, outputs: Sequence[str], halves: Collection[str]
    ) -> None:
        self.compiled = compiled
        self._request = compiled.create_infer_request()
        self.names, self._halves = tuple(outputs), frozenset(halves)
        self._buffers: dict[str, np.ndarray] = {}
        self._held: dict[str, np.ndarray] = {}

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        """Take the arrays, which must stay as they are until the next; some are cast.

        Those are cast whose input a pass made half as wide.
        """
        import numpy as np

        for name, array in feed.items():
            # What a pass has made of the inputs is what a client would send.
            dtype = np.dtype(np.float16) if name in self._halves else array.dtype
            if array.dtype == dtype and reads_in_place(array):
                self._take(name, array)
                self._held[name] = array
                self._buffers.pop(name, None)
                continue
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != array.shape or buffer.dtype != dtype:
                buffer = self._buffers[name] = np.empty(array.shape, dtype)
                self._take(name, buffer)
            np.copyto(buffer, array, casting="same_kind")

    def execute(self) -> None:
        """Compute. Raises `RunnerError` with what OpenVINO says."""
        try:
            self._request.infer()
        except RuntimeError as error:
            raise RunnerError(f"OpenVINO failed: {openvino_format.reason(error)}") from error

    def fetch(self) -> dict[str, np.ndarray]:
        """Copies of the outputs, by name."""
        request = self._request
        return {
            name: request.get_output_tensor(index).data.copy() for index, name in enumerate(self.names)
        }

    def layers(self) -> Sequence[Any]:
        """What OpenVINO counted of each layer, where it was compiled with `PERF_COUNT`."""
        counts: Sequence[Any] = self._request.get_profiling_info()
        return counts

    def _take(self, name: str, array: np.ndarray) -> None:
        """Let the request read an array where it lies."""
        import openvino

        try:
            self._request.set_tensor(name, openvino.Tensor(array, shared_memory=True))
        except RuntimeError as error:
            raise RunnerError(
                f"OpenVINO refuses the input {name!r}: {openvino_format.reason(error)}"
            ) from error


_SHORT = {"f32": "fp32", "float32": "fp32", "f16": "fp16", "float16": "fp16"}

_SHORT |= {"bf16": "bf16", "bfloat16": "bf16"}

_DEVICE = r"(CPU|NPU|GPU(\.\d+)?)"


class OpenvinoRunner(CallsRunner):
    """Runs OpenVINO and ONNX models in OpenVINO, on the CPU or on another device that it knows.

    A device that is not there is refused, with those that are. The devices that compute are read back,
    also of `AUTO`. By default it computes in FP32, where OpenVINO itself would take bfloat16 on CPUs
    that have it. The precision and the number of threads are read back from the compiled model. With
    static shapes it is compiled for each batch size by itself.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.OPENVINO, Format.ONNX)
    needs: ClassVar[Needs] = Needs(("openvino",))

    device: str = Field(
        "CPU",
        pattern=rf"^({_DEVICE}|AUTO(:{_DEVICE}(,{_DEVICE})*)?)$",
        examples=["CPU", "GPU", "GPU.1", "NPU", "AUTO", "AUTO:GPU,CPU"],
        description="`CPU`, `GPU`, `GPU.1`, `NPU`, or `AUTO:GPU,CPU`: the first that takes the model; "
        "`threads`, `streams` and `pin_threads` are for the CPU",
    )
    precision: Literal["f32", "bf16", "f16"] = Field(
        "f32", description="what floating-point layers are computed in"
    )
    hint: Literal["latency", "throughput"] = Field(
        "latency", description="what OpenVINO should be good at"
    )
    streams: int = Field(1, ge=1, description="requests that it may work on at once")
    pin_threads: bool = Field(
        True,
        description="keep each thread on one core; false where several processes share the cores,"
        " which would all take the first ones",
    )

    shapes: Shapes | None = SHAPES
    batch_sizes: tuple[Annotated[int, Field(ge=1)], ...] | None = BATCH_SIZES

    _quantized: str | None = PrivateAttr(None)
    _device_name: str = PrivateAttr("")

    def gains_by_static_shapes(self, artifact: Artifact) -> bool:
        # It takes other kernels, and other layouts of memory, where it knows the size.
        return True

    def session(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": self.precision,
            "PERFORMANCE_HINT": self.hint.upper(),
            # Compiled models are never kept on disk: a later load would be measured too fast.
            "CACHE_DIR": "",
        }
        if "CPU" in self.device or self.device == "AUTO":
            settings["INFERENCE_NUM_THREADS"] = self.thread_count()
        if self.device != "CPU":
            return settings
        settings |= {
            "NUM_STREAMS": self.streams,
            "ENABLE_CPU_PINNING": self.pin_threads,
        }
        if self.threads is not None:
            # Left alone it takes one thread per physical core, however many were asked for.
            settings["ENABLE_HYPER_THREADING"] = True
        return settings

    def beside_others(self) -> dict[str, Any]:
        return {"pin_threads": False}

    def load(self, artifact: Artifact) -> None:
        core = openvino_format.core()
        self._require_devices(core)
        onnx = artifact.format == Format.ONNX
        path = artifact.path / (onnx_format.FILE if onnx else openvino_format.FILE)
        try:
            model = core.read_model(str(path))
            self._loaded = self._compiled(core, model)
        except RuntimeError as error:
            reason = openvino_format.reason(error)
            raise RunnerError(
                f"OpenVINO cannot load the model: {reason}",
                place=str(path),
                hint=openvino_format.unknown_operators_hint(error)
                or ("try it in ONNX Runtime: `runner: onnxruntime`" if onnx else "build it again"),
            ) from error
        self._quantized = openvino_format.precision(model)
        self._require_precision()

    def effective(self) -> dict[str, Any]:
        import openvino

        compiled = self._usual.compiled
        settings = {
            "precision": self._quantized or self._precision(),
            "float_precision": self._precision(),
            "provider": ",".join(self._executing(compiled)),
            **self._of_cpu(compiled),
            **({"device": self._device_name} if self._device_name else {}),
            "hint": str(compiled.get_property("PERFORMANCE_HINT")).lower(),
            "version": openvino.get_version(),
        }
        return {**settings, **described(self._calls)}

    def observed(self) -> dict[str, Any]:
        return observed(self._calls)

    def without_batch(self) -> frozenset[str]:
        calls = self._usual
        inputs = [openvino_format.sizes(port) or () for port in calls.compiled.inputs]
        outputs = zip(calls.names, calls.compiled.outputs, strict=True)
        return whole(inputs, {name: openvino_format.sizes(port) for name, port in outputs})

    def counters(self) -> list[dict[str, Any]]:
        """OpenVINO's counters of each layer that ran, in order; for a model opened for profiling only.

        `time_us` is the mean over all calls since the model was compiled, in whole microseconds. With
        static shapes, layers are those of the batch size that was computed last.
        """
        return [
            {
                "name": layer.node_name,
                "type": layer.node_type,
                "kernel": layer.exec_type,
                "time_us": round(layer.real_time.total_seconds() * 1e6),
            }
            for layer in self._usual.layers()
            if layer.status == layer.EXECUTED
        ]

    @property
    def _usual(self) -> OpenvinoCalls:
        """The form that computed last, of which there may be several."""
        calls = self._calls
        return cast(OpenvinoCalls, calls.current if isinstance(calls, StaticForms) else calls)

    def _compiled(self, core: Core, model: Model) -> OpenvinoCalls | StaticForms:
        import openvino

        names = openvino_format.input_names(model)
        outputs = openvino_format.output_names(model)
        halves = {
            name
            for name, port in zip(names, model.inputs, strict=True)
            if port.get_element_type().get_type_name() == "f16"
        }

        def form(size: int | None) -> OpenvinoCalls:
            shaped = model
            if size is not None:
                shaped = model.clone()
                shaped.reshape(
                    {spec.name: openvino.PartialShape(_with_batch(spec, size)) for spec in self.inputs}
                )
            return OpenvinoCalls(
                core.compile_model(shaped, self.device, self._configuration()), outputs, halves
            )

        sizes = sizes_of(self.batch_sizes, self.inputs) if self.shapes == "static" else ()
        ports = dict(zip(names, model.inputs, strict=True))
        varying = [spec.name for spec in self.inputs if spec.batch_symbol is not None]
        if not sizes or not all(_takes_any_batch(ports[name]) for name in varying if name in ports):
            return form(None)
        shapes = [port.get_partial_shape() for port in model.outputs]
        # An output whose first size is open has one row for each sample.
        can_pad = all(s.rank.is_static and len(s) > 0 and s[0].is_dynamic for s in shapes)
        return StaticForms(form, sizes, self.inputs, can_pad=can_pad)

    def _configuration(self) -> dict[str, Any]:
        return {**self.session(), **({} if self._profile is None else {"PERF_COUNT": True})}

    def _require_devices(self, core: Core) -> None:
        """Raise `MissingError` where OpenVINO does not see a device that the option names."""
        present = list(core.available_devices)
        wanted = [each for each in self.device.partition(":")[2].split(",") if each]
        for device in wanted or [self.device]:
            # A number is left out where there is one such device alone.
            names = {*present, *(each.partition(".")[0] for each in present), "AUTO"}
            if device not in names:
                raise MissingError(
                    f"OpenVINO sees no device {device} here, only {', '.join(present)}",
                    hint="`optcli doctor` lists the devices; GPUs and NPUs need Intel's driver",
                )
        if self.device != "CPU":
            listed = wanted if wanted else [self.device]
            named = [each for each in listed if each != "AUTO"] or present
            full = (str(core.get_property(each, "FULL_DEVICE_NAME")) for each in named)
            self._device_name = ", ".join(full)

    def _of_cpu(self, compiled: CompiledModel) -> dict[str, Any]:
        """Threads and streams, which only the CPU has."""
        if "CPU" not in self._executing(compiled):
            return {"threads": self.thread_count()}
        names = {"threads": "INFERENCE_NUM_THREADS", "streams": "NUM_STREAMS"}
        return {name: int(self._read(compiled, key)) for name, key in names.items()}

    def _executing(self, compiled: CompiledModel) -> list[str]:
        """The devices that compute; AUTO writes the one that helps until another is ready as (CPU)."""
        return [str(each).strip("()") for each in compiled.get_property("EXECUTION_DEVICES")]

    def _read(self, compiled: CompiledModel, name: str) -> Any:
        """A property of the compiled model; AUTO has few of its own, the devices behind it have."""
        if not self.device.startswith("AUTO"):
            return compiled.get_property(name)
        return compiled.get_property("DEVICE_PROPERTIES")[self._executing(compiled)[0]][name]

    def _precision(self) -> str:
        element = self._read(self._usual.compiled, "INFERENCE_PRECISION_HINT").get_type_name()
        return _SHORT.get(element, str(element))

    def _require_precision(self) -> None:
        expected, actual = _SHORT[self.precision], self._precision()
        if actual != expected:
            self.close()
            raise RunnerError(
                f"OpenVINO computes in {actual} on this CPU, wanted {expected}",
                hint="set `precision: f32` under `runner:`",
            )


def _takes_any_batch(port: Output) -> bool:
    """Whether a model leaves the batch size of an input open."""
    shape = port.get_partial_shape()
    return bool(shape.rank.is_dynamic or (len(shape) > 0 and shape[0].is_dynamic))


def _with_batch(spec: TensorSpec, size: int) -> list[int]:
    """The shape with the batch size, other sizes that vary left open."""
    return [
        size if each == spec.batch_symbol else -1 if isinstance(each, str) else each
        for each in spec.shape
    ]
