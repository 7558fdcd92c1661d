"""Engines of TensorRT-RTX."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from optcli.artifact import Format
from optcli.environment import Needs
from optcli.passes import Job
from optcli.passes._tensorrt.engine import EnginePass

Capability = Literal["current", "sm75", "sm80", "sm86", "sm89", "sm120", "sm121"]


class TensorrtRtxEngine(EnginePass):
    """Builds an engine of TensorRT-RTX, a product of its own for GeForce and RTX GPUs.

    It needs no GPU to build: the machine that runs the engine compiles its kernels. TensorRT cannot run
    these engines, and their latency says nothing about that of TensorRT.
    """

    needs: ClassVar[Needs] = Needs(("tensorrt_rtx", "onnx", "onnx_ir", "numpy"))
    product: ClassVar[str] = "tensorrt_rtx"

    compute_capabilities: tuple[Capability, ...] = Field(
        (),
        description="GPU architectures to build for; `current`: that of this one; default: all",
    )

    @model_validator(mode="after")
    def _current_stands_alone(self) -> Self:
        if "current" in self.compute_capabilities and len(self.compute_capabilities) > 1:
            raise ValueError("`current` is the GPU that is here: name it alone, or name architectures")
        return self

    def produces(self, source: Format) -> Format:
        return Format.TENSORRT_RTX

    def bound_to(self) -> dict[str, Any]:
        bound = super().bound_to()
        if self.compute_capabilities and "current" not in self.compute_capabilities:
            bound["gpu"] = None  # the plan is the same wherever it is built
        return bound

    def settings(self, job: Job, version: str) -> dict[str, Any]:
        return {"targets": tuple(name.upper() for name in self.compute_capabilities)}
