"""Each runtime in a worker of its own: imported, asked for its version, given a tiny model to run."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from optcli import environment
from optcli.environment import Needs
from optcli.errors import OptcliError
from optcli.models.engines import child
from optcli.scaffold.doctor.checks import Check, State
from optcli.scaffold.doctor.trials import Part, TrialRequest
from optcli.workers import run

_GROUP = "runtimes"
_TIMEOUT_S = 180.0


@dataclass(frozen=True)
class TriedRuntime:
    """What to try: `function` of `doctor/trials.py`, if `package` is installed.

    `core` marks what optcli cannot do without; `gpu` what can only run on one. `variable` names another
    interpreter that has the package: it is tried where that is set.
    """

    name: str
    package: str
    function: str
    core: bool = False
    gpu: bool = False
    variable: str = ""


RUNTIMES = (
    TriedRuntime("torch", "torch", "torch_eager", core=True),
    TriedRuntime("torchvision", "torchvision", "torchvision_operators", core=True),
    TriedRuntime("torch.compile", "torch", "torch_compile"),
    TriedRuntime("onnxruntime", "onnxruntime", "onnxruntime_providers", core=True),
    TriedRuntime("openvino", "openvino", "openvino_devices", core=True),
    TriedRuntime("tensorrt", "tensorrt", "tensorrt_engine", gpu=True),
    TriedRuntime(child.PYTHON, "tensorrt", "tensorrt_elsewhere", variable=child.PYTHON),
    TriedRuntime("tensorrt_rtx", "tensorrt_rtx", "tensorrt_rtx_engine"),
)


def runtime_checks(runtime: TriedRuntime) -> list[Check]:
    """Try one runtime; a crash or a hang is an answer too."""
    if runtime.variable:
        if not os.environ.get(runtime.variable):
            return []
    elif environment.version(runtime.package) is None:
        hint = environment.missing(Needs((runtime.package,)))[0].hint
        return [_check(runtime, "absent", "not installed", hint)]
    if runtime.gpu and not environment.has_gpu():  # it may crash without one, and can run nothing
        text = f"{environment.version(runtime.package)}, not tried: there is no GPU"
        return [_check(runtime, "absent", text, "")]
    with TemporaryDirectory() as folder:
        log = Path(folder) / "log.txt"
        try:
            parts = run(
                f"optcli.scaffold.doctor.trials:{runtime.function}",
                TrialRequest(Path(folder), environment.has_gpu()),
                list[Part],
                log=log,
                environment={"TORCHINDUCTOR_CACHE_DIR": folder},
                timeout_s=_TIMEOUT_S,
            )
        except OptcliError as error:
            return [_check(runtime, "broken", error.message, error.hint or _reinstall(runtime))]
    return [_check(runtime, part.state, part.text, part.hint, part.name) for part in parts]


def _check(runtime: TriedRuntime, state: State, text: str, hint: str, name: str = "") -> Check:
    # A part of a runtime, such as a provider, is not what optcli cannot do without.
    return Check(
        group=_GROUP,
        name=f"{runtime.name} {name}".strip(),
        state=state,
        found=text.splitlines()[0] if text else "",
        hint=hint.splitlines()[0] if hint else "",
        core=runtime.core and not name,
    )


def _reinstall(runtime: TriedRuntime) -> str:
    names = {"onnxruntime": "onnxruntime-gpu", "torch": "torch torchvision"}
    name = names.get(runtime.package, runtime.package)
    if runtime.variable:
        return f"look at {runtime.variable}: an interpreter that can `import {name}`"
    return f"pip install --force-reinstall --no-deps {name}"
