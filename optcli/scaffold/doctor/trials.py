"""Functions of the doctor's workers: each runs one tiny model in one runtime.

The part without a name is the runtime itself. A runtime whose function raises is broken.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from optcli.errors import RunnerError, first_line
from optcli.models.engines import EngineError, child, driver
from optcli.models.engines.job import EngineJob
from optcli.models.formats.onnxruntime_providers import (
    PROVIDERS,
    library_reason,
    plugin_devices,
    preload,
)
from optcli.scaffold.doctor.checks import State
from optcli.workers import Channel


@dataclass(frozen=True)
class TrialRequest:
    """An empty folder to work in, and whether there is a GPU here."""

    folder: Path
    gpu: bool


@dataclass(frozen=True)
class Part:
    """The state of a runtime, or of the part of it that has a `name`; `text` says it in words."""

    state: State
    text: str
    name: str = ""
    hint: str = ""


def torch_eager(request: TrialRequest, channel: Channel) -> list[Part]:
    """A convolution in PyTorch, and on the GPU where torch sees one."""
    import torch

    _convolve("cpu")
    parts = [Part("ok", str(torch.__version__))]
    if torch.cuda.is_available():
        _convolve("cuda")
        capability = ".".join(map(str, torch.cuda.get_device_capability()))
        text = f"CUDA {torch.version.cuda} on {torch.cuda.get_device_name()} ({capability})"
        parts.append(Part("ok", text, "cuda"))
    elif request.gpu:
        text = f"torch sees no GPU (built for CUDA {torch.version.cuda})"
        hint = "update the driver, or install the torch that was built for it: pytorch.org/get-started"
        parts.append(Part("broken", text, "cuda", hint))
    return parts


def _convolve(device: str) -> None:
    import torch

    network = torch.nn.Conv2d(1, 1, 3).to(device)
    torch.nn.init.ones_(network.weight)
    torch.nn.init.zeros_(network.bias)
    with torch.no_grad():
        result = network(torch.ones(1, 1, 3, 3, device=device))
    _require(float(result.item()), 9.0, "a convolution")


def torchvision_operators(request: TrialRequest, channel: Channel) -> list[Part]:
    """Torchvision's own operators are the first to fail where it was built for another torch."""
    import torch
    import torchvision

    boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2]])
    boxes_left = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8]), 0.5)
    _require(float(boxes_left.numel()), 1.0, "non-maximum suppression")
    return [Part("ok", str(torchvision.__version__))]


def torch_compile(request: TrialRequest, channel: Channel) -> list[Part]:
    """Compile a function with Inductor's C++ compiler, into a cache that is thrown away."""
    import torch
    from torch._inductor import cpp_builder

    try:
        compiler = cpp_builder.get_cpp_compiler()
    except Exception as error:  # torch raises its own kind, which moved between versions
        hint = "sudo apt-get install g++ (or set CXX); without it no torch.compile and no aot_inductor"
        raise RunnerError(f"no C++ compiler was found: {first_line(error)}", hint=hint) from error

    def doubled(values: torch.Tensor) -> torch.Tensor:
        return torch.relu(values) * 2 + 1

    try:
        with torch.no_grad():
            result = torch.compile(doubled, backend="inductor")(torch.ones(8))
    except Exception as error:
        hint = "sudo apt-get install g++ python3-dev libgomp1; torch.compile and aot_inductor need them"
        raise RunnerError(f"{compiler} cannot compile: {first_line(error)}", hint=hint) from error
    _require(float(result[0]), 3.0, "a compiled function")
    return [Part("ok", f"compiles with {compiler}")]


def onnxruntime_providers(request: TrialRequest, channel: Channel) -> list[Part]:
    """A tiny model on the CPU, then on every other provider that the package brings."""
    import onnxruntime

    model = _tiny_onnx()
    _run_onnx(model, "CPUExecutionProvider")
    parts = [Part("ok", onnxruntime.__version__)]
    for provider in onnxruntime.get_available_providers():
        if provider == "CPUExecutionProvider":
            continue
        name = provider.removesuffix("ExecutionProvider")
        try:
            parts.append(Part("ok", _tried(model, provider), name))
        except Exception as error:
            reason = library_reason(provider) or first_line(error)
            if not request.gpu:
                text = f"not usable here, as there is no GPU ({reason})"
                parts.append(Part("absent", text, name))
                continue
            install = next((each.install for each in PROVIDERS.values() if each.name == provider), "")
            parts.append(Part("broken", reason, name, install))
    return [*parts, *_plugins(gpu=request.gpu)]


def _plugins(*, gpu: bool) -> list[Part]:
    """The providers that are packages of their own, where they are installed."""
    parts: list[Part] = []
    for kind in PROVIDERS.values():
        if not kind.plugin or importlib.util.find_spec(kind.plugin) is None:
            continue
        try:
            devices, reason = plugin_devices(kind), "it finds nothing here that it can run on"
        except Exception as error:
            devices, reason = [], first_line(error)
        state: State = "ok" if devices else "broken" if gpu and kind.device == "cuda" else "absent"
        text = f"the plug-in {kind.plugin} loads" if devices else f"{kind.plugin}: {reason}"
        name = kind.name.removesuffix("ExecutionProvider")
        parts.append(Part(state, text, name))
    return parts


