"""Triton's backends: which one serves an artifact, and how the runner's options are said there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from optcli.artifact import Format
from optcli.errors import InputError
from optcli.models.formats import onnx, openvino, tensorrt, torchscript
from optcli.models.formats.onnxruntime_providers import PROVIDERS
from optcli.runners import Runner

# Triton's names for ONNX Runtime's levels of optimization; `all` is what it does by itself.
_LEVELS = {"basic": -1, "extended": 1, "disabled": 2}
# Its names for options of the TensorRT provider that it calls otherwise, and those that it lacks.
_RENAMED = {
    "trt_max_workspace_size": "max_workspace_size_bytes",
    "trt_int8_calibration_table_name": "int8_calibration_table_name",
    "trt_int8_use_native_calibration_table": "int8_use_native_calibration_table",
}
_PRECISIONS = {"trt_fp16_enable": "FP16", "trt_bf16_enable": "BF16", "trt_int8_enable": "INT8"}
_NOT_IN_TRITON = {
    "trt_engine_hw_compatible",
    "trt_load_user_initializer",
    "trt_op_types_to_exclude",
    "trt_preview_features",
    "trt_weight_stripped_engine_enable",
}
# What every runner's options are said by elsewhere: the measured threads, a note on shapes.
_EVERYWHERE = {"threads", "shapes", "batch_sizes"}
_INSTEAD = {
    Format.TORCH: "deploy a variant with export_onnx or torchscript",
    Format.EXPORTED: "deploy a variant with export_onnx or torchscript",
    Format.AOTI: "deploy a variant with export_onnx or torchscript",
    Format.ORT: "deploy the variant without optimize_onnx: Triton optimizes ONNX when it loads it",
    Format.TENSORRT_RTX: "deploy a variant with tensorrt_engine, or with export_onnx",
}


@dataclass(frozen=True)
class Backend:
    """How Triton runs an artifact.

    `file` is the model's file in the version's folder. `device` is the number of the GPU, None: the
    CPU. `parameters` are those of the backend, `level` ONNX Runtime's level of optimization,
    `accelerators` its providers with their options. `threads` are those of one instance on the CPU,
    None: not known. `profile` is the engine's, `graphs` says that calls are launched as CUDA graphs.
    `environment` are variables that the server must have. `pads` says that every call takes the
    largest batch, however few requests it has. `notes` say which options have no counterpart.
    """

    file: str
    platform: str = ""
    backend: str = ""
    device: int | None = None
    threads: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    level: int | None = None
    accelerators: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    profile: int = 0
    graphs: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    pads: bool = False
    notes: tuple[str, ...] = ()

    @property
    def gpu(self) -> bool:
        """Whether it computes on a GPU."""
        return self.device is not None


# A backend, and the options of the runner that it was told.
_Translated = tuple[Backend, set[str]]


def backend_of(
    format: Format, runner_name: str, runner: Runner, effective: Mapping[str, Any], place: str
) -> Backend:
    """The backend for an artifact. `effective` are the runner's settings as the report has them.

    Raises `InputError` for a format or runner that Triton does not have, and for options of the runner
    that it cannot be told: it would run something else than what was measured.
    """
    find = _BACKENDS.get((format, runner_name))
    if find is None:
        raise InputError(
            f"Triton has no backend for the format {format} in the runner {runner_name}",
            place=place,
            hint=_INSTEAD.get(format, "deploy a variant with export_onnx"),
        )
    backend, translated = find(runner, effective)
    untold = sorted(runner.changed().keys() - translated - _EVERYWHERE)
    if untold:
        raise InputError(
            f"Triton cannot be told these options of the runner {runner_name}: {', '.join(untold)}",
            place=place,
            hint="measure and deploy a variant without them",
        )
    return backend


def _threads(effective: Mapping[str, Any]) -> int | None:
    threads = effective.get("threads")
    return threads if isinstance(threads, int) and threads > 0 else None


def _onnxruntime(runner: Any, effective: Mapping[str, Any]) -> _Translated:
    provider, options = PROVIDERS[runner.provider], dict(runner.session()["provider_options"])
    translated = {"provider", "optimization_level", "tf32"}
    parameters: dict[str, str] = {}
    environment: dict[str, str] = {}
    device, threads = None, _threads(effective)
    if provider.device == "cuda":
        device, threads = int(options.pop("device_id", 0)), None
        environment = _exact(tf32=runner.tf32)
    if runner.provider == "cpu" and "use_arena" in options:
        parameters["enable_mem_arena"] = options.pop("use_arena")
    if runner.provider == "cuda":
        # Triton's own default is the other one. CUDA graphs want fixed addresses, which it has not.
        accelerators = {"cuda": {"use_tf32": str(int(runner.tf32)), **options}}
        options = {"enable_cuda_graph": "1"} if "enable_cuda_graph" in options else {}
    elif runner.provider == "tensorrt":
        graphs = {"trt_cuda_graph_enable": "1"} if runner.cuda_graphs else {}
        accelerators = {"tensorrt": graphs | _for_tensorrt(options)}
        translated.add("cuda_graphs")
    elif runner.provider == "openvino":
        accelerators = {"openvino": {}}
    else:
        accelerators = {}
        translated -= {"provider"}
    if threads:
        parameters["intra_op_thread_count"] = str(threads)
    backend = Backend(
        file=onnx.FILE,
        platform="onnxruntime_onnx",
        device=device,
        threads=threads,
        parameters=parameters,
        level=_LEVELS.get(runner.optimization_level),
        accelerators=accelerators,
        environment=environment,
    )
    return backend, translated if options else translated | {"provider_options"}


def _for_tensorrt(options: dict[str, str]) -> dict[str, str]:
    """Options of the TensorRT provider as Triton calls them; those that it lacks stay in `options`."""
    on = [key for key in _PRECISIONS if options.get(key) == "1"]
    extra = {"precision_mode": _PRECISIONS[on[0]]} if len(on) == 1 else {}
    for key in [*options]:
        if key in _PRECISIONS:
            if len(on) < 2:
                options.pop(key)
        elif key not in _NOT_IN_TRITON:
            extra[_RENAMED.get(key, key)] = options.pop(key)
    return extra


def _exact(*, tf32: bool) -> dict[str, str]:
    """NVIDIA's libraries round the factors of FP32 products unless this variable is set."""
    return {} if tf32 else {"NVIDIA_TF32_OVERRIDE": "0"}


