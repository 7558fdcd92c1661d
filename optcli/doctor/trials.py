"""What the doctor's workers do: run one tiny model in one runtime.

Each function gives a list of {name, state, found, hint}; the entry without a name speaks for the
runtime itself, the others for parts of it. Whatever is raised says that the runtime is broken.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from optcli.engines import EngineError, child, driver
from optcli.engines.job import Job
from optcli.errors import RunnerError, first_line
from optcli.formats.onnxruntime_providers import PROVIDERS, library_reason, plugin_devices, preload
from optcli.workers import Channel

Trial = list[dict[str, Any]]


def torch_eager(payload: dict[str, Any], channel: Channel) -> Trial:
    """A convolution in PyTorch, and on the GPU where torch sees one."""
    import torch

    _convolve("cpu")
    found = [{"state": "ok", "found": torch.__version__}]
    if torch.cuda.is_available():
        _convolve("cuda")
        capability = ".".join(map(str, torch.cuda.get_device_capability()))
        said = f"CUDA {torch.version.cuda} on {torch.cuda.get_device_name()} ({capability})"
        found.append({"name": "cuda", "state": "ok", "found": said})
    elif payload["gpu"]:
        said = f"torch sees no GPU (built for CUDA {torch.version.cuda})"
        hint = "update the driver, or install the torch that was built for it: pytorch.org/get-started"
        found.append({"name": "cuda", "state": "broken", "found": said, "hint": hint})
    return found


def _convolve(device: str) -> None:
    import torch

    network = torch.nn.Conv2d(1, 1, 3).to(device)
    torch.nn.init.ones_(network.weight)
    torch.nn.init.zeros_(network.bias)
    with torch.no_grad():
        result = network(torch.ones(1, 1, 3, 3, device=device))
    _require(float(result.item()), 9.0, "a convolution")


def torchvision_operators(payload: dict[str, Any], channel: Channel) -> Trial:
    """Torchvision's own operators are the first to fail where it was built for another torch."""
    import torch
    import torchvision

    boxes = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 2]])
    kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8]), 0.5)
    _require(float(kept.numel()), 1.0, "non-maximum suppression")
    return [{"state": "ok", "found": torchvision.__version__}]


def torch_compile(payload: dict[str, Any], channel: Channel) -> Trial:
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
    return [{"state": "ok", "found": f"compiles with {compiler}"}]


def onnxruntime_providers(payload: dict[str, Any], channel: Channel) -> Trial:
    """A tiny model on the CPU, then on every other provider that the package brings."""
    import onnxruntime

    model = _tiny_onnx()
    _run_onnx(model, "CPUExecutionProvider")
    found = [{"state": "ok", "found": onnxruntime.__version__}]
    for provider in onnxruntime.get_available_providers():
        if provider == "CPUExecutionProvider":
            continue
        name = provider.removesuffix("ExecutionProvider")
        try:
            found.append({"name": name, "state": "ok", "found": _tried(model, provider)})
        except Exception as error:
            reason = library_reason(provider) or first_line(error)
            if not payload["gpu"]:
                said = f"not usable here, as there is no GPU ({reason})"
                found.append({"name": name, "state": "absent", "found": said})
                continue
            found.append({"name": name, "state": "broken", "found": reason, "hint": _install(provider)})
    return [*found, *_plugins(gpu=payload["gpu"])]


def _install(provider: str) -> str:
    return next((each.install for each in PROVIDERS.values() if each.name == provider), "")


def _plugins(*, gpu: bool) -> Trial:
    """The providers that are packages of their own, where they are installed."""
    found: Trial = []
    for kind in PROVIDERS.values():
        if not kind.plugin or importlib.util.find_spec(kind.plugin) is None:
            continue
        try:
            devices, reason = plugin_devices(kind), "it finds nothing here that it can run on"
        except Exception as error:
            devices, reason = [], first_line(error)
        state = "ok" if devices else "broken" if gpu and kind.device == "cuda" else "absent"
        said = f"the plug-in {kind.plugin} loads" if devices else f"{kind.plugin}: {reason}"
        name = kind.name.removesuffix("ExecutionProvider")
        found.append({"name": name, "state": state, "found": said})
    return found


