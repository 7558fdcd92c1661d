"""What passes that use a GPU through PyTorch have in common: option, need, what binds them."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from optcli import environment
from optcli.environment import Needs
from optcli.models.engines import driver

DEVICE: Any = Field(
    "cpu", description="what it is compiled for, and then runs on: the CPU, or this machine's GPU"
)


def needs_of(device: str, needs: Needs) -> Needs:
    """The needs of a pass, with a GPU where `device` is `cuda`."""
    return Needs(needs.packages, gpu=True) if device == "cuda" else needs


def bound_to(device: str) -> dict[str, Any]:
    """What the code was compiled for; empty for the CPU, and where there is no GPU to compile for."""
    if device == "cpu" or not driver.present():
        return {}
    gpu = driver.devices()[0]
    gpu_facts = {"name": gpu.name, "compute_capability": gpu.compute_capability, "driver": gpu.driver}
    # The code around the kernels is the CPU's.
    return {"gpu": gpu_facts, "cpu": environment.cpu()}
