"""ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import Field, PrivateAttr, model_validator

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import MissingError, OptcliError, RunnerError, first_line
from optcli.models.engines import EngineError
from optcli.models.engines.driver import Gpu, Stream
from optcli.models.formats import onnx as onnx_format
from optcli.models.formats import ort as ort_format
from optcli.models.formats.onnxruntime_providers import PROVIDERS, Name
from optcli.models.onnx_graphs.protobuf import input_shapes, precision_of
from optcli.results import flags
from optcli.runners._calls import CallsRunner
from optcli.runners._onnxruntime import (
    OnnxruntimeCalls,
    OnnxruntimeCudaCalls,
    Value,
    assigned,
    check_options,
    device_of,
    on_the_cpu,
    opened,
    words,
)
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
from optcli.settings.references import OfOneMachine

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, SessionOptions

_LEVELS = {
    "disabled": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
}

_NO_BF16 = "it has no bfloat16 on the CPU: set `runner: openvino`, or `provider: cuda`"
_NO_FP64 = "it does not have every layer in float64: convert the network and its inputs by `.float()`"


class OnnxruntimeRunner(CallsRunner):
    """Runs ONNX models, and those that it optimized before, in ONNX Runtime.

    On the CPU it is called as a client would call it, with NumPy arrays; on a GPU inputs and outputs
    are bound to memory there and copied through pinned memory. If the session
    takes another provider than asked for, the variant fails.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.ONNX, Format.ORT)
    needs: ClassVar[Needs] = Needs(("onnx", "onnxruntime"))

    provider: Name = Field(
        "cpu",
        description="what computes; `tensorrt` wants TensorRT 10's libraries, and the names behind it "
        "plug-ins with packages of their own, or builds of ONNX Runtime that have them",
    )
    # Among them are libraries to load and folders to write.
    provider_options: Annotated[dict[str, Value], OfOneMachine()] = Field(
        default_factory=dict, description="options of the provider, by its own names for them"
    )
    cuda_graphs: bool = Field(
        False, description="on a GPU: record each shape of inputs once, then launch it as a whole"
    )
    tf32: bool = Field(
        False, description="on a GPU: let the factors of FP32 products be rounded to TF32"
    )
    optimization_level: Literal["disabled", "basic", "extended", "all"] = Field(
        "all", description="how far ONNX Runtime may rewrite the graph when it loads it"
    )

    shapes: Shapes | None = SHAPES
    batch_sizes: tuple[Annotated[int, Field(ge=1)], ...] | None = BATCH_SIZES

    _session: InferenceSession | None = PrivateAttr(None)
    _forms: StaticForms | None = PrivateAttr(None)
    _artifact: Artifact | None = PrivateAttr(None)
    _gpu: Gpu | None = PrivateAttr(None)
    _stream: Stream | None = PrivateAttr(None)

    @model_validator(mode="after")
    def _known(self) -> Self:
        check_options(self.provider, self.provider_options)
        if PROVIDERS[self.provider].device == "cpu" and (self.cuda_graphs or self.tf32):
            raise ValueError(f"cuda_graphs and tf32 are for GPUs: `provider: {self.provider}` is none")
        if self.shapes == "static" and PROVIDERS[self.provider].device != "cpu":
            raise ValueError(f"shapes: static is for `provider: cpu` and NPUs, found {self.provider}")
        return self

    def requires(self) -> Needs:
        provider = PROVIDERS[self.provider]
        plugin = (provider.plugin,) if provider.plugin and not provider.built_in else ()
        return Needs((*self.needs.packages, *plugin), gpu=provider.device == "cuda")

    def gains_by_static_shapes(self, artifact: Artifact) -> bool:
        # Its kernels are the same: what it saves is working out shapes at each call.
        onnx = artifact.format == Format.ONNX
        return self.provider == "cpu" and onnx and onnx_format.works_out_shapes(artifact.path)

    def environment(self) -> dict[str, str]:
        # TensorRT's provider has no option for it; CUDA's libraries read this one.
        inexact = PROVIDERS[self.provider].device == "cpu" or self.tf32
        return {**super().environment(), **({} if inexact else {"NVIDIA_TF32_OVERRIDE": "0"})}

    def session(self) -> dict[str, Any]:
        return {
            "graph_optimization_level": _LEVELS[self.optimization_level],
            "attributes": {
                "intra_op_num_threads": self.thread_count(),
                "inter_op_num_threads": 1,
                "log_severity_level": 3,
            },
            # Threads may spin within a call, as they do by default, but not on after it: that would
            # steal the cores of whatever is measured in turn.
            "entries": {"session.force_spinning_stop": "1"},
            "provider_options": words(self.provider_options),
        }

    def load(self, artifact: Artifact) -> None:
        ahead = artifact.format == Format.ORT
        path = artifact.path / (ort_format.FILE if ahead else onnx_format.FILE)
        try:
            self._open(os.fspath(path), artifact)
        except OptcliError:
            self.close()
            raise
        except Exception as error:
            self.close()
            hints = {"fp64": _NO_FP64, **({"bf16": _NO_BF16} if self.provider == "cpu" else {})}
            raise RunnerError(
                f"ONNX Runtime cannot load the model: {first_line(error)}",
                place=str(path),
                hint=hints.get(artifact.precision or "", ""),
            ) from error
        self._artifact = artifact

    def _open(self, path: str, artifact: Artifact) -> None:
        """Open the session; with static shapes one for each batch size."""
        static = self.shapes == "static"
        if static and artifact.format == Format.ORT:
            raise RunnerError(
                "shapes: static is for ONNX files, found one in ONNX Runtime's own format",
                hint="leave `shapes` out: its graph was optimized when it was written",
            )
        sizes = sizes_of(self.batch_sizes, self.inputs) if static else ()
        names, can_pad = _batch_names(artifact, self.inputs) if sizes else (frozenset(), False)
        if not names:
            self._session = opened(path, self._settings(), self.provider, self._options())
            return

        def form(size: int | None) -> OnnxruntimeCalls:
            settings = self._settings("any" if size is None else str(size))
            for name in names if size is not None else ():
                settings.add_free_dimension_override_by_name(name, size)
            self._session = opened(path, settings, self.provider, self._options())
            return _host_calls(self._session)

        self._forms = StaticForms(form, sizes, self.inputs, can_pad=can_pad)

    def _settings(self, form: str = "") -> SessionOptions:
        import onnxruntime

        options, session = onnxruntime.SessionOptions(), self.session()
        options.graph_optimization_level = getattr(
            onnxruntime.GraphOptimizationLevel, session["graph_optimization_level"]
        )
        for name, value in session["attributes"].items():
            setattr(options, name, value)
        for name, value in session["entries"].items():
            options.add_session_config_entry(name, value)
        if self._profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = os.fspath(self._profile / f"onnxruntime{form}")
        return options

    def device_ms(self) -> float | None:
        calls = self._calls
        return calls.device_ms() if isinstance(calls, OnnxruntimeCudaCalls) else None

    def effective(self) -> dict[str, Any]:
        import onnxruntime

        session = self._opened()
        assert self._artifact is not None
        level = session.get_session_options().graph_optimization_level
        settings: dict[str, Any] = {
            "precision": self._precision(self._artifact),
            "provider": session.get_providers()[0],
            **self._on_device(session),
            "threads": session.get_session_options().intra_op_num_threads,
            "spinning": "within a call",
            "optimization_level": next(
                name
                for name, constant in _LEVELS.items()
                if getattr(onnxruntime.GraphOptimizationLevel, constant) == level
            ),
            "version": onnxruntime.__version__,
            **described(self._calls),
        }
        if self._artifact.format == Format.ORT:
            # Loading adds hardly anything to what was saved.
            saved = str(self._artifact.facts.get("optimization_level", "unknown"))
            if self.optimization_level != "all" and self.optimization_level != saved:
                flag = flags.saved_level(saved).model_dump()
                settings["flags"] = [*settings.get("flags", ()), flag]
            settings["optimization_level"] = saved
        return settings

    def observed(self) -> dict[str, Any]:
        return observed(self._calls)

    def without_batch(self) -> frozenset[str]:
        session = self._opened()
        inputs = [each.shape for each in session.get_inputs()]
        return whole(inputs, {each.name: each.shape for each in session.get_outputs()})

    def end_profile(self) -> Path:
        """The file of ONNX Runtime's own profiler, on every call since it was opened for profiling.

        With static shapes, it is that of the batch size that was computed last.
        """
        calls = self._calls.current if isinstance(self._calls, StaticForms) else self._calls
        return Path(cast(OnnxruntimeCalls | OnnxruntimeCudaCalls, calls).session.end_profiling())

    def close(self) -> None:
        self.__dict__.pop("_calls", None)
        self._session = self._forms = None
        if self._gpu is not None:
            self._gpu.close()
        self._gpu = self._stream = None

    @cached_property
    def _calls(self) -> OnnxruntimeCalls | OnnxruntimeCudaCalls | StaticForms:
        session = self._opened()
        if self._forms is not None:
            return self._forms
        if self._gpu is None or self._stream is None:
            return _host_calls(session)
        names, halves = _names(session)
        graphs = self.cuda_graphs or _is_on(self.provider_options.get(PROVIDERS[self.provider].graphs))
        return OnnxruntimeCudaCalls(session, names, halves, self._gpu, self._stream, graphs=graphs)

    def _opened(self) -> InferenceSession:
        if self._session is None:
            raise RunnerError("the runner holds no model", hint="open it first")
        return self._session

    def _options(self) -> dict[str, str]:
        """The provider's options, on a GPU with the stream that is timed. Raises `MissingError`."""
        provider = PROVIDERS[self.provider]
        requested: dict[str, str] = self.session()["provider_options"]
        if provider.device == "cpu":
            return requested
        try:
            self._gpu = Gpu(int(requested.get("device_id", 0)))
            self._stream = Stream(self._gpu)
        except EngineError as error:
            raise MissingError(
                f"the provider {self.provider} needs a GPU: {error.message}", hint=error.hint
            ) from error
        options = dict.fromkeys(provider.stream, "1")
        options["user_compute_stream"] = str(self._stream.address)
        if "use_tf32" in provider.options:
            options["use_tf32"] = str(int(self.tf32))
        if self.cuda_graphs:
            options[provider.graphs] = "1"
        return {**options, **requested}

    def _on_device(self, session: InferenceSession) -> dict[str, Any]:
        """What the report says of a provider other than the CPU's."""
        if self.provider == "cpu":
            return {}
        shares = assigned(session)
        doubts = [flag.model_dump() for flag in on_the_cpu(shares)]
        provider = PROVIDERS[self.provider]
        return {
            "provider_options": session.get_provider_options().get(provider.name)
            or words(self.provider_options),
            **({"device": device_of(provider)} if provider.plugin else {}),
            "operators": shares,
            **({"gpu": self._gpu.device.name, "cuda_graphs": self.cuda_graphs} if self._gpu else {}),
            **({"flags": doubts} if doubts else {}),
        }

    def _precision(self, artifact: Artifact) -> str:
        stored = _precision(artifact)
        if stored != "fp32" or self._gpu is None:
            return stored
        for key, precision in (("trt_fp16_enable", "fp16"), ("trt_bf16_enable", "bf16")):
            if _is_on(self.provider_options.get(key)):
                return precision
        exact = not self.tf32 and not _is_on(self.provider_options.get("use_tf32"))
        return stored if exact else "tf32"


