"""PyTorch itself: networks as they are, and exported programs."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from optcli import environment
from optcli.artifact import Artifact, Format
from optcli.errors import OptcliError, RunnerError
from optcli.models.formats import exported, torch_calls, torch_compiled
from optcli.models.formats import exported as exported_format
from optcli.models.formats import torch as torch_format
from optcli.models.formats.torch_calls import Arguments, flatten_outputs
from optcli.models.formats.torch_compiled import Compilation, Mode
from optcli.results import flags
from optcli.runners._pytorch import PytorchRunner

if TYPE_CHECKING:
    import numpy as np
    import torch


class TorchRunner(PytorchRunner):
    """Runs networks in PyTorch: as they are (eager), compiled, or under autocast.

    On the CPU inputs share memory with the arrays that are bound; to a GPU they go through pinned
    memory, and results come back the same way. Nothing records gradients. Options that are not given
    are as the artifact was made: a pass such as `torch_compile` sets them.
    """

    runs: ClassVar[tuple[Format, ...]] = (Format.TORCH, Format.EXPORTED)

    compile: bool | Mode | None = Field(
        None,
        description="compile with torch.compile, by a mode of it or by its default one; anew in every "
        "process, where the pass `torch_compile` keeps what it made",
    )
    channels_last: bool | None = Field(
        None, description="run with the channels of images last in memory; default: as in the artifact"
    )
    autocast: Literal["bf16", "fp16"] | None = Field(
        None, description="precision of matrix products and convolutions; default: as in the artifact"
    )

    _call: Arguments = PrivateAttr(default_factory=lambda: Arguments(()))
    _effective: dict[str, Any] = PrivateAttr(default_factory=dict)
    _autocast: str | None = PrivateAttr(None)
    _channels_last: bool = PrivateAttr(False)
    _context: ExitStack | None = PrivateAttr(None)

    def starts_programs(self) -> bool:
        return bool(self.compile)

    def load(self, artifact: Artifact) -> None:
        import torch

        self._choose_device(artifact)
        transforms: tuple[dict[str, Any], ...] = ()
        exported.bring_operators(artifact.facts.get("imports", ()))
        if artifact.format == Format.EXPORTED:
            program = exported_format.open(artifact.path, trust=artifact.trusted)
            if self._cuda is not None:
                from torch.export.passes import move_to_device_pass

                program = move_to_device_pass(program, self._device)
            model = program.module()
            self._call = Arguments(tuple(spec.name for spec in self.inputs))
            self._names = tuple(artifact.facts.get("outputs", ()))
        else:
            model = torch_format.open(artifact.path).to(self._device)
            transforms = torch_format.read(artifact.path).transforms
            self._call = torch_calls.arguments(model, self.inputs)
        records = {record["name"]: record for record in transforms}
        self._autocast = self.autocast or records.get("autocast", {}).get("dtype")
        option = self.channels_last
        self._channels_last = "channels_last" in records if option is None else option
        # Only convolutions gain; on a fully connected layer it means nothing.
        layout = torch.channels_last if self._channels_last else torch.contiguous_format
        if self._channels_last or "channels_last" in records:
            model = model.to(memory_format=layout)
        self._model = model
        precision = self._precision_of(torch_format.precision(model))
        self._effective = {"precision": self._autocast_precision() or precision}
        compilation = self._compilation(Compilation.of(transforms))
        if compilation is not None:
            quantized = exported_format.QUANTIZED in artifact.facts.get("imports", ())
            self._compile(model, compilation, artifact.path, quantized=quantized)

    def bind(self, feed: dict[str, np.ndarray]) -> None:
        self._bind({name: self._laid_out(self._sent(name, array)) for name, array in feed.items()})

    def fetch(self) -> dict[str, np.ndarray]:
        outputs = flatten_outputs(self._result)
        return self._received(self._named(outputs, "program") if self._names else outputs, copy=False)

    def effective(self) -> dict[str, Any]:
        autocast, doubts = self._autocast, []
        if autocast and self._cuda is None and not environment.computes_in(autocast):
            doubts.append(flags.no_instructions(autocast).model_dump())
        return {
            **self._where(),
            "channels_last": self._channels_last,
            "autocast": autocast,
            "compile": False,
            **self._effective,
            **({"flags": doubts} if doubts else {}),
        }

    def close(self) -> None:
        super().close()
        if self._context is not None:
            self._context.close()
        self._context = None

    def _compilation(self, recorded: Compilation | None) -> Compilation | None:
        """What to compile by: the artifact's own way unless the options say otherwise."""
        if self.compile is None:
            return recorded
        if self.compile is False:
            return None
        if self.compile is True:
            return recorded or Compilation()
        return (recorded or Compilation()).model_copy(update={"mode": self.compile})

    def _compile(
        self, model: torch.nn.Module, compilation: Compilation, folder: Path, *, quantized: bool
    ) -> None:
        """Compile at the artifact's batch sizes, so that no call that is timed compiles."""
        self._context = ExitStack()
        try:
            cache = self._context.enter_context(torch_compiled.own_copy(folder))
            compiling = torch_compiled.compiling(cache, compilation.freezing, quantized=quantized)
            self._context.enter_context(compiling)
            before = torch_compiled.kernels(cache)
            self._model = compilation.apply(model)
            for size in compilation.sizes(self.inputs):
                feed = {
                    name: self._laid_out(value.to(self._device))
                    for name, value in torch_calls.example_inputs(self.inputs, size).items()
                }
                compilation.mark(self.inputs, feed)
                self._bind(feed)
                self.execute()
            if self._cuda is not None:
                self._cuda.forget()
        except OptcliError:
            self.close()
            raise
        compiled = torch_compiled.kernels(cache) - before
        self._effective |= {
            "compile": compilation.mode,
            "dynamic": compilation.dynamic,
            "freezing": compilation.freezing,
            # 0: all of them came with the artifact, this was a warm start.
            "kernels_compiled_at_load": compiled,
        }

    def _bind(self, feed: dict[str, torch.Tensor]) -> None:
        self._bound = self._call.split(feed)

    def _compute(self) -> Any:
        if self._autocast is None:
            return super()._compute()
        with self._casting():
            return super()._compute()

    def _casting(self) -> AbstractContextManager[Any]:
        import torch

        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[str(self._autocast)]
        context: AbstractContextManager[Any] = torch.autocast(self._device.partition(":")[0], dtype)
        return context

    def _autocast_precision(self) -> str | None:
        """What autocast really computes products in; None without it. Raises `RunnerError`."""
        import torch

        if self._autocast is None:
            return None
        with torch.no_grad(), self._casting():
            some = torch.ones(2, 2, device=self._device)
            computed = (some @ some).dtype
        names = {torch.bfloat16: "bf16", torch.float16: "fp16"}
        if names.get(computed) != self._autocast:
            raise RunnerError(
                f"autocast computes in {computed}, wanted {self._autocast}",
                hint="take `autocast` out of the variant",
            )
        return self._autocast

    def _laid_out(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch_calls.channels_last(tensor) if self._channels_last else tensor
