"""TensorRT, 8.6 and later."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from optcli.artifact import Format
from optcli.environment import Needs
from optcli.models.engines import child
from optcli.models.engines.running.execution import EngineExecution
from optcli.models.engines.running.remote import RemoteExecution
from optcli.runners._engine import EngineRunner
from optcli.settings.references import MachinePath


class TensorrtRunner(EngineRunner):
    """Runs TensorRT engines, in this interpreter or in another that holds their version of TensorRT.

    Another interpreter takes the times itself: they do not contain the way to it.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.TENSORRT,)
    needs: ClassVar[Needs] = Needs(("tensorrt",), gpu=True)
    product: ClassVar[str] = "tensorrt"

    python: MachinePath | None = Field(
        None,
        description="interpreter that has TensorRT; default: OPTCLI_TENSORRT_PYTHON, else this one",
    )

    def requires(self) -> Needs:
        python = child.interpreter(self.product, self.python)
        return self.needs if python is None else Needs(gpu=True, foreign=("tensorrt",), python=python)

    def effective(self) -> dict[str, Any]:
        settings = super().effective()
        python = child.interpreter(self.product, self.python)
        return settings if python is None else {**settings, "python": python}

    def _opened_engine(self, job: dict[str, Any]) -> EngineExecution | RemoteExecution:
        python = child.interpreter(self.product, self.python)
        return super()._opened_engine(job) if python is None else RemoteExecution(job, python)
