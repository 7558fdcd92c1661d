"""Triton's backends: which one serves an artifact, and how the runner's options are said there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from optcli.artifact import Format
from optcli.errors import InputError
from optcli.formats import onnx, openvino, tensorrt, torchscript
from optcli.runners import Runner

# Triton's names for ONNX Runtime's levels of optimization; `all` is what it does by itself.
_LEVELS = {"basic": -1, "extended": 1, "disabled": 2}
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

    `file` is the model's file in the version's folder. `parameters` are those of the backend, `level`
    ONNX Runtime's level of optimization, `accelerators` its other providers by device (`cpu`, `gpu`).
    `threads` are those of one instance on the CPU, None: not known.
    `pads` says that every call takes the largest batch, however few requests it has. `notes` say which
    options have no counterpart.
    """

    file: str
    platform: str = ""
    backend: str = ""
    gpu: bool = False
    threads: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    level: int | None = None
    accelerators: Mapping[str, str] = field(default_factory=dict)
    pads: bool = False
    notes: tuple[str, ...] = ()


def backend_of(
    format: Format, runner_name: str, runner: Runner, effective: Mapping[str, Any], place: str
) -> Backend:
    """The backend for an artifact. `effective` are the runner's settings as the report has them.

    Raises `InputError` for a format or runner that Triton does not have.
    """
    find = _BACKENDS.get((format, runner_name))
    if find is None:
        raise InputError(
            f"Triton has no backend for the format {format} in the runner {runner_name}",
            place=place,
            hint=_INSTEAD.get(format, "deploy a variant with export_onnx"),
        )
    return find(runner, effective, place)


def _threads(effective: Mapping[str, Any]) -> int | None:
    threads = effective.get("threads")
    return threads if isinstance(threads, int) and threads > 0 else None


def _onnxruntime(runner: Any, effective: Mapping[str, Any], place: str) -> Backend:
    providers = {"cpu": "", "cuda": "", "tensorrt": "tensorrt", "openvino": "openvino"}
    if runner.provider not in providers:
        raise InputError(
            f"Triton's ONNX Runtime has no provider {runner.provider}",
            place=place,
            hint=f"measure and deploy the variant with one of {', '.join(providers)}",
        )
    gpu = runner.provider in ("cuda", "tensorrt")
    accelerator = providers[runner.provider]
    threads = None if gpu else _threads(effective)
    notes = []
    if runner.provider_options:
        names = ", ".join(sorted(runner.provider_options))
        notes.append(f"provider_options are not carried over ({names}): add them to config.pbtxt")
    if runner.cuda_graphs or runner.tf32:
        notes.append("cuda_graphs and tf32 of the runner are not carried over")
    return Backend(
        file=onnx.FILE,
        platform="onnxruntime_onnx",
        gpu=gpu,
        threads=threads,
        parameters={"intra_op_thread_count": str(threads)} if threads else {},
        level=_LEVELS.get(runner.optimization_level),
        accelerators={"gpu" if gpu else "cpu": accelerator} if accelerator else {},
        notes=tuple(notes),
    )


def _openvino(file: str) -> Callable[[Any, Mapping[str, Any], str], Backend]:
    def backend(runner: Any, effective: Mapping[str, Any], place: str) -> Backend:
        threads = _threads(effective)
        parameters = {"PERFORMANCE_HINT": runner.hint.upper(), "NUM_STREAMS": str(runner.streams)}
        if threads:
            parameters["INFERENCE_NUM_THREADS"] = str(threads)
        notes = []
        if runner.precision == "bf16":
            parameters["HINT_BF16"] = "YES"
        else:
            notes.append(
                f"Triton's OpenVINO backend cannot be told to compute in {runner.precision}: on"
                " processors with bfloat16, OpenVINO takes that by itself"
            )
        # It compiles the model for the largest batch alone.
        parameters["ENABLE_BATCH_PADDING"] = "YES"
        return Backend(
            file=file,
            backend="openvino",
            threads=threads,
            parameters=parameters,
            pads=True,
            notes=tuple(notes),
        )

    return backend


def _torchscript(runner: Any, effective: Mapping[str, Any], place: str) -> Backend:
    gpu = bool(runner.requires().gpu) or str(effective.get("device", "")).startswith("cuda")
    threads = None if gpu else _threads(effective)
    return Backend(
        file=torchscript.FILE,
        platform="pytorch_libtorch",
        gpu=gpu,
        parameters={
            "INFERENCE_MODE": "true",
            **({"INTRA_OP_THREAD_COUNT": str(threads)} if threads else {}),
        },
        threads=threads,
        notes=("Triton gives every LibTorch model the number of threads of the first one",)
        if threads
        else (),
    )


def _tensorrt(runner: Any, effective: Mapping[str, Any], place: str) -> Backend:
    version = effective.get("version")
    said = (
        f"the engine was measured with TensorRT {version}" if version else "the engine is for one GPU"
    )
    note = f"{said}: take a release of Triton with the same version, on the same kind of GPU"
    return Backend(file=tensorrt.FILE, platform="tensorrt_plan", gpu=True, notes=(note,))


_BACKENDS: dict[tuple[Format, str], Callable[[Any, Mapping[str, Any], str], Backend]] = {
    (Format.ONNX, "onnxruntime"): _onnxruntime,
    (Format.ONNX, "openvino"): _openvino(onnx.FILE),
    (Format.OPENVINO, "openvino"): _openvino(openvino.FILE),
    (Format.TORCHSCRIPT, "torchscript"): _torchscript,
    (Format.TENSORRT, "tensorrt"): _tensorrt,
}