def _openvino(runner: Any, effective: Mapping[str, Any]) -> _Translated:
    threads = _threads(effective)
    session = runner.session()
    # Streams are for the CPU; what was measured on another device is refused, by its name.
    names = ("PERFORMANCE_HINT", "NUM_STREAMS")
    parameters = {name: str(session[name]) for name in names if name in session}
    notes = []
    if threads:
        parameters["INFERENCE_NUM_THREADS"] = str(threads)
        notes.append(
            "Triton's OpenVINO backend takes one thread for each physical core at most, however many"
            " are asked for"
        )
    if runner.precision == "bf16":
        parameters["HINT_BF16"] = "YES"
    else:
        notes.append(
            f"Triton's OpenVINO backend cannot be told to compute in {runner.precision}: on"
            " processors with bfloat16, OpenVINO takes that by itself"
        )
    # It compiles the model for the largest batch alone.
    parameters["ENABLE_BATCH_PADDING"] = "YES"
    backend = Backend(
        file=openvino.FILE,
        backend="openvino",
        threads=threads,
        parameters=parameters,
        pads=True,
        notes=tuple(notes),
    )
    translated = {"hint", "streams"}
    return backend, translated | ({"precision"} if runner.precision == "bf16" else set())


def _openvino_of_onnx(runner: Any, effective: Mapping[str, Any]) -> _Translated:
    backend, translated = _openvino(runner, effective)
    return replace(backend, file=onnx.FILE), translated


def _torchscript(runner: Any, effective: Mapping[str, Any]) -> _Translated:
    place = str(effective.get("provider", runner.device))
    device = int(place.partition(":")[2] or 0) if place.startswith("cuda") else None
    threads = _threads(effective) if device is None else None
    notes = []
    if threads:
        notes.append("Triton gives every LibTorch model the number of threads of the first one")
    if effective.get("optimize_for_inference"):
        notes.append(
            "the variant was measured with optimize_for_inference, which Triton's LibTorch backend"
            " does not do when it loads a model"
        )
    counts = {"OMP_NUM_THREADS", "MKL_NUM_THREADS"}
    waiting = {name: value for name, value in runner.environment().items() if name not in counts}
    backend = Backend(
        file=torchscript.FILE,
        platform="pytorch_libtorch",
        device=device,
        parameters={
            "INFERENCE_MODE": "true",
            **({"INTRA_OP_THREAD_COUNT": str(threads)} if threads else {}),
        },
        threads=threads,
        environment=waiting if device is None else _exact(tf32=False),
        notes=tuple(notes),
    )
    return backend, {"device", "tf32"} if device is None else {"device"}


def _tensorrt(runner: Any, effective: Mapping[str, Any]) -> _Translated:
    version, profile = effective.get("version"), effective.get("profile")
    translated = (
        f"the engine was measured with TensorRT {version}" if version else "the engine is for one GPU"
    )
    note = f"{translated}: take a release of Triton with the same version, on the same kind of GPU"
    backend = Backend(
        file=tensorrt.FILE,
        platform="tensorrt_plan",
        device=runner.device,
        profile=profile if isinstance(profile, int) else runner.profile or 0,
        graphs=effective.get("cuda_graphs") == "on",
        notes=(note,),
    )
    # The interpreter is that of this machine: Triton has TensorRT itself.
    return backend, {"cuda_graphs", "device", "profile", "python"}


_BACKENDS: dict[tuple[Format, str], Callable[[Any, Mapping[str, Any]], _Translated]] = {
    (Format.ONNX, "onnxruntime"): _onnxruntime,
    (Format.ONNX, "openvino"): _openvino_of_onnx,
    (Format.OPENVINO, "openvino"): _openvino,
    (Format.TORCHSCRIPT, "torchscript"): _torchscript,
    (Format.TENSORRT, "tensorrt"): _tensorrt,
}