def _host_calls(session: InferenceSession) -> OnnxruntimeCalls:
    return OnnxruntimeCalls(session, *_names(session))


def _names(session: InferenceSession) -> tuple[list[str], frozenset[str]]:
    """Its outputs, and its inputs that are half as wide as the recipe says."""
    halves = (each.name for each in session.get_inputs() if each.type == "tensor(float16)")
    return [output.name for output in session.get_outputs()], frozenset(halves)


def _batch_names(artifact: Artifact, inputs: Sequence[TensorSpec]) -> tuple[frozenset[str], bool]:
    """What the file calls the batch, and whether every output begins with it.

    No names where the file's batch does not vary. Raises `RunnerError` where it varies without a name.
    """
    model = onnx_format.outline(artifact.path)
    shapes = input_shapes(model)
    firsts = {spec.name: shapes[spec.name][0] for spec in inputs if spec.batch_symbol is not None}
    nameless = [name for name, size in firsts.items() if size is None]
    if nameless:
        raise RunnerError(
            f"the batch of the input {nameless[0]!r} has no name in the file: it cannot be fixed",
            hint="set `shapes: dynamic` under `runner:`, or export the model with named dimensions",
        )
    names = frozenset(size for size in firsts.values() if isinstance(size, str))
    outputs = [value.type.tensor_type.shape.dim for value in model.graph.output]
    return names, all(len(dims) > 0 and dims[0].dim_param in names for dims in outputs)


def _is_on(value: Value | None) -> bool:
    return str(value).lower() in ("1", "true")


def _precision(artifact: Artifact) -> str:
    if artifact.format == Format.ORT:
        return "int8" if ort_format.is_quantized(artifact.path) else artifact.precision
    return precision_of(onnx_format.outline(artifact.path))
