"""OpenVINO."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import RunnerError
from optcli.formats import onnx as onnx_format
from optcli.formats import openvino as openvino_format
from optcli.runners import Runner

if TYPE_CHECKING:
    import numpy as np
    from openvino import CompiledModel, InferRequest

_SHORT = {"f32": "fp32", "float32": "fp32", "f16": "fp16", "float16": "fp16"}
_SHORT |= {"bf16": "bf16", "bfloat16": "bf16"}


class OpenvinoRunner(Runner):
    """Runs OpenVINO and ONNX models in OpenVINO, on the CPU.

    Where nothing else is said it computes in FP32: left alone, OpenVINO takes bfloat16 on CPUs that
    have it. The precision and the number of threads are read back from the compiled model.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.OPENVINO, Format.ONNX)
    needs: ClassVar[Needs] = Needs(("openvino",))

    precision: Literal["f32", "bf16", "f16"] = Field(
        "f32", description="what floating-point layers are computed in"
    )
    hint: Literal["latency", "throughput"] = Field(
        "latency", description="what OpenVINO should be good at"
    )
    streams: int = Field(1, ge=1, description="requests that it may work on at once")

    _compiled: CompiledModel | None = PrivateAttr(None)
    _request: InferRequest | None = PrivateAttr(None)
    _outputs: tuple[str, ...] = PrivateAttr(())
    _halves: set[str] = PrivateAttr(default_factory=set)
    _quantized: str | None = PrivateAttr(None)
    _buffers: dict[str, np.ndarray] = PrivateAttr(default_factory=dict)

    def load(self, artifact: Artifact) -> None:
        core = openvino_format.core()
        onnx = artifact.format == Format.ONNX
        path = artifact.path / (onnx_format.FILE if onnx else openvino_format.FILE)
        try:
            model = core.read_model(str(path))
            self._compiled = core.compile_model(model, "CPU", self._configuration())
        except RuntimeError as error:
            reason = openvino_format.reason(error)
            raise RunnerError(
                f"OpenVINO cannot load the model: {reason}",
                place=str(path),
                hint=openvino_format.unknown_operators_hint(error)
                or ("try it in ONNX Runtime: `runner: onnxruntime`" if onnx else "build it again"),
            ) from error
        self._quantized = openvino_format.precision(model)
        self._outputs = openvino_format.output_names(model)
        self._halves = {
            name
            for name, port in zip(openvino_format.input_names(model), model.inputs, strict=True)
            if port.get_element_type().get_type_name() == "f16"
        }
        self._request = self._compiled.create_infer_request()
        self._require_precision()

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        import numpy as np
        import openvino

        request = self._opened()
        for name, array in feed.items():
            # What a pass has made of the inputs is what a client would send.
            dtype = np.dtype(np.float16) if name in self._halves else array.dtype
            buffer = self._buffers.get(name)
            if buffer is None or buffer.shape != array.shape or buffer.dtype != dtype:
                buffer = self._buffers[name] = np.empty(array.shape, dtype)
                try:
                    request.set_tensor(name, openvino.Tensor(buffer, shared_memory=True))
                except RuntimeError as error:
                    raise RunnerError(
                        f"OpenVINO refuses the input {name!r}: {openvino_format.reason(error)}"
                    ) from error
            np.copyto(buffer, array, casting="same_kind")

    def execute(self) -> None:
        try:
            self._opened().infer()
        except RuntimeError as error:
            raise RunnerError(f"OpenVINO failed: {openvino_format.reason(error)}") from error

    def fetch(self) -> dict[str, np.ndarray]:
        request = self._opened()
        return {
            name: request.get_output_tensor(index).data.copy()
            for index, name in enumerate(self._outputs)
        }

    def effective(self) -> dict[str, Any]:
        import openvino

        assert self._compiled is not None
        return {
            "precision": self._quantized or self._precision(),
            "float_precision": self._precision(),
            "provider": ",".join(self._compiled.get_property("EXECUTION_DEVICES")),
            "threads": int(self._compiled.get_property("INFERENCE_NUM_THREADS")),
            "streams": int(self._compiled.get_property("NUM_STREAMS")),
            "hint": str(self._compiled.get_property("PERFORMANCE_HINT")).lower(),
            "version": openvino.get_version(),
        }

    def counters(self) -> list[dict[str, Any]]:
        """What OpenVINO counted of each layer that ran, in their order; opened for profiling only.

        `time_us` is the mean over all calls since the model was compiled, in whole microseconds.
        """
        return [
            {
                "name": layer.node_name,
                "type": layer.node_type,
                "kernel": layer.exec_type,
                "time_us": round(layer.real_time.total_seconds() * 1e6),
            }
            for layer in self._opened().get_profiling_info()
            if layer.status == layer.EXECUTED
        ]

    def close(self) -> None:
        self._request = None
        self._compiled = None
        self._buffers.clear()

    def _configuration(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": self.precision,
            "INFERENCE_NUM_THREADS": self.thread_count(),
            "PERFORMANCE_HINT": self.hint.upper(),
            "NUM_STREAMS": self.streams,
            # Compiled models are never kept on disk: a later load would be measured too fast.
            "CACHE_DIR": "",
        }
        if self.threads is not None:
            # Left alone it takes one thread per physical core, however many were asked for.
            settings["ENABLE_HYPER_THREADING"] = True
        if self._profile is not None:
            settings["PERF_COUNT"] = True
        return settings

    def _precision(self) -> str:
        assert self._compiled is not None
        found = self._compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        return _SHORT.get(found, str(found))

    def _require_precision(self) -> None:
        wanted, found = _SHORT[self.precision], self._precision()
        if found != wanted:
            self.close()
            raise RunnerError(
                f"OpenVINO computes in {found} on this CPU, wanted {wanted}",
                hint="set `precision: f32` under `runner:`",
            )

    def _opened(self) -> InferRequest:
        if self._request is None:
            raise RunnerError("the runner holds no model", hint="open it first")
        return self._request
