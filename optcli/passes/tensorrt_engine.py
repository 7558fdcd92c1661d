"""Engines of TensorRT."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import Field

from optcli.artifact import Format
from optcli.environment import Needs
from optcli.models.engines import child
from optcli.passes import Job
from optcli.passes._tensorrt.engine import EnginePass
from optcli.passes._tensorrt.record import timing_cache
from optcli.settings.references import MachinePath


class TensorrtEngine(EnginePass):
    """Builds a TensorRT engine: kernels chosen and timed for the GPU that is here.

    One recipe for TensorRT 8.6, 10 and 11: the precision is what you want computed, and becomes builder
    flags or types in the model, as the version needs. The engine runs on this kind of GPU with this
    version only, unless made compatible.
    """

    needs: ClassVar[Needs] = Needs(("tensorrt", "onnx", "onnx_ir", "numpy"), gpu=True)
    product: ClassVar[str] = "tensorrt"

    timing_cache: bool = Field(
        True, description="keep the timings of kernels in the store, per version, GPU and driver"
    )
    version_compatible: bool = Field(
        False, description="the plan runs in later versions too; it is larger, and can be slower"
    )
    hardware_compatible: Literal["none", "ampere_plus", "same_compute_capability"] = Field(
        "none", description="which other GPUs the plan runs on; it can be slower"
    )
    python: MachinePath | None = Field(
        None,
        description="interpreter that has TensorRT, where this one has not; default: the environment "
        "variable OPTCLI_TENSORRT_PYTHON",
    )

    def produces(self, source: Format) -> Format:
        return Format.TENSORRT

    def interpreter(self) -> str | None:
        return child.interpreter(self.product, self.python)

    def flags(self) -> dict[str, bool]:
        return {"VERSION_COMPATIBLE": True} if self.version_compatible else {}

    def settings(self, job: Job, version: str) -> dict[str, Any]:
        cache = timing_cache(job, self.product, version) if self.timing_cache else None
        return {"timing_cache": cache, "hardware": self.hardware_compatible}

    def compatible(self) -> tuple[str, ...]:
        hardware = () if self.hardware_compatible == "none" else (self.hardware_compatible,)
        return (*(("version",) if self.version_compatible else ()), *hardware)
