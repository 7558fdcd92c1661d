"""Variants worth trying for a model on this machine, and why others are left out."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass

from optcli import environment, passes
from optcli.artifact import Format

_COMPILERS = ("g++", "clang++", "c++")
_INTEGER_UNITS = {"avx512_vnni", "avx_vnni", "amx_int8", "asimddp", "i8mm"}


@dataclass(frozen=True)
class Offer:
    """One variant as a recipe writes it; with a `reason` it is written as a comment."""

    name: str
    passes: str
    about: str
    reason: str = ""


def offered(format: Format, *, attention: bool, calibrated: bool) -> list[Offer]:
    """The variants of a model that comes in a format; the first is the baseline.

    `attention` asks for the settings of transformers, `calibrated` says that there is calibration data.
    """
    compiler = "" if _compiler() else "no C++ compiler is here: sudo apt-get install g++"
    openvino, nncf = _lacking("openvino"), _lacking("nncf")
    no_integers = "" if calibrated else "needs data: calibration"
    if not _INTEGER_UNITS & set(environment.cpu()["flags"]):
        no_integers = no_integers or "this CPU has no VNNI: expect smaller files, not speed"
    known = environment.cpu()["flags"]
    no_bf16 = "" if known and environment.computes_in("bf16") else "this CPU does not compute in bf16"
    quantize = "{quantize_nncf: {model_type: transformer}}" if attention else "quantize_nncf"
    to_onnx = [] if format == Format.ONNX else ["export_onnx"]
    if format == Format.TORCH:
        offers = [Offer("eager", "[]", "PyTorch as it is: the baseline")]
    else:
        offers = [Offer(str(format), "[]", "the file as it is: the baseline")]
    if format == Format.TORCH and "torch_compile" in passes.own_names():
        offers.append(Offer("compiled", _chain("torch_compile"), "by torch.compile", compiler))
    if format in (Format.TORCH, Format.EXPORTED):
        offers.append(
            Offer("aoti", _chain("aot_inductor"), "compiled ahead of time by PyTorch", compiler)
        )
        offers.append(Offer("onnx", _chain(*to_onnx), "runs in ONNX Runtime"))
    int8 = "weights and activations in 8 bits"
    to_openvino = [] if format == Format.OPENVINO else [*to_onnx, "to_openvino"]
    in_openvino = _chain(*to_openvino)
    if format in (Format.TORCH, Format.EXPORTED, Format.ONNX):
        in_onnx = "quantize_onnxruntime" if nncf else quantize
        offers += [
            Offer("onnx-int8", _chain(*to_onnx, in_onnx), int8, no_integers),
            Offer("openvino", in_openvino, "runs in OpenVINO", openvino),
        ]
    if format in (Format.TORCH, Format.EXPORTED, Format.ONNX, Format.OPENVINO):
        offers += [
            Offer(
                "openvino-bf16",
                f"{{passes: {in_openvino}, runner: {{name: openvino, precision: bf16}}}}",
                "the same computed in bfloat16",
                openvino or no_bf16,
            ),
            Offer(
                "openvino-int8",
                _chain(*to_openvino, quantize),
                "the same in 8 bits",
                openvino or nncf or no_integers,
            ),
        ]
    if environment.has_gpu() and "tensorrt_engine" in passes.own_names():
        offers.append(
            Offer("tensorrt", _chain(*to_onnx, "tensorrt_engine"), "on the GPU", _lacking("tensorrt"))
        )
    return offers


def _chain(*names: str) -> str:
    return f"[{', '.join(names)}]"


def _lacking(package: str) -> str:
    lacking = environment.missing(environment.Needs((package,)))
    return f"{lacking[0].what}: {lacking[0].hint}" if lacking else ""


def _compiler() -> str | None:
    """A C++ compiler as torch finds one: CXX, else the usual names."""
    named = os.environ.get("CXX")
    return shutil.which(named) if named else next(filter(None, map(shutil.which, _COMPILERS)), None)
