"""torch.compile, with what it compiled kept beside the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from optcli import environment
from optcli.artifact import PACKS_EACH_CALL, Artifact, Format, costly_packing
from optcli.environment import Needs
from optcli.errors import StepError, counted, first_line, raised_as
from optcli.models.formats import torch as torch_format
from optcli.models.formats import torch_calls, torch_compiled, torch_devices, torch_modules
from optcli.models.formats.torch_compiled import Compilation, Mode
from optcli.models.formats.weight_packing import packed_each_call
from optcli.passes import Job, Made, Pass
from optcli.passes._on_gpu import DEVICE, bound_to, needs_of
from optcli.passes._torch.networks import require_uncompiled

if TYPE_CHECKING:
    import torch

# Kernels that round elsewhere; under autocast a sum may be kept in 8 bits of mantissa or in 24.
_TOLERANCE, _CAST_TOLERANCE = 1e-4, 5e-2


class TorchCompile(Pass):
    """Compiles a PyTorch network with torch.compile and keeps the result, so that it starts warm.

    The network stays a network in Python: whoever runs it needs torch, its code and a C++ compiler.
    The batch sizes at which latency is measured are compiled here, for this CPU or this GPU. With one
    graph for all batch sizes a CPU may pack weights on every call: the pass warns where it does.
    """

    accepts: ClassVar[tuple[Format, ...]] = (Format.TORCH,)
    needs: ClassVar[Needs] = Needs(("torch",))
    device_bound: ClassVar[bool] = True
    uses_batch_sizes: ClassVar[bool] = True
    last: ClassVar[bool] = True

    device: Literal["cpu", "cuda"] = DEVICE
    mode: Mode = Field(
        "default",
        description="a mode of torch.compile; `max-autotune` tries several kernels and is slow to "
        "build, `reduce-overhead` is CUDA graphs and works on GPUs alone",
    )
    dynamic: bool = Field(
        True,
        description="one graph for all batch sizes (1 has its own), or one for each: another size than "
        "those measured is then compiled when it comes",
    )
    freezing: bool = Field(
        True,
        description="make weights constants, which PyTorch folds and packs for its kernels; faster "
        "calls, but a warm start lowers the graph again and takes several times as long",
    )
    channels_last: bool = Field(
        False, description="keep images and convolutions with the channels last in memory"
    )
    autocast: Literal["bf16", "fp16"] | None = Field(
        None, description="compute matrix products and convolutions in this precision"
    )

    def produces(self, source: Format) -> Format:
        return Format.TORCH

    def requires(self) -> Needs:
        return needs_of(self.device, self.needs)

    def bound_to(self) -> dict[str, Any]:
        return bound_to(self.device)

    def attempts(self) -> tuple[Pass, ...]:
        # Inductor of torch 2.15 mistakes the layout of frozen convolutions with channels last and a
        # dynamic batch, and says so when it runs. Nor does it fuse frozen convolutions beside writes
        # into tensors, as detectors of torchvision have them.
        ways = (self, self.model_copy(update={"dynamic": False}))
        return tuple(dict.fromkeys((*ways, ways[1].model_copy(update={"freezing": False}))))

    def run(self, source: Artifact, job: Job) -> Made:
        import torch

        description = torch_format.read(source.path)
        require_uncompiled(source)
        self._warn(job)
        model = torch_format.open(source.path)
        last = any(record["name"] == "channels_last" for record in description.transforms)
        if self.channels_last and not last:
            description, last = description.after({"name": "channels_last"}), True
            model = model.to(memory_format=torch.channels_last)
        if self.autocast:
            description = description.after({"name": "autocast", "dtype": self.autocast})
        compilation = Compilation(
            mode=self.mode,
            dynamic=self.dynamic,
            freezing=self.freezing,
            batch_sizes=job.batch_sizes,
        )
        description = description.after(compilation.to_record())
        torch_format.save(model, job.out, description, source.path / torch_format.CODE)
        torch.set_num_threads(job.threads)  # kernels are made for a number of threads
        device = torch_devices.require(job.device)
        if device != torch_devices.CPU:
            torch_devices.prepare_compiling()
            model = torch_modules.on(model, device)
        with torch_compiled.own_copy(job.out) as cache:
            hint = "leave the variant out: PyTorch does not compile this network"
            hint = hint if self.mode == "default" else "try `mode: default`"
            with (
                raised_as(StepError, "torch.compile failed", hint=hint, reason=_reason),
                torch_compiled.compiling(cache, self.freezing),
            ):
                error, packs = self._compile(model, compilation, job, channels_last=last)
            torch_compiled.keep_seed(cache, job.out)
            kernels = torch_compiled.kernels(cache)
        facts = {
            **self.model_dump(mode="json"),
            "compiled_batch_sizes": list(compilation.sizes(job.inputs)),
            "kernels": kernels,
            "largest_relative_error": error,
        }
        made = {"torch_compile": facts, torch_devices.FACT: job.device}
        if packs:
            made[PACKS_EACH_CALL] = packs
            self._warn_of_packing(made, job)
        return Made(self.autocast, made)

    def _warn(self, job: Job) -> None:
        if self.mode == "reduce-overhead" and job.device == "cpu":
            job.warn("reduce-overhead is CUDA graphs: on a CPU it changes nothing")
        on_cpu = job.device == torch_devices.CPU
        if self.autocast and on_cpu and not environment.computes_in(self.autocast):
            job.warn(f"this CPU has no {self.autocast} instructions: expect it to be slow")

    def _warn_of_packing(self, facts: Mapping[str, Any], job: Job) -> None:
        hint = "set `dynamic: false`" if self.dynamic else "set `freezing: true`"
        for size, count in costly_packing(facts).items():
            packed = counted(count, "weight is packed", "weights are packed")
            job.warn(f"at batch size {size} {packed} on every call: {hint}")

    def _compile(
        self, model: torch.nn.Module, compilation: Compilation, job: Job, *, channels_last: bool
    ) -> tuple[float, dict[str, Any]]:
        """Compile at every size.

        Gives the largest relative difference to the network as it is, and the weights that each call
        packs (`Packed`) by batch size, on the CPU, of the sizes at which latency is measured.
        """
        import torch

        compiled, call = compilation.apply(model), torch_calls.arguments(model, job.inputs)
        sizes = compilation.sizes(job.inputs)
        worst, packs = 0.0, {}
        for number, size in enumerate(sizes):
            job.progress(number / len(sizes), f"compiling for batch size {size}")
            feed = torch_calls.example_inputs(job.inputs, size)
            feed = {name: value.to(torch_devices.require(job.device)) for name, value in feed.items()}
            if channels_last:
                feed = {name: torch_calls.channels_last(value) for name, value in feed.items()}
            compilation.mark(job.inputs, feed)
            positional, keyword = call.split(feed)
            with torch.no_grad(), self._casting():
                outputs = _outputs(compiled, positional, keyword)
                expected = _outputs(model, positional, keyword)
                if job.device == torch_devices.CPU and size in compilation.batch_sizes:
                    packs[str(size)] = _packs(partial(compiled, *positional, **keyword), model)
            worst = max(worst, self._checked(outputs, expected, size))
        return worst, packs

    def _casting(self) -> AbstractContextManager[Any]:
        import torch

        if self.autocast is None:
            return nullcontext()
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[self.autocast]
        context: AbstractContextManager[Any] = torch.autocast(self.device, dtype)
        return context

    def _checked(self, outputs: list[torch.Tensor], expected: list[torch.Tensor], size: int) -> float:
        on_cpu = self.device == torch_devices.CPU
        plain = _TOLERANCE if on_cpu else torch_devices.GPU_TOLERANCE
        allowed = _CAST_TOLERANCE if self.autocast else plain
        errors = [_relative_error(a, b) for a, b in zip(outputs, expected, strict=True)]
        worst = max(errors, default=0.0)
        if not worst <= allowed:
            raise StepError(
                f"the compiled network computes something else: at batch size {size} its outputs "
                f"differ by {worst:.2g} of the largest output, allowed are {allowed:.0e}",
                hint="try `freezing: false` or `dynamic: false`",
            )
        return worst


def _outputs(
    model: Callable[..., Any], positional: tuple[Any, ...], keyword: dict[str, Any]
) -> list[torch.Tensor]:
    return list(torch_calls.flatten_outputs(model(*positional, **keyword)).values())


def _packs(call: Callable[[], object], model: torch.nn.Module) -> dict[str, Any] | None:
    packed = packed_each_call(call, model.state_dict().values())
    return None if packed is None else packed.to_record()


def _relative_error(output: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest |difference| over largest |expected|; infinity where shapes differ or it is no number."""
    if output.shape != expected.shape:
        return float("inf")
    a, b = output.double(), expected.double()
    if not a.numel() or bool((a == b).all()):
        return 0.0
    error = float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))
    return error if error == error else float("inf")


def _reason(error: Exception) -> str:
    """What went wrong: on the second line where the first only says which backend failed."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[1] if len(lines) > 1 and lines[0].startswith("backend=") else first_line(error)