def _tried(model: bytes, provider: str) -> str:
    with suppress(Exception):
        _run_onnx(model, provider)
        return "runs"
    # Libraries that pip installed are not on the linker's path: this loads them by name.
    missing = preload()
    try:
        _run_onnx(model, provider)
    except Exception as error:
        raise RunnerError(f"{first_line(error)}{f' ({missing})' if missing else ''}") from error
    return "runs, with the CUDA libraries of pip's nvidia packages"


def _tiny_onnx() -> bytes:
    from onnx import TensorProto, helper

    node = helper.make_node("Add", ["x", "x"], ["y"])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("x", "y")]
    graph = helper.make_graph([node], "tiny", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def _run_onnx(model: bytes, provider: str) -> None:
    import numpy as np
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, options, providers=[provider])
    effective = session.get_providers()[0]
    if effective != provider:
        raise RunnerError(f"it falls back to {effective}")
    result = session.run(None, {"x": np.ones(2, np.float32)})[0]
    _require(float(np.asarray(result)[0]), 2.0, "an addition")


def openvino_devices(request: TrialRequest, channel: Channel) -> list[Part]:
    """A tiny model on every device that OpenVINO sees; its reporting is off from here on."""
    import numpy as np

    from optcli.models.formats import openvino as openvino_format

    core = openvino_format.core()
    import openvino
    from openvino import opset13 as operators

    parameter = operators.parameter([2], np.float32, name="x")
    model = openvino.Model([operators.add(parameter, parameter)], [parameter], "tiny")
    parts: list[Part] = []
    for device in core.available_devices:
        full_name = str(core.get_property(device, "FULL_DEVICE_NAME"))
        try:
            result = core.compile_model(model, device)([np.ones(2, np.float32)])[0]
            _require(float(result[0]), 2.0, "an addition")
            able = core.get_property(device, "OPTIMIZATION_CAPABILITIES")
            kinds = [each for each in able if any(size in each for size in ("FP", "BF", "INT"))]
            parts.append(Part("ok", f"{full_name}: {', '.join(sorted(kinds))}", device))
        except Exception as error:
            if device == "CPU":
                raise
            text = f"{full_name}: {openvino_format.reason(error)}"
            parts.append(Part("broken", text, device))
    off = sys.modules.get("openvino_telemetry", "there") is None
    telemetry = Part("broken", "on", "telemetry", "opt_in_out --opt_out")
    if off:
        why = "OpenVINO's and NNCF's reporting cannot be imported"
        telemetry = Part("ok", f"off ({why})", "telemetry")
    return [Part("ok", openvino.__version__.partition("-")[0]), *parts, telemetry]


def tensorrt_engine(request: TrialRequest, channel: Channel) -> list[Part]:
    """Build a tiny engine with TensorRT and load it."""
    return _engine("tensorrt", request, None)


def tensorrt_rtx_engine(request: TrialRequest, channel: Channel) -> list[Part]:
    """Build a tiny engine with TensorRT-RTX, which needs no GPU to build, and load it."""
    return _engine("tensorrt_rtx", request, None)


def tensorrt_elsewhere(request: TrialRequest, channel: Channel) -> list[Part]:
    """Build a tiny engine in the interpreter that OPTCLI_TENSORRT_PYTHON names, and load it."""
    return _engine("tensorrt", request, child.interpreter("tensorrt"))


def _engine(product: str, request: TrialRequest, python: str | None) -> list[Part]:
    folder = request.folder
    (folder / "tiny.onnx").write_bytes(_tiny_onnx())
    try:
        here = child.run("optcli.models.engines.bindings:describe", {"product": product}, python=python)
        text = f"{here['version']}, Python {here['python']}{f' at {python}' if python else ''}"
        if product == "tensorrt" and not driver.present():  # its Builder would end the process
            return [Part("note", f"{text}; not tried: there is no GPU")]
        job = EngineJob(
            product, str(folder / "tiny.onnx"), str(folder / "tiny.plan"),
            strongly_typed=here["strong_typing"],
        )  # fmt: skip
        built = child.run("optcli.models.engines.building:build", asdict(job), python=python)
    except EngineError as error:
        lines = f" ({error.lines[-1]})" if error.lines else ""
        raise RunnerError(f"{error.message}{lines}", hint=error.hint) from error
    if built["engine"] is None:
        return [Part("note", f"{text}; builds engines, which need a GPU to run")]
    return [Part("ok", f"{text}; builds and loads engines")]


def _require(value: float, expected: float, what: str) -> None:
    if value != expected:
        raise RunnerError(
            f"{what} gives {value}, wanted {expected}", hint="the installation is damaged"
        )
