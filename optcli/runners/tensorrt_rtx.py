"""TensorRT-RTX."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.runners._engine import EngineRunner
from optcli.settings.references import MachinePath


class TensorrtRtxRunner(EngineRunner):
    """Runs engines of TensorRT-RTX, a product of its own that opens no plans of TensorRT.

    It compiles the kernels for the GPU when it opens an engine, and records CUDA graphs by itself.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.TENSORRT_RTX,)
    needs: ClassVar[Needs] = Needs(("tensorrt_rtx",), gpu=True)
    product: ClassVar[str] = "tensorrt_rtx"

    kernel_cache: MachinePath | None = Field(
        None,
        description="file that keeps compiled kernels; default: none, each loading compiles them",
    )

    def _job(self, artifact: Artifact) -> dict[str, Any]:
        return {**super()._job(artifact), "kernel_cache": self.kernel_cache}