def _tried(model: bytes, provider: str) -> str:
    with suppress(Exception):
        _run_onnx(model, provider)
        return "runs"
    # Libraries that pip installed are not on the linker's path: this loads them by name.
    said = preload()
    try:
        _run_onnx(model, provider)
    except Exception as error:
        raise RunnerError(f"{first_line(error)}{f' ({said})' if said else ''}") from error
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


def openvino_devices(payload: dict[str, Any], channel: Channel) -> Trial:
    """A tiny model on every device that OpenVINO sees; its reporting is off from here on."""
    import numpy as np

    from optcli.formats import openvino as openvino_format

    core = openvino_format.core()
    import openvino
    from openvino import opset13 as operators

    parameter = operators.parameter([2], np.float32, name="x")
    model = openvino.Model([operators.add(parameter, parameter)], [parameter], "tiny")
    found: Trial = []
    for device in core.available_devices:
        said = str(core.get_property(device, "FULL_DEVICE_NAME"))
        try:
            result = core.compile_model(model, device)([np.ones(2, np.float32)])[0]
            _require(float(result[0]), 2.0, "an addition")
            found.append({"name": device, "state": "ok", "found": said})
        except Exception as error:
            if device == "CPU":
                raise
            text = f"{said}: {openvino_format.reason(error)}"
            found.append({"name": device, "state": "broken", "found": text})
    off = sys.modules.get("openvino_telemetry", "there") is None
    telemetry = {
        "name": "telemetry",
        "state": "ok" if off else "broken",
        "found": "off (OpenVINO's and NNCF's reporting cannot be imported)" if off else "on",
        "hint": "" if off else "opt_in_out --opt_out",
    }
    version = {"state": "ok", "found": openvino.__version__.partition("-")[0]}
    return [version, *found, telemetry]


def tensorrt_engine(payload: dict[str, Any], channel: Channel) -> Trial:
    """Build a tiny engine with TensorRT and load it."""
    return _engine("tensorrt", payload, None)


def tensorrt_rtx_engine(payload: dict[str, Any], channel: Channel) -> Trial:
    """The same with TensorRT-RTX, which builds without a GPU, too."""
    return _engine("tensorrt_rtx", payload, None)


def tensorrt_elsewhere(payload: dict[str, Any], channel: Channel) -> Trial:
    """TensorRT in the interpreter that OPTCLI_TENSORRT_PYTHON names."""
    return _engine("tensorrt", payload, child.interpreter("tensorrt"))


def _engine(product: str, payload: dict[str, Any], python: str | None) -> Trial:
    folder = Path(payload["folder"])
    (folder / "tiny.onnx").write_bytes(_tiny_onnx())
    try:
        here = child.run("optcli.engines.bindings:describe", {"product": product}, python=python)
        said = f"{here['version']}, Python {here['python']}{f' at {python}' if python else ''}"
        if product == "tensorrt" and not driver.present():  # its Builder would end the process
            return [{"state": "note", "found": f"{said}; not tried: there is no GPU"}]
        job = Job(
            product, str(folder / "tiny.onnx"), str(folder / "tiny.plan"),
            strongly_typed=here["strong_typing"],
        )  # fmt: skip
        made = child.run("optcli.engines.building:build", job.to_record(), python=python)
    except EngineError as error:
        lines = f" ({error.lines[-1]})" if error.lines else ""
        raise RunnerError(f"{error.message}{lines}", hint=error.hint) from error
    if made["engine"] is None:
        return [{"state": "note", "found": f"{said}; builds engines, which need a GPU to run"}]
    return [{"state": "ok", "found": f"{said}; builds and loads engines"}]


def _require(found: float, wanted: float, what: str) -> None:
    if found != wanted:
        raise RunnerError(f"{what} gives {found}, wanted {wanted}", hint="the installation is damaged")
