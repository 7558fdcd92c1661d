"""The option `device` of the runners that are PyTorch's, and what it comes to for an artifact."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from optcli.artifact import Artifact
from optcli.environment import Needs
from optcli.errors import RunnerError
from optcli.formats import torch_devices
from optcli.formats.torch_devices import CPU, CUDA
from optcli.runners._torch_cuda import CudaCalls

AUTO = "auto"
DEVICE: Any = Field(
    AUTO,
    pattern=r"^(auto|cpu|cuda(:\d+)?)$",
    description="`cpu`, `cuda` or `cuda:N`; `auto`: what the artifact was compiled for, else the CPU",
)
TF32: Any = Field(
    False,
    description="on a GPU: let the factors of FP32 products and convolutions be rounded to TF32, which "
    "PyTorch by itself does in convolutions",
)


def needs_of(device: str, needs: Needs) -> Needs:
    """What a runner with that option cannot do without."""
    return Needs(needs.packages, gpu=True) if device.startswith(CUDA) else needs


def chosen(device: str, artifact: Artifact) -> str:
    """`cpu` or `cuda:N`, which is there.

    Raises `MissingError` where it is not, `RunnerError` where the artifact was compiled for another.
    """
    made_for = artifact.facts.get(torch_devices.FACT)
    wanted = (made_for or CPU) if device == AUTO else device
    if made_for is not None and wanted.partition(":")[0] != made_for:
        raise RunnerError(
            f"it was compiled for {made_for}, and the runner is to run it on {wanted}",
            hint=f"set the pass's and the runner's `device` alike, or leave the runner's {AUTO}",
        )
    return torch_devices.require(wanted)


def opened(device: str, tf32: bool) -> CudaCalls | None:
    """What calls a GPU, with FP32 as exact as it was asked for; None for the CPU."""
    if device == CPU:
        return None
    torch_devices.exact(tf32)
    return CudaCalls(device)


def computed_in(precision: str, device: str, tf32: bool) -> str:
    """The precision of products: `tf32` of an FP32 network that may round so."""
    return "tf32" if tf32 and precision == "fp32" and device != CPU else precision
