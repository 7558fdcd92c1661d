"""Native code of a network: AOTInductor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from optcli.artifact import (
    PACKS_EACH_CALL,
    ROUTES,
    Artifact,
    Format,
    costly_packing,
    has_own_model,
)
from optcli.environment import Needs
from optcli.errors import StepError, counted, raised_as
from optcli.files import folders
from optcli.models.formats import exported as exported_format
from optcli.models.formats import torch_compiled, torch_devices
from optcli.models.formats.aoti import Routes
from optcli.passes import Job, Made, Pass
from optcli.passes._on_gpu import DEVICE, bound_to, needs_of
from optcli.passes._torch.aoti_compiling import Compiling
from optcli.passes._torch.networks import network
from optcli.passes._torch.tracing import IMPORTS_AHEAD, flat, trace
from optcli.settings import batch_range

if TYPE_CHECKING:
    from torch.export import ExportedProgram

# A model of one batch size takes as much time to compile and as much memory as the one for any: it must
# be so many times as fast.
_WORTH = 1.03


class AotInductor(Pass):
    """Compiles a PyTorch network ahead of time into native code, with AOTInductor.

    The result needs neither Python code of yours nor a compiler when it runs. It is made for the
    instruction set of this machine's CPU, or for its GPU. Needs a C++ compiler.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH, Format.EXPORTED)
    needs: ClassVar[Needs] = Needs(("torch",))
    tolerance: ClassVar[float | None] = 1e-4
    computes_on_one_core: ClassVar[bool] = True
    imports_ahead: ClassVar[tuple[str, ...]] = IMPORTS_AHEAD
    device_bound: ClassVar[bool] = True
    uses_batch_sizes: ClassVar[bool] = True

    device: Literal["cpu", "cuda"] = DEVICE
    shapes: Literal["auto", "dynamic", "static"] = Field(
        "auto",
        description="one model for any batch size (`dynamic`), one for each batch size that latency is "
        "measured at (`static`; others are padded to the next, or computed in pieces), or `auto`: one "
        "for any size, and on the CPU one more for each measured size at which its weights would be "
        "packed on every call or, of a quantized network, at which it is faster",
    )
    freezing: bool = Field(
        True, description="make weights constants, which PyTorch folds and packs for its kernels"
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
        with raised_as(StepError, "AOTInductor failed"), _own_cache() as cache:
            torch_compiled.require_compiler()
            program = self._program(source, job)
            compiling = Compiling(program, job, self._settings(), cache)
            routes = self._compile(compiling)
            bytes_of = compiling.write()
            packs = compiling.packs_each_call(routes)
        models = compiling.models
        facts: dict[str, Any] = {
            "freezing": self.freezing,
            "max_autotune": self.max_autotune,
            "shapes": self.shapes,
            "models": {name: each.to_record(bytes_of[name]) for name, each in models.items()},
        }
        facts[torch_devices.FACT] = job.device
        if routes.fixed:
            facts[ROUTES] = routes.to_record()
        if packs:
            facts[PACKS_EACH_CALL] = packs
            self._warn(facts, job)
        if source.precision in ("int8", "int8-dynamic"):
            kernels = min(each.integer_kernels for each in models.values())
            _require_integers(kernels, self.freezing)
            facts["integer_kernels"] = kernels
        return Made(facts=facts)

    def _program(self, source: Artifact, job: Job) -> ExportedProgram:
        if source.format == Format.EXPORTED:
            return exported_format.open(source.path, trust=source.trusted)
        return trace(flat(network(source), job.inputs), job, strict=bool(self.strict))

    def _settings(self) -> dict[str, Any]:
        """Options of Inductor."""
        return {
            "freezing": self.freezing,
            "max_autotune": self.max_autotune,
            # In this process: no workers that outlive the step.
            "compile_threads": 1,
            # As many threads as the runner says, not as many as there were here and now.
            "cpp.dynamic_threads": True,
            # These headers would stay behind in the system's temporary folder.
            "aot_inductor.precompile_headers": False,
            **torch_compiled.instructions(),
        }

    def _compile(self, compiling: Compiling) -> Routes:
        """Compile what `shapes` says; gives which batch goes where."""
        if self.shapes == "static" and compiling.varies:
            return _static(compiling)
        compiling.any_size()
        if self.shapes == "dynamic" or not (compiling.varies and compiling.packs):
            return Routes()
        compiling.write()
        packs = compiling.packs_each_call(Routes())
        costly = costly_packing({PACKS_EACH_CALL: packs})
        costly_sizes = [s for s in compiling.sizes if packs[str(s)] is None or s in costly]
        for size in costly_sizes:
            compiling.one_size(size)
        if compiling.computes_integers:
            self._keep_faster(compiling, [s for s in compiling.sizes if s not in costly_sizes])
        compiling.write()
        return compiling.fastest()

    def _keep_faster(self, compiling: Compiling, sizes: Sequence[int]) -> None:
        """Compile for single sizes, the smallest first, until one gains nothing by it.

        What a call costs beside its arithmetic counts for more the smaller the batch is.
        """
        for size in sizes:
            compiling.one_size(size)
            compiling.write()
            gain = compiling.gain_of(size)
            if gain is None or gain < _WORTH:
                compiling.drop(size)
                return

    def _warn(self, facts: Mapping[str, Any], job: Job) -> None:
        for size, count in costly_packing(facts).items():
            if not self.freezing:
                hint = "set `freezing: true`"
            elif has_own_model(facts, size):
                hint = "a fixed batch does not change that; try another runtime"
            else:
                hint = "fix the batch (`shapes: static`)"
            packed = counted(count, "weight is packed", "weights are packed")
            job.warn(f"at batch size {size} {packed} on every call: {hint}")


def _static(compiling: Compiling) -> Routes:
    """A model for each size; one for any size as well where others can be neither filled up nor cut."""
    for size in compiling.sizes:
        compiling.one_size(size)
    span = batch_range(compiling.job.inputs)
    if compiling.can_pad() or len(compiling.sizes) > span.max - span.min:
        return compiling.only_fixed()
    compiling.any_size()
    return compiling.to_any_size()


def _require_integers(kernels: int, freezing: bool) -> None:
    """Raise `StepError` for a quantized graph without integer kernels: it is slower than in fp32."""
    if kernels:
        return
    raise StepError(
        "none of the quantized layers became integer code: it would all be computed in floating point",
        hint="leave `freezing` on, which packs integer weights"
        if not freezing
        else "quantize with quantize_pt2e for this kind of CPU (`quantizer: auto`)",
    )


@contextmanager
def _own_cache() -> Iterator[Path]:
    """Let Inductor cache into a folder of this step alone, which goes with it."""
    with folders.temporary("inductor") as folder, torch_compiled.caching_in(folder):
        yield folder
