"""The program of a network: torch.export."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import StepError, raised_as
from optcli.models.formats import exported as exported_format
from optcli.passes import Job, Made, Pass
from optcli.passes._torch.networks import network
from optcli.passes._torch.tracing import IMPORTS_AHEAD, flat, trace


class Export(Pass):
    """Exports a PyTorch network with torch.export: a graph that needs no Python code of yours any more.

    Sizes that the recipe's `inputs` write as symbols stay dynamic within their range.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH,)
    needs: ClassVar[Needs] = Needs(("torch",))
    tolerance: ClassVar[float | None] = 1e-4
    computes_on_one_core: ClassVar[bool] = True
    imports_ahead: ClassVar[tuple[str, ...]] = IMPORTS_AHEAD

    strict: bool | None = Field(
        None,
        description="trace Python bytecode (true) or run the code (false); default: run it, "
        "and trace the bytecode where that fails",
    )

    def produces(self, source: Format) -> Format:
        return Format.EXPORTED

    def attempts(self) -> tuple[Pass, ...]:
        if self.strict is not None:
            return (self,)
        return tuple(self.model_copy(update={"strict": strict}) for strict in (False, True))

    def run(self, source: Artifact, job: Job) -> Made:
        model = flat(network(source), job.inputs)
        hint = "the log shows the line of the network that it cannot follow"
        with raised_as(StepError, "torch.export failed", hint=hint):
            program = trace(model, job, strict=bool(self.strict))
        exported_format.save(program, job.out)
        return Made(facts={"strict": bool(self.strict)})
