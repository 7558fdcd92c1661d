"""Native code of a network: AOTInductor."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from optcli.artifact import Artifact, Format
from optcli.environment import Needs
from optcli.errors import MissingError, OptcliError, StepError, first_line
from optcli.formats import aoti as aoti_format
from optcli.formats import exported as exported_format
from optcli.formats import torch_compiled, torch_devices
from optcli.passes import Job, Made, Pass
from optcli.passes._networks import network
from optcli.passes._on_gpu import DEVICE, bound_to, needs_of
from optcli.passes._tracing import flat, trace

if TYPE_CHECKING:
    from torch.export import ExportedProgram


# What Inductor counts when it turns a quantized layer into a call of oneDNN's integer kernels.
_INTEGER_KERNELS = re.compile(r"q(conv|linear)\w*_lower_count")


class AotInductor(Pass):
    """Compiles a PyTorch network ahead of time into native code, with AOTInductor.

    The result needs neither Python code of yours nor a compiler when it runs. It is made for the
    instruction set of this machine's CPU, or for its GPU. Needs a C++ compiler.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH, Format.EXPORTED)
    needs: ClassVar[Needs] = Needs(("torch",))
    tolerance: ClassVar[float | None] = 1e-4
    device_bound: ClassVar[bool] = True

    device: Literal["cpu", "cuda"] = DEVICE
    freezing: bool = Field(
        True, description="make weights constants: folded, and packed as the kernels like them best"
    )
    max_autotune: bool = Field(
        False, description="try several kernels for matrix products and keep the fastest; slow to build"
    )
    strict: bool | None = Field(
        None, description="how a torch artifact is traced: as in the pass `export`"
    )

    def produces(self, source: Format) -> Format:
        return Format.AOTI

    def requires(self) -> Needs:
        return needs_of(self.device, self.needs)

    def bound_to(self) -> dict[str, Any]:
        return bound_to(self.device)

    def attempts(self) -> tuple[Pass, ...]:
        if self.strict is not None:
            return (self,)
        return tuple(self.model_copy(update={"strict": strict}) for strict in (False, True))

    def run(self, source: Artifact, job: Job) -> Made:
        try:
            with _own_cache(job.beside) as cache:
                _require_compiler()
                device = torch_devices.require(job.device)
                program = _moved(self._program(source, job), device, cache)
                job.progress(None, "compiling")
                kernels = self._compile(program, job)
        except OptcliError:
            raise
        except Exception as error:
            raise StepError(f"AOTInductor failed: {first_line(error)}") from error
        facts: dict[str, Any] = {"freezing": self.freezing, "max_autotune": self.max_autotune}
        facts[torch_devices.FACT] = job.device
        if source.precision in ("int8", "int8-dynamic"):
            _require_integers(kernels, self.freezing)
            facts["integer_kernels"] = kernels
        return Made(facts=facts)

    def _program(self, source: Artifact, job: Job) -> ExportedProgram:
        if source.format == Format.EXPORTED:
            return exported_format.open(source.path, trust=source.trusted)
        return trace(flat(network(source), job.inputs), job, strict=bool(self.strict))

    def _compile(self, program: ExportedProgram, job: Job) -> int:
        """Write the package; gives the number of its kernels that multiply integers."""
        import torch
        from torch._dynamo.utils import counters

        settings: dict[str, Any] = {
            "freezing": self.freezing,
            "max_autotune": self.max_autotune,
            # In this process: no workers that outlive the step.
            "compile_threads": 1,
            # As many threads as the runner says, not as many as there were here and now.
            "cpp.dynamic_threads": True,
            # These headers would stay behind in the system's temporary folder.
            "aot_inductor.precompile_headers": False,
        }
        counters["inductor"].clear()
        with torch.no_grad():
            torch._inductor.aoti_compile_and_package(
                program,
                package_path=os.fspath(job.out / aoti_format.FILE),
                inductor_configs=settings,
            )
        counted = counters["inductor"].items()
        return int(sum(count for name, count in counted if _INTEGER_KERNELS.fullmatch(name)))


def _moved(program: ExportedProgram, device: str, scratch: Path) -> ExportedProgram:
    """The program with its weights, constants and the devices in its graph on that device."""
    if device == torch_devices.CPU:
        return program
    from torch.export.passes import move_to_device_pass

    torch_devices.prepare_compiling()
    torch_devices.make_driver_linkable(scratch)
    return move_to_device_pass(program, device)


def _require_integers(kernels: int, freezing: bool) -> None:
    """A quantized graph that is computed in floating point is slower than one without quantization."""
    if kernels:
        return
    raise StepError(
        "none of the quantized layers became integer code: it would all be computed in floating point",
        hint="leave `freezing` on, which packs integer weights"
        if not freezing
        else "quantize with quantize_pt2e for this kind of CPU (`quantizer: auto`)",
    )


def _require_compiler() -> None:
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler as error:
        raise MissingError(
            "AOTInductor needs a C++ compiler and found none",
            hint="install one (for example `apt install g++`), or name it in the variable CXX",
        ) from error


@contextmanager
def _own_cache(beside: Path) -> Iterator[Path]:
    """Let Inductor cache into a folder of this step alone, which goes with it."""
    with (
        tempfile.TemporaryDirectory(
            dir=beside, prefix="inductor-", ignore_cleanup_errors=True
        ) as folder,
        torch_compiled.caching_in(Path(folder)),
    ):
        yield Path(folder)
